"""Explorer pages that several tests look at; each is made once."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from numpy_gpt.config import ExplainConfig
from numpy_gpt.learn.explorer import build_page, render, run_experiment
from numpy_gpt.learn.explorer.experiment import Experiment
from numpy_gpt.learn.explorer.sentence import read_sentence
from numpy_gpt.learn.explorer.views import Page
from numpy_gpt.verify.bugs import attention_forward

SENTENCE = ExplainConfig().text
SHORTEST = "one two three"
HOSTILE = '</script><b>"it\'s" & {{7*7}} <!-- \N{GRINNING FACE} \u202e e\u0301 \ud800 ]]>'
LONGEST = " ".join(f"{'abcdefghijklmnopqrstuvwxyz'[i] * 12}" for i in range(20)) + " rest" * 50_000


class Made(NamedTuple):
    """A page with what it was made from."""

    experiment: Experiment
    page: Page
    html: str


@functools.cache
def page_of(text: str) -> Made:
    attention_forward._random = np.random.default_rng(0)  # a mistake's dropout, the same in every page
    experiment = run_experiment(read_sentence(text))
    page = build_page(experiment)
    return Made(experiment, page, render(page))
