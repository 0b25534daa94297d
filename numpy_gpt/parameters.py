"""All of a model's numbers in one flat vector, and named views into it.

A gradient, and each of the optimizer's moments, is a `Parameters` too: what belongs to one weight stands at
the same place in all of them, so an optimizer works on whole vectors and a reader on names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig

TOKEN_EMBEDDING = "embedding.token_embedding.weight"
VOCABULARY_PROJECTION = "vocabulary_projection.weight"


class Matrix(NamedTuple):
    """A weight without a bias."""

    weight: Array


class Affine(NamedTuple):
    """A weight with its bias, which is None where the configuration has none."""

    weight: Array
    bias: Array | None


class Embedding(NamedTuple):
    """The two tables that token ids and positions look up."""

    token_embedding: Matrix  # (V, C)
    position_embedding: Matrix  # (max_sequence_length, C)


class Attention(NamedTuple):
    """One block's projections; `qkv` is W_query, W_key and W_value seen as one (3C, C) matrix."""

    W_query: Affine  # (C, C), (C,)
    W_key: Affine  # (C, C), (C,)
    W_value: Affine  # (C, C), (C,)
    out_proj: Affine  # (C, C), (C,)
    qkv: Affine  # (3C, C), (3C,): the same memory as the first three


class FeedForward(NamedTuple):
    """One block's two layers around the GELU."""

    up_proj: Affine  # (4C, C), (4C,)
    down_proj: Affine  # (C, 4C), (C,)


class Block(NamedTuple):
    """One transformer block."""

    attention_norm: Affine  # (C,), (C,)
    attention: Attention
    feed_forward_norm: Affine  # (C,), (C,)
    feed_forward: FeedForward


def parameter_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Return every parameter's name and shape, in the order of the forward pass; a tied matrix once."""
    V, C = config.vocabulary_size, config.embedding_dim
    shapes: dict[str, tuple[int, ...]] = {
        TOKEN_EMBEDDING: (V, C),
        "embedding.position_embedding.weight": (config.max_sequence_length, C),
    }

    def add(name: str, weight: tuple[int, ...], has_bias: bool = True) -> None:
        shapes[f"{name}.weight"] = weight
        if has_bias:
            shapes[f"{name}.bias"] = weight[:1]

    for i in range(config.num_layers):
        block = f"transformer_blocks.{i}"
        add(f"{block}.attention_norm", (C,))
        for projection in ("W_query", "W_key", "W_value"):
            add(f"{block}.attention.{projection}", (C, C), config.qkv_bias)
        add(f"{block}.attention.out_proj", (C, C))
        add(f"{block}.feed_forward_norm", (C,))
        add(f"{block}.feed_forward.up_proj", (4 * C, C))
        add(f"{block}.feed_forward.down_proj", (C, 4 * C))
    add("final_norm", (C,))
    if not config.tie_weights:
        shapes[VOCABULARY_PROJECTION] = (V, C)
    return shapes


class Parameters:
    """One flat vector and the names of its parts.

    The vector holds all matrices first, then all vectors, each in the order of `parameter_shapes`. So weight
    decay acts on one slice, `matrices`, and a block's W_query, W_key and W_value lie side by side.

    Attributes:
        config: the GPTConfig that fixes names and shapes.
        flat: (N,) float, everything; the views below are parts of it.
        embedding, transformer_blocks, final_norm, vocabulary_projection: the views, as a tree that spells
            their names: `parameters.transformer_blocks[0].attention.W_query.weight`.
    """

    def __init__(self, config: GPTConfig, flat: Array) -> None:
        """Lay the names over `flat`, which is used as it is and not copied.

        Raises:
            ValueError: when `flat` is not one contiguous vector of the size that `config` needs, in float32
                or float64.
        """
        shapes = parameter_shapes(config)
        size = sum(math.prod(shape) for shape in shapes.values())
        if flat.shape != (size,) or not flat.flags.c_contiguous:
            raise ValueError(f"flat must be a contiguous vector of {size} numbers, not of shape {flat.shape}")
        if flat.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, not {flat.dtype}")
        self.config = config
        self.flat = flat

        storage_order = sorted(shapes, key=lambda name: -len(shapes[name]))  # matrices, then vectors
        spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name in storage_order:
            start, end = end, end + math.prod(shapes[name])
            spans[name] = (start, end)
        self._matrices_end = max(spans[name][1] for name in shapes if len(shapes[name]) == 2)

        def view(first: str, last: str | None = None) -> Array:
            """Return the part from `first` to `last` with their first axes joined."""
            start, stop = spans[first][0], spans[last or first][1]
            return flat[start:stop].reshape(-1, *shapes[first][1:])

        def affine(first: str, last: str | None = None) -> Affine:
            last = last or first
            has_bias = f"{first}.bias" in shapes
            return Affine(
                view(f"{first}.weight", f"{last}.weight"),
                view(f"{first}.bias", f"{last}.bias") if has_bias else None,
            )

        def block(name: str) -> Block:
            attention = f"{name}.attention"
            return Block(
                attention_norm=affine(f"{name}.attention_norm"),
                attention=Attention(
                    W_query=affine(f"{attention}.W_query"),
                    W_key=affine(f"{attention}.W_key"),
                    W_value=affine(f"{attention}.W_value"),
                    out_proj=affine(f"{attention}.out_proj"),
                    qkv=affine(f"{attention}.W_query", f"{attention}.W_value"),
                ),
                feed_forward_norm=affine(f"{name}.feed_forward_norm"),
                feed_forward=FeedForward(
                    up_proj=affine(f"{name}.feed_forward.up_proj"),
                    down_proj=affine(f"{name}.feed_forward.down_proj"),
                ),
            )

        self._views = {name: view(name) for name in shapes}
        self.embedding = Embedding(
            token_embedding=Matrix(self._views[TOKEN_EMBEDDING]),
            position_embedding=Matrix(self._views["embedding.position_embedding.weight"]),
        )
        self.transformer_blocks = tuple(block(f"transformer_blocks.{i}") for i in range(config.num_layers))
        self.final_norm = affine("final_norm")
        self.vocabulary_projection = Matrix(
            self._views.get(VOCABULARY_PROJECTION, self._views[TOKEN_EMBEDDING])
        )

    @classmethod
    def zeros(cls, config: GPTConfig, dtype: DTypeLike) -> Parameters:
        """Return parameters that are all zero."""
        size = sum(math.prod(shape) for shape in parameter_shapes(config).values())
        return cls(config, np.zeros(size, dtype))

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype of every number."""
        return self.flat.dtype

    @property
    def matrices(self) -> Array:
        """The slice of `flat` that holds all matrices and embeddings: what weight decay acts on."""
        return self.flat[: self._matrices_end]

    def named_parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield (name, view) in the order of the forward pass; a tied matrix once, as token embedding."""
        return iter(self._views.items())

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"Parameters({len(self)} tensors, {self.flat.size:,} numbers, {self.dtype})"

    def __reduce__(self) -> tuple[type[Parameters], tuple[GPTConfig, Array]]:
        # copy, deepcopy and pickle rebuild the views; copied one by one they would no longer share memory.
        return Parameters, (self.config, self.flat)

    def state_dict(self) -> dict[str, Array]:
        """Return a copy of every parameter under its name; a tied matrix under both of its names."""
        state = {name: view.copy() for name, view in self._views.items()}
        if self.config.tie_weights:
            state[VOCABULARY_PROJECTION] = state[TOKEN_EMBEDDING].copy()
        return state

    def load_state_dict(self, mapping: Mapping[str, ArrayLike]) -> None:
        """Copy every parameter in from `mapping`, all of them or none.

        With tied weights the vocabulary projection may be absent, or equal to the token embedding.

        Raises:
            ValueError: listing every name that is missing, unexpected or of another shape, or a tied
                projection that differs.
        """
        arrays = {name: np.asarray(value) for name, value in mapping.items()}
        expected = {name: view.shape for name, view in self._views.items()}
        allowed = dict(expected)
        if self.config.tie_weights:
            allowed[VOCABULARY_PROJECTION] = expected[TOKEN_EMBEDDING]

        faults = [f"missing {name}" for name in expected if name not in arrays]
        faults += [f"unexpected {name}" for name in arrays if name not in allowed]
        for name, shape in allowed.items():
            if name not in arrays:
                continue
            array = arrays[name]
            if array.shape != shape:
                faults.append(f"{name} has shape {array.shape}, not {shape}")
            elif array.dtype.kind not in "fiu":
                faults.append(f"{name} holds {array.dtype}, not real numbers")
        if faults:
            raise ValueError("state dict does not fit the model: " + "; ".join(faults))
        if (
            self.config.tie_weights
            and VOCABULARY_PROJECTION in arrays
            and not np.array_equal(arrays[VOCABULARY_PROJECTION], arrays[TOKEN_EMBEDDING], equal_nan=True)
        ):
            raise ValueError(
                f"state dict does not fit the model: weights are tied, "
                f"but {VOCABULARY_PROJECTION} differs from {TOKEN_EMBEDDING}"
            )
        for name, view in self._views.items():
            view[...] = arrays[name]
