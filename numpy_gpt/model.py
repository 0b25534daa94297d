"""GPT: operations composed into blocks, forward, and in reverse order, backward."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.cache import BlockCache, Cache
from numpy_gpt.config import GPTConfig
from numpy_gpt.kernels import Workspace, empty, fast
from numpy_gpt.kernels.products import MULTIPLY_ADDS
from numpy_gpt.ops import IGNORED_TARGET, Op, Ops, book
from numpy_gpt.ops.ids import check_target_ids, check_token_ids
from numpy_gpt.parallel import Team, blas_threads, share_chunks
from numpy_gpt.parameters import Affine, Block, Parameters

INITIAL_STD = 0.02
GELU_FORM = {"gelu_tanh": "tanh", "gelu": "none"}
TABLES = {"fast": fast, "book": book}

FEW_TOKENS = 64
"""Up to so many, reading the weights takes most of a prediction's time, and waking threads for each operation
much of the rest: BLAS's own threads, which lie in wait, are quicker then."""

GRADIENT_COPIES_BYTES = 128 * 1024 * 1024
"""What the threads' own gradients may take together; where they need more, threads share each operation."""

Result = TypeVar("Result")

Saved = Any
"""What an operation kept for its backward; only that backward opens it."""


class BlockSaved(NamedTuple):
    """What one block's operations kept, in the order they ran."""

    attention_norm: Saved
    qkv: Saved
    attention: Saved
    out_proj: Saved
    feed_forward_norm: Saved
    up_proj: Saved
    gelu: Saved
    down_proj: Saved


class ForgottenBlock(NamedTuple):
    """What a block keeps with recompute=True: its input alone, from which backward makes the rest again."""

    x: Array  # (B, T, C)
    block: Block  # its parameters


class TrunkSaved(NamedTuple):
    """What everything below the vocabulary projection kept."""

    embedding: Saved
    blocks: tuple[BlockSaved | ForgottenBlock, ...]
    final_norm: Saved
    used_ids: Array | slice = slice(None)  # the rows of the token embedding that `embedding` is about


class GPTSaved(NamedTuple):
    """What GPT.forward keeps for GPT.backward."""

    trunk: TrunkSaved
    vocabulary_projection: Saved
    logits_shape: tuple[int, ...]  # (B, T, V): what backward's upstream gradient must have


class GPT:
    """A GPT-2 style language model: pre-norm transformer blocks, and logits at every position.

        x = token embedding + position embedding
        for each block:   x = x + attention(layer_norm(x))
                          x = x + feed_forward(layer_norm(x))
        logits = layer_norm(x) @ vocabulary_projectionᵀ

    Args:
        config: sizes and choices.
        seed: of the initial weights: N(0, 0.02) for matrices, with out_proj and down_proj scaled by
            1/√(2L), so that the sum of 2L residual branches keeps its size; zero biases, unit norms.
        dtype: float32 or float64, for everything the model computes but the loss's sum, which is float64.
        ops: the table to compute with: "fast", "book", or an `Ops` of your own.
        threads: how many to compute on; None means as many as this process can run at once. Any table but
            "fast" computes on one, and lends the others to BLAS for its matrix products.
        recompute: keep only each block's input between forward and backward, and make the rest again when
            backward gets there: a third more time, for activations of 1 array a block instead of 16.

    Attributes:
        config, dtype, ops, threads, recompute: as given, `ops` always as a table.
        parameters: every weight, as one flat vector and named views into it.

    Raises:
        ValueError: for a dtype or a table that does not exist, or fewer than one thread.

    Source:
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        ops: str | Ops = "fast",
        threads: int | None = None,
        recompute: bool = False,
    ) -> None:
        self._attach(initial_parameters(config, seed, dtype), ops, threads, recompute)

    @classmethod
    def from_parameters(
        cls,
        parameters: Parameters,
        *,
        ops: str | Ops = "fast",
        threads: int | None = None,
        recompute: bool = False,
    ) -> GPT:
        """Return a model around existing parameters, which it uses as they are and does not copy."""
        model = cls.__new__(cls)
        model._attach(parameters, ops, threads, recompute)
        return model

    def _attach(self, parameters: Parameters, ops: str | Ops, threads: int | None, recompute: bool) -> None:
        if isinstance(ops, str) and ops not in TABLES:
            raise ValueError(f"ops must be one of {', '.join(TABLES)} or an Ops table, not {ops!r}")
        self.config = parameters.config
        self.dtype = parameters.dtype
        self.ops = TABLES[ops] if isinstance(ops, str) else Ops(*(Op(*pair) for pair in ops))
        self.parameters = parameters
        self.recompute = recompute
        self._team = Team(threads)
        self.threads = self._team.size
        self._is_tuned = self.ops == fast
        self._spare_workspaces: list[Workspace] = []  # of the threads of calls that have ended

    def __call__(self, token_ids: ArrayLike, *, cache: Cache | None = None) -> Array:
        """Return the logits of the next token at every position.

        Args:
            token_ids: (B, T) integers, T at most max_sequence_length.
            cache: of the tokens before these, to which these are added; see `new_cache`.

        Returns:
            logits (B, T, V); `model(token_ids)[0, -1]` predicts what follows the first sequence. With a
            cache, they equal the last T rows of the logits of all tokens together, but for rounding.

        Raises:
            ValueError, TypeError: for token ids that do not fit, as `numpy_gpt.ops.embedding_forward`, or
                that do not fit the cache, which then stays as it was.
        """
        token_ids = check_token_ids(token_ids, self.config.vocabulary_size, self.config.max_sequence_length)
        if cache is not None:
            cache.check_fits(self.config, self.dtype)
            cache.make_room(*token_ids.shape)
        with self._at_work(few_tokens=token_ids.size <= FEW_TOKENS):
            x, _ = self._trunk_forward(token_ids, cache)  # (B, T, C)
            head = self.parameters.vocabulary_projection.weight  # (V, C)
            logits: Array = self.ops.linear.forward(x, head, None)[0]  # (B, T, V)
        return logits

    def new_cache(self, batch_size: int = 1) -> Cache:
        """Return an empty key/value cache, with which a text can be fed in parts: `model(ids, cache=cache)`.

        It takes up to max_sequence_length tokens of each of `batch_size` sequences.
        """
        return Cache(self.config, batch_size, self.dtype)

    def forward(self, token_ids: ArrayLike) -> tuple[Array, GPTSaved]:
        """Return (logits (B, T, V), saved); `saved` goes to `backward`."""
        with self._at_work():
            x, trunk = self._trunk_forward(token_ids, keep=True)  # (B, T, C)
            head = self.parameters.vocabulary_projection.weight  # (V, C)
            logits, projection = self.ops.linear.forward(x, head, None)  # (B, T, V)
        return logits, GPTSaved(trunk, projection, logits.shape)

    def backward(self, d_logits: ArrayLike, saved: GPTSaved) -> Parameters:
        """Return the gradient of every parameter, given that of the logits (B, T, V).

        Raises:
            ValueError: when d_logits does not have the logits' shape.
        """
        d_logits = np.asarray(d_logits, self.dtype)  # (B, T, V)
        if d_logits.shape != saved.logits_shape:
            raise ValueError(f"d_logits must have shape {saved.logits_shape}, but has {d_logits.shape}")
        gradients = Parameters.zeros(self.config, self.dtype)
        d_head = gradients.vocabulary_projection.weight  # (V, C)
        with self._at_work():
            d_x, _, _ = self.ops.linear.backward(
                d_logits, saved.vocabulary_projection, out=(None, d_head, None)
            )  # (B, T, C)
            self._trunk_backward(d_x, saved.trunk, gradients)
        return gradients

    def loss(self, token_ids: ArrayLike, target_ids: ArrayLike, *, divisor: float | None = None) -> float:
        """Return the loss alone; see `loss_and_gradients`."""

        def work(shard: int, token_ids: Array, target_ids: Array, divisor: float) -> float:
            x, _ = self._trunk_forward(token_ids)  # (B, T, C)
            head = self.parameters.vocabulary_projection.weight  # (V, C)
            loss, _ = self.ops.linear_cross_entropy.forward(x, head, target_ids, divisor=divisor)
            return float(loss)

        return sum(self._in_shards(work, token_ids, target_ids, divisor))

    def loss_and_gradients(
        self,
        token_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        divisor: float | None = None,
        out: Parameters | None = None,
        accumulate: bool = False,
    ) -> tuple[float, Parameters]:
        """Return the mean surprise at the targets, and its gradient for every parameter.

        Args:
            token_ids: (B, T) integers.
            target_ids: (B, T) integers: the token that follows each position, or -100 to ignore it.
            divisor: what to divide the summed loss by; None means the number of targets that are not
                ignored. Micro-batches of one large batch take the number of targets of the whole.
            out: where to write the gradients; overwritten unless `accumulate`.
            accumulate: add to `out` instead of overwriting it.

        Returns:
            The loss in nats, and the gradients: `out` where it was given.

        Raises:
            ValueError, TypeError: for ids or targets that do not fit, or an `out` of another model or that
                is this model's weights.
        """
        if out is None and accumulate:
            raise ValueError("accumulate needs out, the gradients to add to")
        if out is not None and (out.config != self.config or out.dtype != self.dtype):
            raise ValueError(f"out must be gradients of this model in {self.dtype}, not {out!r}")
        if out is not None and np.may_share_memory(out.flat, self.parameters.flat):
            raise ValueError("out must not be the model's own parameters, which it would overwrite")
        total = Parameters.zeros(self.config, self.dtype) if out is None else out

        def work(shard: int, token_ids: Array, target_ids: Array, divisor: float) -> tuple[float, Parameters]:
            if shard == 0 and not accumulate:
                gradients = total
            else:
                gradients = Parameters(self.config, empty(total.flat.shape, self.dtype))
            x, trunk = self._trunk_forward(token_ids, keep=True)  # (B, T, C)
            head = self.parameters.vocabulary_projection.weight  # (V, C)
            loss, saved = self.ops.linear_cross_entropy.forward(x, head, target_ids, divisor=divisor)
            d_head = gradients.vocabulary_projection.weight  # (V, C)
            d_x, _, _ = self.ops.linear_cross_entropy.backward(1.0, saved, out=(None, d_head, None))
            self._trunk_backward(d_x, trunk, gradients)  # d_x (B, T, C)
            return float(loss), gradients

        results = self._in_shards(work, token_ids, target_ids, divisor)
        others = [gradients.flat for _, gradients in results if gradients is not total]

        def add(part: slice) -> None:
            for other in others:
                total.flat[part] += other[part]

        with self._at_work():
            share_chunks(add, total.flat.size, total.flat.itemsize)
        return sum(loss for loss, _ in results), total

    def _in_shards(
        self,
        work: Callable[[int, Array, Array, float], Result],
        token_ids: ArrayLike,
        target_ids: ArrayLike,
        divisor: float | None,
    ) -> list[Result]:
        """Return work(shard number, token ids, target ids, divisor) of every shard of the batch.

        The sequences of a batch never meet but in the sum of their losses, so threads can take some each,
        and need to meet only once a step: the fastest way where there are enough sequences, and where the
        threads' own gradients are not too large. Otherwise there is one shard, whose operations are shared.
        """
        config = self.config
        token_ids = check_token_ids(token_ids, config.vocabulary_size, config.max_sequence_length)
        target_ids = check_target_ids(target_ids, token_ids.shape, config.vocabulary_size)
        if divisor is None:
            divisor = max(1, int(np.sum(target_ids != IGNORED_TARGET)))
        parameters, team = self.parameters.flat, self._team
        cost = token_ids.size * parameters.size / MULTIPLY_ADDS  # every parameter meets every token once
        is_worthwhile = self._is_tuned and cost >= team.worth_a_thread
        shards = num_shards(len(token_ids), team.size, parameters.nbytes) if is_worthwhile else 1

        def with_workspace(*shard: Any) -> Result:
            # Nothing but gradients and losses outlives a shard, so its memory serves the next call too.
            try:
                workspace = self._spare_workspaces.pop()
            except IndexError:  # the first call, or one beside another that is still running
                workspace = Workspace()
            try:
                with workspace.in_use():
                    return work(*shard)
            finally:
                self._spare_workspaces.append(workspace)

        parts = zip(*(np.array_split(ids, shards) for ids in (token_ids, target_ids)), strict=True)
        tasks = [
            functools.partial(with_workspace, number, *part, divisor) for number, part in enumerate(parts)
        ]
        with blas_threads(1) if shards > 1 else self._at_work():
            return self._team.run(tasks)

    def _at_work(self, *, few_tokens: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this model's threads share each operation; or BLAS's do.

        BLAS's do for the book, and for so few tokens that waking the others costs more than they help.
        """
        return self._team.at_work() if self._is_tuned and not few_tokens else blas_threads(self.threads)

    def _trunk_forward(
        self, token_ids: ArrayLike, cache: Cache | None = None, *, keep: bool = False
    ) -> tuple[Array, TrunkSaved]:
        """Return the last token vectors (B, T, C), normalised, ready for the vocabulary projection.

        Only with `keep` is what the blocks saved kept, for backward.
        """
        table = self.parameters.embedding.token_embedding.weight  # (V, C)
        position = self.parameters.embedding.position_embedding.weight  # (max_sequence_length, C)
        used_ids: Array | slice = slice(None)
        if keep and self.config.tie_weights and self._is_tuned:
            # One matrix, used twice: with a small table of just the rows looked up, their gradient can be
            # added to the head's without going through all the others.
            token_ids = check_token_ids(token_ids, len(table), len(position))  # (B, T)
            used_ids, compact = np.unique(token_ids, return_inverse=True)  # (U,)
            table, token_ids = table[used_ids], compact.reshape(token_ids.shape)  # (U, C), (B, T)
        first_position = cache.length if cache else 0
        x, embedding = self.ops.embedding.forward(token_ids, table, position[first_position:])  # (B, T, C)

        pasts = cache.blocks if cache else [None] * self.config.num_layers
        blocks: list[BlockSaved | ForgottenBlock] = []
        for block, past in zip(self.parameters.transformer_blocks, pasts, strict=True):
            before = x
            x, saved = self._block_forward(before, block, past)  # (B, T, C)
            if keep:
                blocks.append(ForgottenBlock(before, block) if self.recompute else saved)
        if cache:
            cache.length += x.shape[1]
        x, final_norm = self._norm_forward(x, self.parameters.final_norm)  # (B, T, C)
        return x, TrunkSaved(embedding, tuple(blocks), final_norm, used_ids)

    def _trunk_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> None:
        """Write every gradient below the vocabulary projection, whose own is already in `gradients`."""
        d_x, _, _ = self.ops.layer_norm.backward(d_x, saved.final_norm, out=(None, *gradients.final_norm))
        for block, kept in zip(reversed(gradients.transformer_blocks), reversed(saved.blocks), strict=True):
            d_x = self._block_backward(d_x, self._restored(kept), block)  # (B, T, C)

        d_token = gradients.embedding.token_embedding.weight  # (V, C)
        d_position = gradients.embedding.position_embedding.weight  # (max_sequence_length, C)
        if self.config.tie_weights:
            # The head's part already stands in d_token, and the lookup's is added to the rows it is about.
            _, d_lookup, _ = self.ops.embedding.backward(d_x, saved.embedding, out=(None, None, d_position))
            d_token[saved.used_ids] += d_lookup  # (U, C)
        else:
            self.ops.embedding.backward(d_x, saved.embedding, out=(None, d_token, d_position))

    def _block_forward(
        self, x: Array, block: Block, past: BlockCache | None = None
    ) -> tuple[Array, BlockSaved]:
        """Return x (B, T, C) after one block's two residual branches."""
        ops, config = self.ops, self.config

        normed, attention_norm = self._norm_forward(x, block.attention_norm)  # (B, T, C)
        qkv, qkv_saved = ops.linear.forward(normed, *block.attention.qkv)  # (B, T, 3C)
        queries, keys, values = np.split(qkv, 3, axis=-1)  # (B, T, C) each, views
        if past is not None:
            keys, values = past.append(keys, values)  # (B, tokens so far, C) each
        context, attention = ops.attention.forward(queries, keys, values, num_heads=config.num_heads)
        branch, out_proj = ops.linear.forward(context, *block.attention.out_proj)  # (B, T, C)
        x = x + branch  # (B, T, C)

        normed, feed_forward_norm = self._norm_forward(x, block.feed_forward_norm)  # (B, T, C)
        wide, up_proj = ops.linear.forward(normed, *block.feed_forward.up_proj)  # (B, T, 4C)
        gated, gelu = ops.gelu.forward(wide, approximate=GELU_FORM[config.activation])  # (B, T, 4C)
        branch, down_proj = ops.linear.forward(gated, *block.feed_forward.down_proj)  # (B, T, C)
        x = x + branch  # (B, T, C)

        return x, BlockSaved(
            attention_norm, qkv_saved, attention, out_proj, feed_forward_norm, up_proj, gelu, down_proj
        )

    def _restored(self, kept: BlockSaved | ForgottenBlock) -> BlockSaved:
        """Return what a block's operations kept, made again where only its input was."""
        return self._block_forward(*kept)[1] if isinstance(kept, ForgottenBlock) else kept

    def _block_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        """Return d_x (B, T, C) before the block; write the block's gradients into their views."""
        ops = self.ops

        # x = x + down_proj(gelu(up_proj(norm(x)))): d_x goes both ways, and the two meet again by adding.
        d_gated, _, _ = ops.linear.backward(
            d_x, saved.down_proj, out=(None, *gradients.feed_forward.down_proj)
        )  # (B, T, 4C)
        (d_wide,) = ops.gelu.backward(d_gated, saved.gelu)  # (B, T, 4C)
        d_normed, _, _ = ops.linear.backward(
            d_wide, saved.up_proj, out=(None, *gradients.feed_forward.up_proj)
        )  # (B, T, C)
        d_x_through_branch, _, _ = ops.layer_norm.backward(
            d_normed, saved.feed_forward_norm, out=(None, *gradients.feed_forward_norm)
        )  # (B, T, C)
        d_x = d_x + d_x_through_branch  # (B, T, C)

        # x = x + out_proj(attention(split(qkv(norm(x))))): likewise.
        d_context, _, _ = ops.linear.backward(
            d_x, saved.out_proj, out=(None, *gradients.attention.out_proj)
        )  # (B, T, C)
        d_qkv = empty((*d_x.shape[:-1], 3 * d_x.shape[-1]), d_x.dtype)  # (B, T, 3C)
        ops.attention.backward(d_context, saved.attention, out=tuple(np.split(d_qkv, 3, axis=-1)))
        d_normed, _, _ = ops.linear.backward(d_qkv, saved.qkv, out=(None, *gradients.attention.qkv))
        d_x_through_branch, _, _ = ops.layer_norm.backward(
            d_normed, saved.attention_norm, out=(None, *gradients.attention_norm)
        )  # (B, T, C)
        d_x = d_x + d_x_through_branch  # (B, T, C)
        return d_x

    def _norm_forward(self, x: Array, norm: Affine) -> tuple[Array, Saved]:
        return self.ops.layer_norm.forward(x, norm.weight, norm.bias, eps=self.config.layer_norm_eps)

    def named_parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield (name, view) of every parameter, in the order of the forward pass."""
        return self.parameters.named_parameters()

    def state_dict(self) -> dict[str, Array]:
        """Return a copy of every parameter under its name; a tied matrix under both of its names."""
        return self.parameters.state_dict()

    def load_state_dict(self, mapping: Mapping[str, ArrayLike]) -> None:
        """Copy every parameter in, all of them or none; see `Parameters.load_state_dict`."""
        self.parameters.load_state_dict(mapping)

    def __repr__(self) -> str:
        return f"GPT({self.config}, {self.parameters.flat.size:,} parameters, {self.dtype})"


def num_shards(num_sequences: int, threads: int, gradient_bytes: int) -> int:
    """Return into how many parts, one a thread, the kernels' batch is split; see `GPT._in_shards`."""
    copies = (threads - 1) * gradient_bytes
    return threads if num_sequences >= threads and copies <= GRADIENT_COPIES_BYTES else 1


def initial_parameters(config: GPTConfig, seed: int, dtype: DTypeLike) -> Parameters:
    """Return random weights as GPT-2 draws them.

    They are drawn in float64 and rounded, so that a float32 and a float64 model of one seed are the same
    model. Source: Radford et al. 2019, section 2.3, for the scaling of the residual branches.
    """
    random = np.random.default_rng(seed)
    parameters = Parameters.zeros(config, dtype)
    for name, view in parameters.named_parameters():
        if view.ndim == 2:
            into_residual = name.endswith(("out_proj.weight", "down_proj.weight"))
            std = INITIAL_STD / math.sqrt(2 * config.num_layers) if into_residual else INITIAL_STD
            view[...] = random.normal(0, std, view.shape)
        elif name.endswith("weight"):
            view[...] = 1  # layer norms start as plain normalisation
    return parameters
