"""The page as one HTML file that asks for nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from numpy_gpt.learn.explorer.views import Page

FOLDER = Path(__file__).parent
GENERATOR = "numpy-gpt explain"
"""What a page says made it."""

HEAD_BYTES = 1000
"""It says so within the first of these."""


def render(page: Page) -> str:
    """Return the HTML, with its style, its script and every number in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    html = environment.get_template("page.html.jinja").render(
        page=page,
        generator=GENERATOR,
        batch_shape=f"({len(page.batch.rows)}, {len(page.batch.rows[0])})",
        css=(FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
        data={
            "arrays": page.arrays,
            "labels": page.labels,
            "nudges": {step.key: [dataclasses.asdict(nudge) for nudge in step.nudges] for step in page.steps},
        },
    )
    return html.lstrip()  # of the lines on which the template defines its macros


def check_place(path: Path) -> None:
    """Make sure, before a page is made, that it can go there and replaces nothing but an earlier page.

    Raises:
        FileExistsError: when another kind of file is there.
        OSError: when it cannot be read, or there is no such folder.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if path.exists():
        with path.open("rb") as file:
            if GENERATOR.encode() not in file.read(HEAD_BYTES):
                raise FileExistsError(f"{path} is there already and is no such page; choose another --out")
