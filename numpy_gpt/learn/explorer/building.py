"""From a recorded step to what the page says."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.arrays import ArrayStore
from numpy_gpt.learn.explorer.code_views import PartWriter
from numpy_gpt.learn.explorer.experiment import CLIP_NORM, Experiment
from numpy_gpt.learn.explorer.mistake_views import mistakes_of
from numpy_gpt.learn.explorer.notes import NoteWriter
from numpy_gpt.learn.explorer.nudging import nudge
from numpy_gpt.learn.explorer.recording import Call
from numpy_gpt.learn.explorer.steps import QKV, RESIDUALS, STEPS, Step
from numpy_gpt.learn.explorer.views import BatchView, Comparison, Gradient, Page, StepView, Tensor
from numpy_gpt.ops import book
from numpy_gpt.verify.measure import CANCELLED_SHARE, SYMMETRY_SHARE, largest, relative_error
from numpy_gpt.verify.twin import twin_gradients


def build_page(experiment: Experiment) -> Page:
    """Return everything that the page shows of one training step."""
    return _Builder(experiment).page()


class _Builder:
    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.store = ArrayStore()
        self.torch = twin_gradients(experiment.model, *experiment.ids)
        self.scale = largest(experiment.gradients)
        self.notes = NoteWriter(experiment, self.store)
        self.worst: dict[str, float] = {}

    def page(self) -> Page:
        e, config = self.experiment, self.experiment.model.config
        B, T = e.batch.token_ids.shape
        steps = tuple(self._step(step, number) for number, step in enumerate(STEPS, 1))
        sizes = (
            ("B", "sequences in the batch", B),
            ("T", "tokens in each", T),
            ("V", "tokens in the vocabulary", config.vocabulary_size),
            ("C", "numbers in a token's vector", config.embedding_dim),
            ("H", "attention heads", config.num_heads),
            ("D", "numbers per head, C / H", config.head_dim),
            ("L", "transformer block", config.num_layers),
        )
        return Page(
            sizes=sizes,
            num_parameters=e.model.parameters.flat.size,
            steps_before=e.steps_before,
            loss=e.loss,
            loss_after=e.loss_after,
            even_guess=math.log(config.vocabulary_size),
            has_torch=bool(self.torch),
            worst=self.worst,
            batch=self._batch(),
            steps=steps,
            arrays=self.store.entries,
            labels=self._labels(),
        )

    def _labels(self) -> dict[str, Any]:
        """Return the names of an axis's entries; of T, those of each sequence."""
        batch, C = self.experiment.batch, self.experiment.model.config.embedding_dim
        rows = batch.tokens(batch.token_ids)
        return {
            **dict.fromkeys(("T", "Tq", "Tk"), rows),
            "N": [token for row in rows for token in row],
            "V": list(batch.vocabulary),
            "3C": [f"{name[2]}{c}" for name in QKV for c in range(C)],
            "head_dim": self.experiment.model.config.head_dim,
        }

    def _batch(self) -> BatchView:
        batch = self.experiment.batch
        probabilities = self.experiment.calls[-1].saved.cross_entropy.probabilities  # (B, T, V)
        chances = np.take_along_axis(probabilities, batch.target_ids[..., None], -1)[..., 0]  # (B, T)
        words = batch.vocabulary
        rows = tuple(
            tuple(
                (words[i], int(i), words[j], int(j), float(chance))
                for i, j, chance in zip(ids, targets, chances_of_row, strict=True)
            )
            for ids, targets, chances_of_row in zip(batch.token_ids, batch.target_ids, chances, strict=True)
        )
        targets = self.store.tensor("targets", batch.target_ids, ("B", "T"))
        shown = self.store.tensor("probabilities", probabilities, ("B", "T", "V"))
        marked = dataclasses.replace(shown, mark=targets.array)
        return BatchView(batch.unit, rows, batch.is_whole, marked)

    # ---- steps --------------------------------------------------------------------------------------------

    def _step(self, step: Step, number: int) -> StepView:
        summary = step.summary.format(clip_norm=CLIP_NORM)
        common = {
            "key": step.key,
            "title": step.title,
            "summary": summary,
            "number": number,
            "in_branch": step.in_branch,
            "notes": self.notes.notes_of(step),
            "mistakes": tuple(mistakes_of(step, self.experiment, self.store)),
        }
        if step.key == "update":
            return self._update(step, common)
        if step.place is None:
            return self._residual(step, common)
        return self._operation(step, self.experiment.calls[step.place], common)

    def _operation(self, step: Step, call: Call, common: dict[str, Any]) -> StepView:
        op = getattr(book, call.op)
        documented = _documented_shapes(op.forward)

        def tensor(name: str, value: Array | float, shape: str, remark: str = "") -> Tensor:
            return self.store.tensor(name, value, shape, remark, renamed=step.axes)

        inputs = tuple(
            tensor(name, value, documented.get(name, ""), _stacked(step.parameters.get(name, ())))
            for name, value in call.inputs.items()
        )
        out = tensor(step.out_name, call.out, _out_shape(op.forward))
        replay = self.experiment.replay
        leaves = tuple(
            self._gradient(
                tensor(f"d_{name}", gradient, documented.get(name, "")),
                gradient,
                _stacked(step.parameters.get(name, ())),
                {"finite differences": replay.slopes(call, name), "torch": self._torch_gradient(step, name)},
            )
            for name, gradient in call.gradients.items()
        )
        arrives = self._gradient(
            tensor(f"d_{step.out_name}", call.d_out, _out_shape(op.forward)),
            np.asarray(call.d_out),
            "",
            {"torch": self._torch(*step.torch_out)},
        )
        nudges = tuple(
            nudge(self.experiment, call, name, (step.parameters.get(name) or (name,))[0])
            for name in sorted(call.gradients, key=lambda name: name not in step.parameters)  # weights first
        )
        first = next(iter(call.gradients.values()))
        return StepView(
            op=call.op,
            out_shape=out.shape,
            back_shape=_plain_shape(first.shape),
            parts=PartWriter(step, self.store).of_operation(call),
            inputs=inputs,
            outputs=(out,),
            saved=tuple(self._saved(call.saved, step)),
            arrives=(arrives,),
            leaves=leaves,
            nudges=nudges,
            **common,
        )

    def _residual(self, step: Step, common: dict[str, Any]) -> StepView:
        places, calls = RESIDUALS[step.key], self.experiment.calls
        stream, branch = calls[places.first].inputs["x"], calls[places.last].out
        total, d_x = calls[places.after].inputs["x"], calls[places.last].d_out
        axes = ("B", "T", "C")
        tensor = self.store.tensor
        d_total = self._gradient(tensor("d_x", d_x, axes), d_x, "", {"torch": self._torch(places.torch)})
        return StepView(
            op="add",
            out_shape=tensor("x", total, axes).shape,
            back_shape=_plain_shape(d_x.shape),
            parts=(PartWriter(step, self.store).of_residual(),),
            inputs=(tensor("x", stream, axes), tensor("branch", branch, axes)),
            outputs=(tensor("x", total, axes, "x + branch"),),
            arrives=(d_total,),
            leaves=(
                self._gradient(tensor("d_branch", d_x, axes, "the same numbers"), d_x, "", {}),
                self._gradient(tensor("d_x", d_x, axes, "the same numbers, past the branch"), d_x, "", {}),
            ),
            **common,
        )

    def _update(self, step: Step, common: dict[str, Any]) -> StepView:
        return StepView(
            op="adamw",
            out_shape=f"{self.experiment.model.parameters.flat.size:,} parameters",
            back_shape="every gradient",
            parts=(PartWriter(step, self.store).of_update(),),
            **common,
        )

    # ---- arrays -------------------------------------------------------------------------------------------

    def _saved(self, saved: Any, step: Step, prefix: str = "") -> Iterator[Tensor]:
        """Yield what forward kept, with the reasons that its class gives."""
        reasons = dict(
            re.findall(r"^    (\w+): .*?# (.*)$", inspect.getsource(type(saved)), flags=re.MULTILINE)
        )
        for name, value in saved._asdict().items():
            if hasattr(value, "_fields"):
                yield from self._saved(value, step, f"{name}.")
            elif isinstance(value, np.ndarray):
                reason = reasons.get(name, "")
                why = reason.partition("): ")[2]
                yield self.store.tensor(prefix + name, value, reason, why, renamed=step.axes)

    def _gradient(
        self, tensor: Tensor, gradient: Array, belongs_to: str, others: dict[str, Array | None]
    ) -> Gradient:
        comparisons = []
        for source, other in others.items():
            if other is None:
                continue
            error = relative_error(gradient, other, CANCELLED_SHARE * self.scale)
            self.worst[source] = max(error, self.worst.get(source, 0.0))
            axes = tuple(self.store.entries[tensor.array]["axes"])
            comparisons.append(Comparison(source, self.store.tensor(source, other, axes).array, error))
        is_zero = bool(np.abs(gradient).max() <= SYMMETRY_SHARE * self.scale)
        return Gradient(tensor, belongs_to, tuple(comparisons), is_zero)

    def _torch_gradient(self, step: Step, name: str) -> Array | None:
        """Return torch's gradient of an input, where torch has one of that very use."""
        is_half_of_a_tied_matrix = name == "token_weight" or step.key == "loss"
        if name in step.parameters and self.torch and not is_half_of_a_tied_matrix:
            return np.concatenate([self.torch[parameter] for parameter in step.parameters[name]])
        return self._torch(step.torch[name]) if name in step.torch else None

    def _torch(self, *names: str) -> Array | None:
        """Return torch's gradient of activations, side by side; None without torch or a name."""
        return np.concatenate([self.torch[name] for name in names], -1) if names and self.torch else None


def _documented_shapes(function: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring's Args say about each array."""
    arguments = (function.__doc__ or "").partition("Args:")[2].partition("Returns:")[0]
    return dict(re.findall(r"^ +(\w+): (\(.*)$", arguments, flags=re.MULTILINE))


def _out_shape(function: Callable[..., Any]) -> str:
    returns = (function.__doc__ or "").partition("Returns:")[2]
    return returns.strip().partition("\n")[0]


def _plain_shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _stacked(names: tuple[str, ...]) -> str:
    return " over ".join(names) if len(names) <= 1 else f"{names[0]}, and the same of {' and '.join(QKV[1:])}"
