"""What hypothesis draws: sizes, arrays of values, token ids and targets."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st

from numpy_gpt.arrays import Array

IGNORED = -100
DTYPES = st.sampled_from([np.float64, np.float32])
LEADING_SHAPES = st.sampled_from([(), (3,), (3, 2), (1, 4)])  # the "..." of a shape

# Drawing and shrinking single numbers is worth its time only while a reader could take them in.
ELEMENTWISE_LIMIT = 24


def sizes(largest: int) -> st.SearchStrategy[int]:
    """A length of an axis; small, odd and one as likely as any."""
    return st.integers(1, largest)


def values(shape: tuple[int, ...], scale: float = 1.0) -> st.SearchStrategy[Array]:
    """Float32 arrays of mean 0 and standard deviation `scale`, so that float64 can hold the same numbers.

    Small arrays are drawn element by element, large ones from a generator with a drawn seed.
    """
    if math.prod(shape) > ELEMENTWISE_LIMIT:
        drawn = st.integers(0, 2**16).map(lambda seed: np.random.default_rng(seed).standard_normal(shape))
    else:
        # Whole numbers up to 64, over 37: about the uniform distribution of variance 1 (64 / 37 = √3), and
        # nothing so tiny that float32 loses its products altogether.
        numerators = hnp.arrays(np.float64, shape, elements=st.integers(-64, 64), fill=st.nothing())
        drawn = numerators.map(lambda numerator: numerator / 37)
    return drawn.map(lambda array: (scale * array).astype(np.float32))


def matrices(rows: int, columns: int) -> st.SearchStrategy[Array]:
    """Weights (out, in) of variance 1/in, so that products keep the size of their inputs."""
    return values((rows, columns), 1 / math.sqrt(columns))


def token_ids(shape: tuple[int, ...], vocabulary_size: int) -> st.SearchStrategy[Array]:
    """Ids in the vocabulary, often repeated."""
    return hnp.arrays(np.int64, shape, elements=st.integers(0, vocabulary_size - 1))


def targets(shape: tuple[int, ...], vocabulary_size: int) -> st.SearchStrategy[Array]:
    """Ids in the vocabulary, some of them ignored."""
    elements = st.integers(0, vocabulary_size - 1) | st.just(IGNORED)
    return hnp.arrays(np.int64, shape, elements=elements)


def divisors() -> st.SearchStrategy[Any]:
    """What a summed loss is divided by: None for the number of valid targets, or any number."""
    return st.none() | st.integers(1, 9) | st.sampled_from([0.5, 7.25])
