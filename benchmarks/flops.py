"""The floating-point operations of a training step, counted product by product.

What counts, and what does not
    A product of (m, k) and (k, n) takes m n k multiplications and as many additions: 2 m n k.
    Every matrix product of forward and backward counts. The backward of y = x Wᵀ is two products of the same
    size, one for each factor; so a step takes three times the operations of its forward.
    Attention is causal: a query at position t needs t + 1 keys, on average (T + 1) / 2, and only those count,
    though some programs compute all T and throw half away.
    Elementwise work, sums, lookups, clipping and AdamW do not count, though they take time. The share of peak
    that follows is thus a lower bound on how busy the machine was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.cases import Case


class Product(NamedTuple):
    """A stack of products of (rows, inner) and (inner, columns), and how often a step makes it.

    `rows`, `inner` or `columns` may end in a half where it is the average number of keys.
    """

    name: str
    times: int
    stack: int
    rows: float
    inner: float
    columns: float
    layout: str = "NN"  # which factor lies in memory as its transpose, T, in BLAS's letters

    @property
    def flops(self) -> int:
        """The operations of all of them together."""
        return round(2 * self.times * self.stack * self.rows * self.inner * self.columns)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, inner, columns) in whole numbers, rounded up, to be timed."""
        return math.ceil(self.rows), math.ceil(self.inner), math.ceil(self.columns)


def matrix_products(case: Case) -> Iterator[Product]:
    """Yield every matrix product of a case's forward and backward pass."""
    config, B, T = case.config, case.batch_size, case.num_tokens
    C, L, V = config.embedding_dim, config.num_layers, config.vocabulary_size
    for name, times, inputs, outputs in (
        ("qkv", L, C, 3 * C),
        ("out_proj", L, C, C),
        ("up_proj", L, C, 4 * C),
        ("down_proj", L, 4 * C, C),
        ("vocabulary_projection", 1, C, V),
    ):
        N = B * T
        yield Product(f"{name}: x Wᵀ", times, 1, N, inputs, outputs, "NT")
        yield Product(f"{name}: d_yᵀ x", times, 1, outputs, N, inputs, "TN")
        yield Product(f"{name}: d_y W", times, 1, N, outputs, inputs, "NN")
    stack, D, keys = B * config.num_heads, config.head_dim, (T + 1) / 2
    for name in ("queries keysᵀ", "d_heads valuesᵀ"):
        yield Product(f"attention: {name}", L, stack, T, D, keys, "NT")
    for name in ("weights values", "d_scores keys"):
        yield Product(f"attention: {name}", L, stack, T, keys, D, "NN")
    for name in ("weightsᵀ d_heads", "d_scoresᵀ queries"):
        yield Product(f"attention: {name}", L, stack, keys, T, D, "TN")


def training_flops(case: Case) -> int:
    """Return the operations of one forward and backward pass."""
    return sum(product.flops for product in matrix_products(case))
