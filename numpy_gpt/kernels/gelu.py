"""gelu, tuned: forward computes the slope too, while the gate is at hand, and backward is one product.

How it differs from the book: it saves y' instead of x and the gate, half as much, and works in chunks that
stay in cache. For the tanh form, with s = √(2/π), c = 0.044715, u = s x + s c x³ and t = tanh(u),

    y  = x (1 + t) / 2
    y' = (1 + t) / 2 + (1 - t²) x u' / 2        since t' = (1 - t²) u'
       = (1 + t) / 2 + (1 - t²) (3u/2 - s x)    since x u' = s x + 3 s c x³ = 3u - 2 s x

so that the polynomial is evaluated once. For the exact form NumPy has no erf to be quick with: it is the
book's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops import gelu as book
from numpy_gpt.ops.gelu import CUBIC, SATURATED, SQRT_2_OVER_PI
from numpy_gpt.parallel import share, share_chunks


class GeluSaved(NamedTuple):
    """What gelu_backward needs."""

    slope: Array  # (...): y'


def gelu_forward(x: Array, *, approximate: str = "tanh") -> tuple[Array, GeluSaved]:
    """Return x times its gate; see `numpy_gpt.ops.gelu_forward`."""
    if approximate != "tanh":
        y, saved = book.gelu_forward(x, approximate=approximate)
        return y, GeluSaved(book.gelu_backward(np.ones_like(x), saved)[0])
    flat = x.reshape(-1)  # (n,)
    y = empty(flat.shape, x.dtype)  # (n,)
    slope = empty(flat.shape, x.dtype)  # (n,)

    def gate(part: slice) -> None:
        x, u, t = (empty(flat[part].shape, flat.dtype) for _ in range(3))  # (n,) each
        np.clip(flat[part], -SATURATED, SATURATED, out=x)
        np.multiply(x, x, out=u)
        u *= SQRT_2_OVER_PI * CUBIC
        u += SQRT_2_OVER_PI
        u *= x
        np.tanh(u, out=t)

        u *= 1.5
        x *= SQRT_2_OVER_PI
        u -= x  # 3u/2 - s x
        np.multiply(t, t, out=x)
        np.subtract(1, x, out=x)
        u *= x
        t += 1
        t *= 0.5
        np.multiply(flat[part], t, out=y[part])
        np.add(t, u, out=slope[part])

    share_chunks(gate, len(flat), x.itemsize)
    return y.reshape(x.shape), GeluSaved(slope.reshape(x.shape))


def gelu_backward(
    d_y: Array, saved: GeluSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array]:
    """Return (d_x,), like x."""
    (d_x,) = out or (None,)
    d_flat, slope = d_y.reshape(-1), saved.slope.reshape(-1)  # (n,) each
    d_x_flat = empty(slope.shape, slope.dtype)  # (n,)
    share(lambda i, j: np.multiply(d_flat[i:j], slope[i:j], out=d_x_flat[i:j]), slope.size, cost=1)
    return (deliver(d_x_flat.reshape(d_y.shape), d_x),)
