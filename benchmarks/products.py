"""Matrix products alone, in NumPy and in torch: on a model's own shapes, and the machine's best.

Both write into memory that is there already. A single product is left to the library's own threads. Of a
stack of small ones, which attention makes, torch's `matmul` gives each thread some; NumPy's would spread
every one of them over all threads, so here each thread takes its part of the stack, on one BLAS thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.cases import Case
from benchmarks.flops import Product, matrix_products
from benchmarks.timing import median_seconds
from numpy_gpt.arrays import Array
from numpy_gpt.parallel import blas_threads

PEAK_SIZES = (1024, 2048, 4096)
"""Square products that fit a cache, hardly fit, and do not: which is quickest differs between machines."""


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
        limit = 1 if library == "numpy" and product.stack > 1 else None
        with blas_threads(limit):
            total += product.times * median_seconds(make(product, threads), seconds=seconds, at_least=1)
    return total


def peak_flops(library: str, threads: int, *, seconds: float) -> float:
    """Return the most operations per second of a library's large square products in float32."""
    rates = []
    for size in PEAK_SIZES:
        square = Product("square", 1, 1, size, size, size)
        took = median_seconds(MAKERS[library](square, threads), seconds=seconds, at_least=1)
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


def numpy_product(product: Product, threads: int) -> Callable[[], object]:
    """Return a call that makes the product in NumPy, or the stack, for which BLAS should have one thread."""
    a, b, out = factors(product)
    if product.stack == 1:
        return lambda: np.matmul(a[0], b[0], out=out[0])
    bounds = np.linspace(0, product.stack, threads + 1).astype(int)
    parts = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    pool = ThreadPoolExecutor(threads)

    return lambda: list(pool.map(lambda part: np.matmul(a[part], b[part], out=out[part]), parts))


def torch_product(product: Product, threads: int) -> Callable[[], object]:
    """Return a call that makes the product, or the stack, in torch."""
    import torch

    torch.set_num_threads(threads)
    a, b, out = (torch.from_numpy(array) for array in factors(product))
    if product.stack == 1:
        a, b, out = a[0], b[0], out[0]
    return lambda: torch.matmul(a, b, out=out)


MAKERS = {"numpy": numpy_product, "torch": torch_product}
