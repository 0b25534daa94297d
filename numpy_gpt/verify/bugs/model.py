"""Bugs of the model: right operations, wrongly put together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.model import GPT, BlockSaved, Saved, TrunkSaved
from numpy_gpt.parameters import Affine, Block, Parameters
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


class GPTInParts(GPT):
    """Right: GPT's backward with a method for each of its parts, so that a bug is one short method."""

    def _trunk_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> None:
        d_x = self._final_norm_backward(d_x, saved, gradients)  # (B, T, C)
        d_x = self._blocks_backward(d_x, saved, gradients)  # (B, T, C)
        self._embedding_backward(d_x, saved, gradients)

    def _final_norm_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> Array:
        d_x, _, _ = self.ops.layer_norm.backward(d_x, saved.final_norm, out=(None, *gradients.final_norm))
        return d_x

    def _blocks_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> Array:
        blocks = zip(gradients.transformer_blocks, saved.blocks, strict=True)
        for d_block, block_saved in reversed(list(blocks)):
            d_x = self._block_backward(d_x, self._restored(block_saved), d_block)  # (B, T, C)
        return d_x

    def _block_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        d_x = d_x + self._feed_forward_backward(d_x, saved, gradients)  # (B, T, C)
        d_x = d_x + self._attention_backward(d_x, saved, gradients)  # (B, T, C)
        return d_x

    def _feed_forward_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        ops, feed_forward = self.ops, gradients.feed_forward
        d_gated, _, _ = ops.linear.backward(d_x, saved.down_proj, out=(None, *feed_forward.down_proj))
        (d_wide,) = ops.gelu.backward(d_gated, saved.gelu)  # (B, T, 4C)
        d_normed, _, _ = ops.linear.backward(d_wide, saved.up_proj, out=(None, *feed_forward.up_proj))
        return self._norm_backward(d_normed, saved.feed_forward_norm, gradients.feed_forward_norm)

    def _attention_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        ops, attention = self.ops, gradients.attention
        d_context, _, _ = ops.linear.backward(d_x, saved.out_proj, out=(None, *attention.out_proj))
        d_queries, d_keys, d_values = ops.attention.backward(d_context, saved.attention)  # (B, T, C) each
        d_qkv = np.concatenate((d_queries, d_keys, d_values), axis=-1)  # (B, T, 3C)
        d_normed, _, _ = ops.linear.backward(d_qkv, saved.qkv, out=(None, *attention.qkv))
        return self._norm_backward(d_normed, saved.attention_norm, gradients.attention_norm)

    def _norm_backward(self, d_normed: Array, saved: Saved, gradients: Affine) -> Array:
        d_x: Array
        d_x, _, _ = self.ops.layer_norm.backward(d_normed, saved, out=(None, *gradients))  # (B, T, C)
        return d_x

    def _embedding_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> None:
        _, d_token, d_position = self.ops.embedding.backward(d_x, saved.embedding)
        gradients.embedding.position_embedding.weight[...] = d_position
        if self.config.tie_weights:
            gradients.embedding.token_embedding.weight[saved.used_ids] += d_token  # to the head's part
        else:
            gradients.embedding.token_embedding.weight[...] = d_token


class HeadPartLost(GPTInParts):
    """Wrong when tied: the lookup's gradient overwrites the head's."""

    def _embedding_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> None:
        _, d_token, d_position = self.ops.embedding.backward(d_x, saved.embedding)
        gradients.embedding.position_embedding.weight[...] = d_position
        gradients.embedding.token_embedding.weight[...] = d_token


class LookupPartLost(GPTInParts):
    """Wrong when tied: the matrix learns as a head only."""

    def _embedding_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> None:
        _, d_token, d_position = self.ops.embedding.backward(d_x, saved.embedding)
        gradients.embedding.position_embedding.weight[...] = d_position
        if not self.config.tie_weights:
            gradients.embedding.token_embedding.weight[...] = d_token


class FinalNormSkipped(GPTInParts):
    """Wrong: the gradient of the normalised vectors is taken for that of the vectors."""

    def _final_norm_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> Array:
        self.ops.layer_norm.backward(d_x, saved.final_norm, out=(None, *gradients.final_norm))
        return d_x


class BlocksInForwardOrder(GPTInParts):
    """Wrong for more than one block: backward goes through them first to last."""

    def _blocks_backward(self, d_x: Array, saved: TrunkSaved, gradients: Parameters) -> Array:
        blocks = zip(gradients.transformer_blocks, saved.blocks, strict=True)
        for d_block, block_saved in blocks:
            d_x = self._block_backward(d_x, self._restored(block_saved), d_block)  # (B, T, C)
        return d_x


class ResidualDropped(GPTInParts):
    """Wrong: the gradient goes through the branches and not past them."""

    def _block_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        d_x = self._feed_forward_backward(d_x, saved, gradients)
        d_x = self._attention_backward(d_x, saved, gradients)
        return d_x


class BranchesInParallel(GPTInParts):
    """Wrong: attention's branch gets the gradient from above the feed-forward branch."""

    def _block_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        d_feed_forward = self._feed_forward_backward(d_x, saved, gradients)  # (B, T, C)
        d_attention = self._attention_backward(d_x, saved, gradients)
        return d_x + d_feed_forward + d_attention  # (B, T, C)


class KeysBeforeQueries(GPTInParts):
    """Wrong: forward splits into queries, keys, values; backward joins keys, queries, values."""

    def _attention_backward(self, d_x: Array, saved: BlockSaved, gradients: Block) -> Array:
        ops, attention = self.ops, gradients.attention
        d_context, _, _ = ops.linear.backward(d_x, saved.out_proj, out=(None, *attention.out_proj))
        d_queries, d_keys, d_values = ops.attention.backward(d_context, saved.attention)  # (B, T, C) each
        d_qkv = np.concatenate((d_keys, d_queries, d_values), axis=-1)
        d_normed, _, _ = ops.linear.backward(d_qkv, saved.qkv, out=(None, *attention.qkv))
        return self._norm_backward(d_normed, saved.attention_norm, gradients.attention_norm)


class EpsNotPassedOn(GPT):
    """Wrong for a configuration with another eps than the operation's default."""

    def _norm_forward(self, x: Array, norm: Affine) -> tuple[Array, Saved]:
        return self.ops.layer_norm.forward(x, norm.weight, norm.bias)


class GradientsNeverCleared(GPT):
    """Wrong for `out` without `accumulate`: adds to the last step's gradients."""

    def loss_and_gradients(
        self,
        token_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        divisor: float | None = None,
        out: Parameters | None = None,
        accumulate: bool = False,
    ) -> tuple[float, Parameters]:
        """Return loss and gradients."""
        accumulate = out is not None
        return super().loss_and_gradients(
            token_ids, target_ids, divisor=divisor, out=out, accumulate=accumulate
        )


class OneGradientForAll(GPT):
    """Wrong without `out`: every call returns the same arrays."""

    _gradients: Parameters | None = None

    def loss_and_gradients(
        self,
        token_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        divisor: float | None = None,
        out: Parameters | None = None,
        accumulate: bool = False,
    ) -> tuple[float, Parameters]:
        """Return loss and gradients."""
        if self._gradients is None:
            self._gradients = Parameters.zeros(self.config, self.dtype)
        return super().loss_and_gradients(
            token_ids, target_ids, divisor=divisor, out=out or self._gradients, accumulate=accumulate
        )


BUGS = (
    Bug(
        name="model-tied-head-part-lost",
        where="model",
        title="The tied matrix learns as an embedding only",
        line="gradients.embedding.token_embedding.weight[...] = d_token",
        lesson="A tied matrix is used twice, as the lookup at the bottom and as the head at the top, and "
        "its gradient is the sum of both uses. Backward meets the head first and the lookup last, and the "
        "last writer overwrites. That is right for the one parameter with one use that every other one is, "
        "and wrong for the one with two.",
        in_practice="The loss falls, slower, and ends above right code's. An untied model is right.",
        fools=("loss_falls",),
        subject=RIGHT._replace(model=HeadPartLost),
    ),
    Bug(
        name="model-tied-lookup-part-lost",
        where="model",
        title="The tied matrix learns as a head only",
        line="if not self.config.tie_weights:",
        lesson="Frameworks skip a tied parameter when they list parameters, to update it once; it is "
        "tempting to skip it in backward as well. But its gradient needs the lookup's part: rows of tokens "
        "that were read. The head's part is dense and the lookup's sparse, so hardly a norm or a plot "
        "gives it away.",
        in_practice="The loss falls as with right code. An untied model is right; finite differences of "
        "the tied matrix are not met in the rows of tokens that occur in the batch.",
        fools=("loss_falls",),
        subject=RIGHT._replace(model=LookupPartLost),
    ),
    Bug(
        name="model-final-norm-skipped",
        where="model",
        title="Backward goes around the final layer norm",
        line="self.ops.layer_norm.backward(d_x, saved.final_norm, out=(None, *gradients.final_norm))",
        lesson="The call is there, its parameters get their gradients, and what it returns, the gradient "
        "of its input, is not taken up. In Python nothing reminds of an unused result. Everything below "
        "the norm then learns from a gradient that is scaled differently for each token and still points "
        "along directions that the norm removes.",
        in_practice="The loss falls, and ends far above right code's. The gradients of the final norm and "
        "of an untied head are right, everything below is wrong: the place where a list of errors begins "
        "is the place of the bug.",
        fools=("loss_falls",),
        subject=RIGHT._replace(model=FinalNormSkipped),
    ),
    Bug(
        name="model-blocks-in-forward-order",
        where="model",
        title="Backward goes through the blocks first to last",
        line="for d_block, block_saved in blocks:",
        lesson="The loop was copied from forward and `reversed` forgotten. Each block's backward is right, "
        "and gets the gradient of another place. With one block there is only one order; with more, all "
        "shapes are equal, since every block maps (B, T, C) to (B, T, C).",
        in_practice="The loss falls at first as with right code, and then climbs again, which looks like a "
        "learning rate that is too high. One layer is right, each operation is right.",
        fools=("loss_falls",),
        subject=RIGHT._replace(model=BlocksInForwardOrder),
    ),
    Bug(
        name="model-residual-dropped",
        where="model",
        title="The gradient goes through the branches and not past them",
        line="d_x = self._feed_forward_backward(d_x, saved, gradients)",
        lesson="x + f(x) uses x twice. Its gradient is d_x, straight past the branch, plus what comes back "
        "through f. To assign the branch's result to d_x drops the first, which is what residual "
        "connections exist for: with it the lowest block gets its gradient undiminished, without it only "
        "what survives all branches above.",
        in_practice="The loss hardly falls, however long one waits. Only what lies above the topmost "
        "branch has a right gradient.",
        fools=(),
        subject=RIGHT._replace(model=ResidualDropped),
    ),
    Bug(
        name="model-branches-in-parallel",
        where="model",
        title="Attention's branch misses the gradient through the feed-forward branch",
        line="d_attention = self._attention_backward(d_x, saved, gradients)",
        lesson="A block has two additions, one after the other. What attention adds is read by everything "
        "above, the feed-forward branch of the same block too, so attention's gradient is d_x after that "
        "branch's part has been added. Both branches fed from the same d_x would be right for a block that "
        "computes them side by side, as some models do.",
        in_practice="The loss falls, sometimes slower at first, and ends where right code ends. The "
        "gradients of the topmost feed-forward branch are right, of its attention and of all below wrong.",
        fools=("loss_falls",),
        subject=RIGHT._replace(model=BranchesInParallel),
    ),
    Bug(
        name="model-keys-before-queries",
        where="model",
        title="Forward splits queries, keys, values; backward joins keys, queries, values",
        line="d_qkv = np.concatenate((d_keys, d_queries, d_values), axis=-1)",
        lesson="Three arrays of one shape, and an order that nothing but the two lines knows. Where the "
        "order in which things are joined has to match the one in which they are split, it should be "
        "written once: the model here hands slices of one d_qkv to attention's backward, in the order of "
        "the split.",
        in_practice="The loss falls as with right code. At fresh weights the gradients of queries and keys "
        "are smaller than the tolerance, and the check passes. W_key's bias has a gradient that is not "
        "zero.",
        fools=("loss_falls", "fresh_weights"),
        subject=RIGHT._replace(model=KeysBeforeQueries),
    ),
    Bug(
        name="model-eps-not-passed-on",
        where="model",
        title="The configuration's eps is never used",
        line="return self.ops.layer_norm.forward(x, norm.weight, norm.bias)",
        lesson="The operation has a default, so a call without eps runs, and equals the configuration's "
        "eps for every model with the usual one. A value that has a default in two places is wrong in one "
        "of them sooner or later; and forward and backward will agree about it.",
        in_practice="Every gradient check passes. With the usual eps of 1e-5 nothing is wrong at all; with "
        "1e-3 in the configuration the model trains as one with 1e-5.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=EpsNotPassedOn),
    ),
    Bug(
        name="model-gradients-never-cleared",
        where="model",
        title="Each step adds its gradient to all before",
        line="accumulate = out is not None",
        lesson="The forgotten zero_grad. The gradient vector is used again to save memory, and each call "
        "adds to it, which is what several micro-batches of one step want and what the next step does not. "
        "What is followed is the sum of all gradients since the start.",
        in_practice="Every gradient check passes. The loss falls slower and with more noise, and here ends "
        "where right code ends, as the learning rate runs out. Two equal calls with one `out` differ.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=GradientsNeverCleared),
    ),
    Bug(
        name="model-one-gradient-for-all",
        where="model",
        title="Two calls return the same arrays",
        line="token_ids, target_ids, divisor=divisor, out=out or self._gradients, accumulate=accumulate",
        lesson="A gradient is large and a new one per step is slow, so it is kept and used again, unasked. "
        "Whoever compares the gradients of two batches, or sums them, then holds the second one twice. "
        "What a call returns belongs to the caller; whoever wants it overwritten says so with `out=`.",
        in_practice="Training and every gradient check use a gradient before asking for the next, and are "
        "right. Keep one, ask for another, and the first has changed.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=OneGradientForAll),
    ),
)
