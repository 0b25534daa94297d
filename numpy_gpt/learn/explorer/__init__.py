"""The explorer: one training step of a tiny GPT as a page, generated from the code that really runs.

    from numpy_gpt.learn.explorer import explain

    html = explain("the cat sat on the mat and the dog sat on the rug")

A sentence becomes a batch (`sentence`), a model is trained on it and one step is recorded, line by line
(`experiment`, `recording`, `watching`). From the recording, the docstrings (`lessons`, `mathml`), the source
(`sources`) and the catalogue of bugs (`mistakes`) come the contents (`building`), and from these the page
(`rendering`).
"""

from __future__ import annotations

import importlib.util

from numpy_gpt.extras import install_command
from numpy_gpt.learn.explorer.building import build_page
from numpy_gpt.learn.explorer.experiment import run_experiment
from numpy_gpt.learn.explorer.rendering import check_place, render
from numpy_gpt.learn.explorer.sentence import read_sentence

__all__ = ["check_place", "explain"]

NEEDED = ("jinja2", "pygments")


def explain(text: str) -> str:
    """Return the page about one step of training on a sentence, as HTML.

    Raises:
        ValueError: for a text of fewer than three words and characters.
        ImportError: when the `learn` extra is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {' and '.join(missing)}: {install_command('learn')}")
    return render(build_page(run_experiment(read_sentence(text))))
