"""Matrix products alone, in NumPy and in torch: on a model's own shapes, and the machine's best.

Both write into memory that is there already. A single product is left to the library's own threads. Of a
stack of small ones, which attention makes, torch's `matmul` gives each thread some; NumPy's would spread
every one of them over all threads, so here each thread of a team takes its part of the stack, on one BLAS
thread, as it does of a model's batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cases import Case
from benchmarks.flops import Product, matrix_products
from benchmarks.timing import median_seconds
from numpy_gpt.arrays import Array
from numpy_gpt.parallel import Team, blas_threads, share

PEAK_SIZES = (1024, 2048, 4096)
"""Square products that fit a cache, hardly fit, and do not: which is quickest differs between machines."""

AT_LEAST = 3
"""So many products are timed, however long they take."""


def products_seconds(library: str, case: Case, threads: int, *, seconds: float) -> float:
    """Return how long all matrix products of a training step take, one after the other.

    Args:
        library: "numpy" or "torch".
        case: whose shapes.
        threads: for either library.
        seconds: how long to measure each shape, all together about twelve times as many.
    """
    make = MAKERS[library]
    total = 0.0
    for product in matrix_products(case):
        with make(product, threads) as multiply:
            total += product.times * median_seconds(multiply, seconds=seconds, at_least=AT_LEAST)
    return total


def peak_flops(library: str, threads: int, *, seconds: float) -> float:
    """Return the most operations per second of a library's large square products in float32."""
    rates = []
    for size in PEAK_SIZES:
        square = Product("square", 1, 1, size, size, size)
        with MAKERS[library](square, threads) as multiply:
            took = median_seconds(multiply, seconds=seconds, at_least=AT_LEAST)
        rates.append(square.flops / took)
    return max(rates)


def factors(product: Product) -> tuple[Array, Array, Array]:
    """Return random factors (stack, rows, inner) and (stack, inner, columns), and room for the product."""
    rows, inner, columns = product.shape
    random = np.random.default_rng(0)
    arrays = []
    for letter, shape in zip(product.layout, ((rows, inner), (inner, columns)), strict=True):
        stored = shape if letter == "N" else shape[::-1]
        array = random.random((product.stack, *stored), dtype=np.float32) - np.float32(0.5)
        arrays.append(array if letter == "N" else array.swapaxes(1, 2))
    return arrays[0], arrays[1], np.empty((product.stack, rows, columns), np.float32)


@contextlib.contextmanager
def numpy_product(product: Product, threads: int) -> Iterator[Callable[[], object]]:
    """Give a call that makes the product in NumPy, or the stack, and returns it."""
    a, b, out = factors(product)

    def multiply(start: int, stop: int) -> None:
        np.matmul(a[start:stop], b[start:stop], out=out[start:stop])

    def multiply_stack() -> Array:
        share(multiply, product.stack, cost=1)
        return out

    if product.stack == 1:
        with blas_threads(threads):
            yield lambda: np.matmul(a[0], b[0], out=out[0])
    else:
        # However small it is, the stack is cut: in a step every thread is awake already.
        with Team(threads, worth_a_thread=1).at_work():
            yield multiply_stack


@contextlib.contextmanager
def torch_product(product: Product, threads: int) -> Iterator[Callable[[], object]]:
    """Give a call that makes the product in torch, or the stack, and returns it."""
    import torch

    torch.set_num_threads(threads)
    a, b, out = (torch.from_numpy(array) for array in factors(product))
    if product.stack == 1:
        a, b, out = a[0], b[0], out[0]
    yield lambda: torch.matmul(a, b, out=out)


MAKERS = {"numpy": numpy_product, "torch": torch_product}
