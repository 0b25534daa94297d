"""From a recorded step to what the page says."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.arrays import ArrayStore
from numpy_gpt.learn.explorer.experiment import CLIP_NORM, Experiment
from numpy_gpt.learn.explorer.highlighting import highlight_lines
from numpy_gpt.learn.explorer.lessons import inline, read_lesson
from numpy_gpt.learn.explorer.mistakes import (
    Effect,
    Mistake,
    bugs_of,
    plant_in_clipping,
    plant_in_model,
    plant_in_op,
    plant_in_optimizer,
)
from numpy_gpt.learn.explorer.notes import NoteWriter
from numpy_gpt.learn.explorer.nudging import nudge
from numpy_gpt.learn.explorer.recording import Call
from numpy_gpt.learn.explorer.sources import Link, Source, find_links, read_source
from numpy_gpt.learn.explorer.steps import BLOCK, QKV, RESIDUALS, STEPS, Step
from numpy_gpt.learn.explorer.views import (
    BatchView,
    Code,
    CodeLine,
    Comparison,
    Gradient,
    MistakeView,
    Page,
    Part,
    StepView,
    Tensor,
)
from numpy_gpt.learn.explorer.watching import Execution
from numpy_gpt.model import GPT
from numpy_gpt.ops import book
from numpy_gpt.training import adamw, clipping
from numpy_gpt.verify.bugs import Bug
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
            norm=e.norm,
            clip_norm=CLIP_NORM,
            learning_rate=e.optimizer_before.learning_rate,
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
        return BatchView(batch.unit, rows, batch.unused, marked)

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
            "mistakes": tuple(self._mistakes(step)),
        }
        if step.key == "update":
            return self._update(common)
        if step.place is None:
            return self._residual(step, common)
        return self._operation(step, self.experiment.calls[step.place], common)

    def _operation(self, step: Step, call: Call, common: dict[str, Any]) -> StepView:
        op = getattr(book, call.op)
        documented = _documented_shapes(op.forward)

        def tensor(name: str, value: Array | float, shape: str, remark: str = "") -> Tensor:
            return self._tensor(step, name, value, shape, remark)

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
            {"torch": self._torch_out(step)},
        )
        main = self._part(call.op, call.forward, call.backward, step)
        inner = (self._inner_part(call, name, step) for name in step.inner)
        nudges = tuple(
            nudge(self.experiment, call, name, (step.parameters.get(name) or (name,))[0])
            for name in call.gradients
        )
        first = next(iter(call.gradients.values()))
        return StepView(
            op=call.op,
            out_shape=out.shape,
            back_shape=_plain_shape(first.shape),
            parts=(main, *inner),
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
        forward = read_source(GPT._block_forward, places.forward)
        backward = read_source(GPT._block_backward, places.backward)
        lesson = read_lesson(
            "Residual addition: what a branch found is added to the stream it started from.\n\n"
            "Equation\n    y_btc = x_btc + z_btc            z is the branch, itself a function of x\n\n"
            "Derivation\n    Both x and z enter y as they are, so both get d_y unchanged:\n"
            "        d_z_btc = d_y_btc\n"
            "    But x enters twice, directly and through the branch, and a sum over uses is the rule:\n"
            "        d_x_btc = d_y_btc + ( what comes back through the branch )\n"
        )
        d_total = self._gradient(tensor("d_x", d_x, axes), d_x, "", {"torch": self.torch.get(places.torch)})
        return StepView(
            op="add",
            out_shape=tensor("x", total, axes).shape,
            back_shape=_plain_shape(d_x.shape),
            parts=(Part("residual", lesson, self._codes(forward, backward, None, None, step)),),
            inputs=(tensor("x", stream, axes), tensor("branch", branch, axes)),
            outputs=(tensor("x", total, axes, "x + branch"),),
            saved=(),
            arrives=(d_total,),
            leaves=(
                self._gradient(tensor("d_branch", d_x, axes, "the same numbers"), d_x, "", {}),
                self._gradient(tensor("d_x", d_x, axes, "the same numbers, past the branch"), d_x, "", {}),
            ),
            nudges=(),
            **common,
        )

    def _update(self, common: dict[str, Any]) -> StepView:
        clip, step = read_source(clipping.clip_gradients), read_source(adamw.AdamW.step)
        codes = tuple(self._code(source, None, (), "", STEPS[-1]) for source in (clip, step))
        return StepView(
            op="adamw",
            out_shape=f"{self.experiment.model.parameters.flat.size:,} parameters",
            back_shape="every gradient",
            parts=(Part("adamw", read_lesson(adamw.__doc__ or ""), codes),),
            inputs=(),
            outputs=(),
            saved=(),
            arrives=(),
            leaves=(),
            nudges=(),
            **common,
        )

    # ---- arrays -------------------------------------------------------------------------------------------

    def _tensor(self, step: Step, name: str, value: Array | float, shape: str, remark: str = "") -> Tensor:
        shown = self.store.tensor(name, value, shape, remark)
        if not step.axes:
            return shown
        axes = self.store.entries[shown.array]["axes"]
        return self.store.tensor(name, value, tuple(step.axes.get(axis, axis) for axis in axes), remark)

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
                yield self._tensor(step, prefix + name, value, reason, reason.partition("): ")[2])

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
        names = step.parameters.get(name)
        is_half_of_a_tied_matrix = name == "token_weight" or step.key == "loss"
        if names and not is_half_of_a_tied_matrix and self.torch:
            return np.concatenate([self.torch[name] for name in names])
        return self.torch.get(step.torch[name]) if name in step.torch else None

    def _torch_out(self, step: Step) -> Array | None:
        if step.key == "qkv" and self.torch:
            return np.concatenate([self.torch[f"{BLOCK}.attention.{name}.output"] for name in QKV], axis=-1)
        return self.torch.get(step.torch_out) if step.torch_out else None

    # ---- source -------------------------------------------------------------------------------------------

    def _inner_part(self, call: Call, op: str, step: Step) -> Part:
        assert call.backward is not None
        forward, backward = call.forward.within(f"{op}_forward"), call.backward.within(f"{op}_backward")
        return self._part(op, forward, backward, step)

    def _part(self, op: str, forward: Execution, backward: Execution | None, step: Step) -> Part:
        pair = getattr(book, op)
        lesson = read_lesson(inspect.getdoc(importlib.import_module(f"numpy_gpt.ops.{op}")) or "")
        sources = read_source(pair.forward), read_source(pair.backward)
        return Part(op, lesson, self._codes(*sources, forward, backward, step))

    def _codes(
        self,
        forward: Source,
        backward: Source,
        forward_run: Execution | None,
        backward_run: Execution | None,
        step: Step,
    ) -> tuple[Code, Code]:
        links = find_links(forward, backward)
        return (
            self._code(forward, forward_run, links, "forward", step),
            self._code(backward, backward_run, links, "backward", step),
        )

    def _code(
        self, source: Source, run: Execution | None, links: tuple[Link, ...], side: str, step: Step
    ) -> Code:
        html = highlight_lines("\n".join(text for _, text in source.lines))
        lines = []
        for (number, text), line in zip(source.lines, html, strict=True):
            words = [f"{step.key}-{i}" for i, link in enumerate(links) if number in getattr(link, side)]
            values = tuple(self._values(source, run, number, step)) if run else ()
            indent = len(text) - len(text.lstrip())
            lines.append(CodeLine(number, line, indent, values, " ".join(words)))
        return Code(source.name, source.path, tuple(lines))

    def _values(self, source: Source, run: Execution, number: int, step: Step) -> Iterator[Tensor]:
        """Yield the numbers that a statement computed."""
        shape = source.comment_of(number)
        if not any(statement.first == number and statement.computes for statement in source.statements):
            return
        for name, value in run.lines.get(number, {}).items():
            if isinstance(value, np.ndarray | float):
                yield self._tensor(step, name, value, shape)

    # ---- mistakes -----------------------------------------------------------------------------------------

    def _mistakes(self, step: Step) -> Iterator[MistakeView]:
        if step.place is not None:
            call = self.experiment.calls[step.place]
            assert call.backward is not None
            for bug in bugs_of(call.op):
                yield self._mistake(plant_in_op(bug, call.forward, call.backward))
            for inner in step.inner:
                runs = call.forward.within(f"{inner}_forward"), call.backward.within(f"{inner}_backward")
                for bug in bugs_of(inner) if inner != "linear" else ():  # linear has steps of its own
                    yield self._mistake(plant_in_op(bug, *runs))
        for bug in bugs_of(*step.bugs):
            yield self._mistake(_planter(bug)(bug, self.experiment))

    def _mistake(self, mistake: Mistake) -> MistakeView:
        right = wrong = None
        if mistake.effects and mistake.effects[0].right.shape == mistake.effects[0].wrong.shape:
            worst = mistake.effects[0]
            right = self.store.tensor(f"{worst.name}, right", worst.right)
            wrong = self.store.tensor(f"{worst.name}, with the mistake", _rounded(worst.wrong))
        return MistakeView(
            title=mistake.bug.title,
            line=mistake.bug.line,
            lesson=tuple(inline(mistake.bug.lesson)),
            in_practice=tuple(inline(mistake.bug.in_practice)),
            verdict=_verdict(mistake),
            right=right,
            wrong=wrong,
            check=mistake.check,
            fooled=mistake.fooled,
        )


def _planter(bug: Bug) -> Callable[[Bug, Experiment], Mistake]:
    planters = {"optimizer": plant_in_optimizer, "clipping": plant_in_clipping}
    return planters.get(bug.where, plant_in_model)


def _verdict(mistake: Mistake) -> str:
    """Say in one line what a mistake does to the step's numbers."""
    sentences = []
    if mistake.effects:
        situation = mistake.effects[0].situation
        sentences.append("; ".join(_effect(effect) for effect in mistake.effects[:3]))
        if situation:
            sentences[0] = f"An ordinary step is right, but {situation}: {sentences[0]}"
    if mistake.raises:
        sentences.append(f"The step ends in {mistake.raises}")
    if not sentences:
        return "No number of this step changes: it takes another case to see it."
    return ". ".join(sentences) + "."


def _effect(effect: Effect) -> str:
    if effect.right.shape != effect.wrong.shape:
        return f"{effect.name} has shape {effect.wrong.shape} instead of {effect.right.shape}"
    if not math.isfinite(effect.error):
        return f"{effect.name} is not finite"
    if effect.error >= 2:
        return f"{effect.name} is off by {effect.error:.0f} times its largest number"
    if effect.error >= 0.001:
        return f"{effect.name} is off by {round(100 * effect.error, 1):g} % of its largest number"
    return f"{effect.name} is off by only {effect.error:.0e} of its largest number"


def _rounded(array: Array) -> Array:
    """Return six digits of each number: a wrong one is looked at, not computed with."""
    return np.array([float(f"{number:.6g}") for number in array.ravel()]).reshape(array.shape)


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
