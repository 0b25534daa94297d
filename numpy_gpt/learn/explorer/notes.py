"""Where gradients add and where they vanish, step by step, with the numbers of this very step as evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.arrays import ArrayStore
from numpy_gpt.learn.explorer.experiment import CLIP_NORM, Experiment
from numpy_gpt.learn.explorer.lessons import inline
from numpy_gpt.learn.explorer.recording import Call
from numpy_gpt.learn.explorer.steps import ATTENTION, RESIDUALS, Step
from numpy_gpt.learn.explorer.views import Note, Tensor
from numpy_gpt.learn.explorer.watching import Execution
from numpy_gpt.parameters import TOKEN_EMBEDDING

FLAT_SLOPE = 0.05


class NoteWriter:
    """Writes the notes of each step.

    Args:
        experiment: what was computed.
        store: takes the arrays that are shown.
    """

    def __init__(self, experiment: Experiment, store: ArrayStore) -> None:
        self.experiment = experiment
        self.calls = experiment.calls
        self.store = store
        self.B, self.T = experiment.batch.token_ids.shape

    def notes_of(self, step: Step) -> tuple[Note, ...]:
        """Return what there is to say about a step."""
        writers = {
            "embedding": self._embedding,
            "attention_norm": lambda: self._norm(1),
            "qkv": self._qkv,
            "attention": self._attention,
            "out_proj": lambda: self._linear(4),
            "add_attention": lambda: self._residual(step),
            "feed_forward_norm": lambda: self._norm(5),
            "up_proj": lambda: self._linear(6),
            "gelu": self._gelu,
            "down_proj": lambda: self._linear(8),
            "add_feed_forward": lambda: self._residual(step),
            "final_norm": lambda: self._norm(9),
            "loss": self._loss,
            "update": self._update,
        }
        return tuple(writers[step.key]())

    def _embedding(self) -> Iterator[Note]:
        batch, call = self.experiment.batch, self.calls[0]
        d_x, lookup = call.d_out, call.gradients["token_weight"]
        token, count = Counter(batch.token_ids.ravel().tolist()).most_common(1)[0]
        word = batch.vocabulary[token]
        if count > 1:
            places = np.argwhere(batch.token_ids == token)
            uses = d_x[batch.token_ids == token]  # (count, C)
            rows = (*(f"sequence {b}, position {t}" for b, t in places), "their sum")
            yield _note(
                "adds",
                f"“{word}” is looked up {count} times, so its row adds {count} gradients",
                "Forward copied one row to several places. Each place sends its own gradient back, and all "
                "of them belong to that one row. What is copied forward is added backward.",
                self.store.tensor("d_x", np.vstack([uses, uses.sum(0)]), ("use", "C"), rows=rows),
            )
        rows = (*(f"sequence {b}" for b in range(self.B)), "their sum")
        yield _note(
            "adds",
            f"Each position is used by {self.B} sequences",
            "The position table is broadcast over the batch, and a broadcast is a copy too. For position 0:",
            self.store.tensor("d_x", np.vstack([d_x[:, 0], d_x[:, 0].sum(0)]), ("use", "C"), rows=rows),
        )
        yield _note(
            "adds",
            "One matrix, used twice: the weights are tied",
            "The token table is also the vocabulary projection. Its gradient is what the loss sent, plus "
            "what the lookup sent; in the model it is the line `d_token += d_lookup`.",
            self.store.tensor("from the loss", self.calls[10].gradients["weight"], ("V", "C")),
            self.store.tensor("from the lookup", lookup, ("V", "C")),
            self.store.tensor("together", self.experiment.gradients[TOKEN_EMBEDDING], ("V", "C")),
        )
        unread = [w for v, w in enumerate(batch.vocabulary) if v not in batch.token_ids]
        if unread:
            yield _note(
                "vanishes",
                "Tokens that are never read get nothing from the lookup",
                f"{_listed(unread)} only ever came last. The loss alone teaches such a row, through the tie.",
            )
        unused = len(call.inputs["position_weight"]) - self.T
        if unused:
            yield _note(
                "vanishes",
                f"The last {unused} positions get none at all",
                f"This batch is {self.T} tokens long. The rows beyond have a gradient all the same, exactly "
                "zero, and a backward pass that writes into old memory has to say so.",
            )

    def _linear(self, place: int) -> Iterator[Note]:
        call = self.calls[place]
        n = self.B * self.T
        yield self._by_hand(call)
        rows = (*(f"{token} ({b}, {t})" for token, b, t in self._places()), "their sum")
        d_rows = call.d_out.reshape(n, -1)[:, :8]
        yield _note(
            "adds",
            f"The same weights met {n} tokens, so {n} gradients add",
            f"All {self.B} × {self.T} tokens of the batch are only more rows. The bias is added to each of "
            "them, so its gradient is the sum of what arrives at each (its first eight numbers):",
            self.store.tensor("d_y", np.vstack([d_rows, d_rows.sum(0)]), ("use", "n"), rows=rows),
        )

    def _by_hand(self, call: Call) -> Note:
        """Show how one number of a linear operation is made."""
        x, weights = call.inputs["x"][0, -1], call.inputs["weight"][0]  # (in,) each
        products, bias = x * weights, float(call.inputs["bias"][0])
        token = self._tokens(0)[-1]
        return _note(
            "look",
            "One number by hand, and the same weights for every token",
            f"The vector of “{token}”, the last token of sequence 0, times row 0 of the weight, number by "
            f"number: the products add up to {products.sum():.4f}, and with the bias {bias:.4f} that is "
            f"{call.out[0, -1, 0]:.4f}, the first number of what comes out for this token. The same row and "
            "the same bias are used for every token of both sequences: a batch is only more rows.",
            self.store.tensor(
                "x, weight and product",
                np.stack([x, weights, products]),
                ("use", "n"),
                rows=("x", "W", "x · W"),
            ),
        )

    def _qkv(self) -> Iterator[Note]:
        yield from self._linear(2)
        gradients = self.experiment.gradients
        names = [f"{ATTENTION}.{name}.bias" for name in ("W_query", "W_key", "W_value")]
        sizes = np.array([np.abs(gradients[name]).max() for name in names])
        yield _note(
            "vanishes",
            "The keys' bias has no gradient: zero by symmetry",
            "Adding one vector to all keys adds one number to all scores of a query, and softmax ignores "
            "that. So nothing can be gained by changing it. What a program computes for it is rounding "
            "noise, far below the others; an error relative to it would mean nothing. The largest gradient "
            "of each bias:",
            self.store.tensor("largest", sizes[:, None], ("use", "n"), rows=("W_query", "W_key", "W_value")),
        )
        if self.T == 1:
            yield _note(
                "vanishes",
                "One token: queries and keys do not matter",
                "With a single key every weight is 1, whatever the score. W_query and W_key have no "
                "gradient.",
            )

    def _attention(self) -> Iterator[Note]:
        call = self.calls[3]
        assert call.backward is not None
        forward, backward = call.forward, call.backward
        softmax = call.forward.within("softmax_forward")
        q = call.saved.queries  # (B, H, T, D)
        weights = call.saved.softmax.y  # (B, H, T, T)
        scores = _last(forward, "scores")  # (B, H, T, T)
        d_scores = _last(backward, "d_scores")  # (B, H, T, T)
        yield _note(
            "look",
            "Heads are split off, not mixed",
            "A reshape cuts every vector of C numbers into H heads of D, and a transpose brings the heads "
            "before the tokens: (B, T, C) → (B, T, H, D) → (B, H, T, D). No number changes; each head of "
            "each sequence now has a (T, D) table of its own. Joining is the same way back.",
            self.store.tensor("queries", call.inputs["queries"], ("B", "T", "HD")),
            self.store.tensor("q", q, ("B", "H", "T", "D")),
        )
        yield _note(
            "look",
            "One mask for all",
            "The mask is one (T, T) table: 1 marks the future. It is broadcast over every sequence and every "
            "head, where it turns scores into -∞, and softmax turns -∞ into a weight of exactly zero.",
            self.store.tensor("mask", _last(forward, "mask"), ("Tq", "Tk")),
            self.store.tensor("scores", scores, ("B", "H", "Tq", "Tk")),
            self.store.tensor("weights", softmax.returned[0], ("B", "H", "Tq", "Tk")),
        )
        parts = d_scores[0, 0, :, 0, None] * q[0, 0]  # (T, D)
        readers = [f"query of “{token}”" for token in self._tokens(0)]
        yield _note(
            "adds",
            "A key is read by every later query",
            f"In head 0 of sequence 0 the key of “{self._tokens(0)[0]}” is seen by {self.T} queries. Each "
            "sends back its query, times the gradient of the one score that the two made. Values add "
            "likewise; a query is read once.",
            self.store.tensor(
                "d_k", np.vstack([parts, parts.sum(0)]), ("use", "D"), rows=(*readers, "their sum")
            ),
        )
        yield _note(
            "vanishes",
            "The future stays out, exactly",
            f"{int((weights == 0).sum())} of the {weights.size} weights are zero, and a score whose weight "
            "is zero has no gradient. Nothing that a token's future contains can flow back through it.",
        )
        yield _note(
            "vanishes",
            "The first token has nothing to choose",
            "It sees itself alone: its weight is 1 whatever its score, so its row of the scores' gradient is "
            f"zero. And every other row sums to zero, here to {np.abs(d_scores.sum(-1)).max():.0e} at most: "
            "a shift of all scores changes nothing.",
            self.store.tensor("d_scores", d_scores, ("B", "H", "Tq", "Tk")),
        )

    def _residual(self, step: Step) -> Iterator[Note]:
        d_x = self.calls[RESIDUALS[step.key].last].d_out
        d_branch = self.calls[RESIDUALS[step.key].first].gradients["x"]
        yield _note(
            "adds",
            "The gradient goes both ways, and the two meet again by adding",
            "Adding hands the arriving gradient to both its inputs unchanged. One copy runs past the branch, "
            "the other through it, last operation first; where the branch began, they add. So however deep a "
            "model is, a part of the loss's gradient reaches every layer undiminished.",
            self.store.tensor("past the branch", d_x, ("B", "T", "C")),
            self.store.tensor("through the branch", d_branch, ("B", "T", "C")),
            self.store.tensor("together", d_x + d_branch, ("B", "T", "C")),
        )

    def _norm(self, place: int) -> Iterator[Note]:
        call = self.calls[place]
        d_x, normalized = call.gradients["x"], call.saved.normalized
        along = np.stack([d_x.mean(-1), (d_x * normalized).mean(-1), np.abs(d_x).max(-1)])  # (3, B, T)
        rows = ("mean of d_x", "mean of d_x · n", "largest of d_x")
        yield _note(
            "adds",
            f"Scale and shift are shared by {self.B * self.T} tokens",
            "Each token is normalised on its own, but all of them are scaled by one weight and shifted by "
            "one bias, whose gradients sum over every token of every sequence.",
        )
        yield _note(
            "vanishes",
            "No gradient along what the norm removes",
            "Adding a constant to a token's vector or scaling it changes nothing that comes out, so `d_x` "
            "has no mean and no component along n. The second is zero but for ε. For each token:",
            self.store.tensor("d_x", along.reshape(3, -1).T, ("N", "use"), rows=rows),
        )

    def _gelu(self) -> Iterator[Note]:
        call = self.calls[7]
        x, y = call.inputs["x"], call.out
        slope = np.divide(call.gradients["x"], call.d_out, out=np.zeros_like(x), where=call.d_out != 0)
        closed = int(np.sum(np.abs(slope) < FLAT_SLOPE))
        yield _note(
            "look",
            "Nothing adds here",
            "Every number goes through on its own, so every gradient comes back on its own, times the slope "
            "at its x.",
            self.store.tensor("y", y, ("B", "T", "n")),
            self.store.tensor("slope", slope, ("B", "T", "n")),
        )
        yield _note(
            "vanishes",
            "Where the gate is shut, hardly any gradient passes",
            f"At {closed} of the {x.size} numbers the slope is below {FLAT_SLOPE}: what these patterns say "
            "does not count for this token, and they do not learn from it.",
        )

    def _loss(self) -> Iterator[Note]:
        call = self.calls[10]
        probabilities = call.saved.cross_entropy.probabilities  # (B, T, V)
        inner = call.forward.within("cross_entropy_forward")
        assert call.backward is not None
        d_logits = call.backward.within("cross_entropy_backward").returned[0]
        yield _note(
            "look",
            "The gradient is what was predicted, minus what came",
            "Row t of the logits predicts token t + 1, at every position at once. Softmax and logarithm are "
            "differentiated together, and what is left is the probability, with 1 taken away at the token "
            f"that came, over the {self.B * self.T} positions that the loss is a mean of.",
            self.store.tensor("logits", inner.arguments["logits"], ("B", "T", "V")),
            self.store.tensor("probabilities", probabilities, ("B", "T", "V")),
            self.store.tensor("d_logits", d_logits, ("B", "T", "V")),
        )
        yield _note(
            "vanishes",
            "Every row of the logits' gradient sums to zero",
            f"Here to {np.abs(d_logits.sum(-1)).max():.0e} at most. Raising all logits of a position "
            "together changes no probability, so there is nothing to gain in that direction.",
        )
        yield _note(
            "adds",
            "Every position teaches every row",
            f"The {self.B * self.T} positions share one vocabulary projection: their gradients add, the rows "
            "of tokens that came and of those that did not. As the weights are tied, the lookup's part is "
            "added to this at the other end of the model.",
            self.store.tensor("d_weight", call.gradients["weight"], ("V", "C")),
        )

    def _update(self) -> Iterator[Note]:
        e = self.experiment
        before, after = e.optimizer_before, e.optimizer_after
        name = f"{ATTENTION}.W_value.weight"
        length = f"Its length over all {e.gradients.flat.size:,} numbers is {e.norm:.3f}"
        if e.norm > CLIP_NORM:
            what = f"every number is multiplied by {CLIP_NORM / e.norm:.3f}, which keeps the direction."
        else:
            what = f"that is within {CLIP_NORM}, and nothing is changed."
        yield _note(
            "look",
            "One factor for the whole gradient",
            f"{length}: {what} For W_value:",
            self.store.tensor("gradient", e.gradients[name], ("n", "n")),
            self.store.tensor("clipped", e.clipped[name], ("n", "n")),
        )
        yield _note(
            "look",
            f"Step {after.steps_taken} of AdamW",
            "The running mean of the gradient, divided by the root of the running mean of its square: nearly "
            "the same step for a weight with large gradients as for one with small ones.",
            self.store.tensor("m before", before.first_moment[name], ("n", "n")),
            self.store.tensor("m after", after.first_moment[name], ("n", "n")),
            self.store.tensor("v after", after.second_moment[name], ("n", "n")),
            self.store.tensor("weight before", e.model.parameters[name], ("n", "n")),
            self.store.tensor("step", after.parameters[name] - e.model.parameters[name], ("n", "n")),
        )

    def _tokens(self, sequence: int) -> list[str]:
        return self.experiment.batch.tokens(self.experiment.batch.token_ids)[sequence]

    def _places(self) -> Iterator[tuple[str, int, int]]:
        for b in range(self.B):
            for t, token in enumerate(self._tokens(b)):
                yield token, b, t


def _last(execution: Execution, name: str) -> Array:
    """Return what a variable held when the function ended."""
    found: Array = [values[name] for values in execution.lines.values() if name in values][-1]
    return found


def _note(kind: str, title: str, text: str, *tensors: Tensor) -> Note:
    return Note(kind, title, tuple(inline(text)), tensors)


def _listed(words: list[str]) -> str:
    quoted = [f"“{word}”" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
