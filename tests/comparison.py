"""How answers are compared, and what a failure says: what, shape, dtype, worst error and where."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array

FLOAT64_AGREEMENT = 1e-10
FLOAT64_ROUNDING = 1e-12  # for one computation whose sums are taken in another order

# Float32 may err four times as much as torch's float32 does. But torch may be exactly right by luck where a
# tensor has few elements, so a floor is needed: every rounding adds up to eps / 2 of what is summed, and the
# longest chain drawn here (a dot product, a softmax, a second dot product) has about sixteen.
FLOAT32_RATIO = 4
FLOAT32_FLOOR = 16 * float(np.finfo(np.float32).eps) / 2


class Error(NamedTuple):
    """The worst relative error of an array, and the index where it stands."""

    size: float
    index: tuple[int, ...]


def relative_error(actual: ArrayLike, expected: ArrayLike, floor: ArrayLike = 0.0) -> Error:
    """Return max|actual − expected| over max(max|expected|, max floor).

    Args:
        actual, expected: arrays or numbers of one shape.
        floor: what was summed to make `expected`, before anything cancelled: any shape.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.size == 0:
        return Error(0.0, ())
    with np.errstate(invalid="ignore"):  # inf − inf is an error of its own, found on the next line
        difference = np.abs(actual - expected)
    difference = np.where(np.isnan(difference), np.inf, difference)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(difference), difference.shape))
    scale = max(np.abs(expected).max(), np.max(floor))
    if difference[index] == 0:
        return Error(0.0, index)
    return Error(float(difference[index] / scale) if scale > 0 else np.inf, index)


def assert_close(actual: Any, expected: Any, what: str, *, tolerance: float, floor: ArrayLike = 0.0) -> None:
    """Fail unless the two have one shape and `relative_error` is within the tolerance."""
    assert np.shape(actual) == np.shape(expected), f"{what}: {np.shape(actual)}, not {np.shape(expected)}"
    error = relative_error(actual, expected, floor)
    assert error.size <= tolerance, (
        f"{_describe(what, actual)}: error {error.size:.3g} above {tolerance:.3g} at {error.index}: "
        f"{np.asarray(actual)[error.index]!r} instead of {np.asarray(expected)[error.index]!r}"
    )


def assert_float32(
    actual: Any, theirs: list[Any], exact: Any, what: str, *, floor: ArrayLike = 0.0, chains: int = 1
) -> None:
    """Fail if float32 errs more than four times as much as torch's float32 does, both against float64.

    Args:
        actual: our float32 answer.
        theirs: torch's float32 answers; the one that errs most counts.
        exact: torch's float64 answer.
        what: operation and tensor, for the failure text.
        floor: as in `relative_error`.
        chains: how many chains of `FLOAT32_FLOOR` roundings follow one another.
    """
    torch_error = max(relative_error(their, exact, floor).size for their in theirs)
    tolerance = max(FLOAT32_RATIO * torch_error, FLOAT32_FLOOR * chains)
    assert_close(actual, exact, what, tolerance=tolerance, floor=floor)


def assert_same_bits(actual: Any, expected: Any, what: str) -> None:
    """Fail unless the two are one array, bit for bit."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    error = relative_error(actual, expected)
    assert actual.tobytes() == expected.tobytes(), (
        f"{_describe(what, actual)}: other bits, worst error {error.size:.3g} at {error.index}"
    )


def assert_zero(actual: Array, what: str) -> None:
    """Fail unless every element is exactly zero."""
    assert_close(actual, np.zeros_like(actual), what, tolerance=0.0)


def _describe(what: str, array: Any) -> str:
    return f"{what} {np.shape(array)} {np.asarray(array).dtype}"
