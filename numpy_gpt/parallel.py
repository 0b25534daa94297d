"""How many threads NumPy's matrix products use; the only place that touches them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def blas_threads(limit: int | None) -> Iterator[None]:
    """Within the context, let the BLAS library use at most `limit` threads; None leaves it alone.

    The limit holds for the whole process, and is put back at the end. Apple's Accelerate cannot be steered.
    """
    if limit is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limit, user_api="blas"):
        yield
