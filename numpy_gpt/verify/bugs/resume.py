"""Bugs of stopping a run and going on with it."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.run import ADAMW, Kept, Run
from numpy_gpt.verify.bugs.subject import RIGHT


class OptimizerForgotten(Run):
    """Wrong: the weights go on, and the optimizer starts anew."""

    @classmethod
    def resume(cls, kept: Kept, text: ArrayLike, *, total_steps: int) -> Self:
        """Return a run that goes on."""
        parameters = Parameters.zeros(kept.config, kept.dtype)
        parameters.load_state_dict(kept.weights)
        model, optimizer = GPT.from_parameters(parameters), AdamW(parameters, **ADAMW)
        return cls(model, optimizer, text, total_steps=total_steps, step=kept.step)


class MomentsForgotten(Run):
    """Wrong: the number of steps goes on, and the moments start at zero as if they had never."""

    @classmethod
    def resume(cls, kept: Kept, text: ArrayLike, *, total_steps: int) -> Self:
        """Return a run that goes on."""
        parameters = Parameters.zeros(kept.config, kept.dtype)
        parameters.load_state_dict(kept.weights)
        model, optimizer = GPT.from_parameters(parameters), AdamW(parameters, **ADAMW)
        optimizer.steps_taken = int(kept.optimizer["steps_taken"])
        return cls(model, optimizer, text, total_steps=total_steps, step=kept.step)


class CorrectedAgain(Run):
    """Wrong: the moments go on, and are corrected for a start at zero that lies far behind."""

    @classmethod
    def resume(cls, kept: Kept, text: ArrayLike, *, total_steps: int) -> Self:
        """Return a run that goes on."""
        parameters = Parameters.zeros(kept.config, kept.dtype)
        parameters.load_state_dict(kept.weights)
        model, optimizer = GPT.from_parameters(parameters), AdamW(parameters, **ADAMW)
        optimizer.load_state_dict(kept.optimizer | {"steps_taken": np.array(0)})
        return cls(model, optimizer, text, total_steps=total_steps, step=kept.step)


class BatchesStartOver(Run):
    """Wrong: batches are counted from where this process began."""

    def train(self, until: int) -> None:
        """Make steps until that many are complete."""
        for batch, step in enumerate(range(self.step, until)):
            self._train_step(batch=batch, rate=step)
            self.step += 1


class ScheduleStartsOver(Run):
    """Wrong: the learning rate warms up anew, and is nowhere near its minimum at the end."""

    def train(self, until: int) -> None:
        """Make steps until that many are complete."""
        for rate, step in enumerate(range(self.step, until)):
            self._train_step(batch=step, rate=rate)
            self.step += 1


class LastStepMadeTwice(Run):
    """Wrong: keeps the number of the step that was made last, and resumes with it."""

    def keep(self) -> Kept:
        """Return what `resume` needs."""
        model, optimizer = self.model, self.optimizer
        last_step = self.step - 1
        return Kept(model.config, model.dtype, model.state_dict(), optimizer.state_dict(), last_step)


class KeptInHalf(Run):
    """Wrong: the weights lose more than half of their bits on the way."""

    def keep(self) -> Kept:
        """Return what `resume` needs."""
        model, optimizer = self.model, self.optimizer
        weights = {name: array.astype(np.float16) for name, array in model.state_dict().items()}
        return Kept(model.config, model.dtype, weights, optimizer.state_dict(), self.step)


class KeptByReference(Run):
    """Wrong when the run goes on: what was kept is the model itself, and moves with it."""

    def keep(self) -> Kept:
        """Return what `resume` needs."""
        model, optimizer = self.model, self.optimizer
        weights = dict(model.named_parameters())
        return Kept(model.config, model.dtype, weights, optimizer.state_dict(), self.step)


BUGS = (
    Bug(
        name="resume-optimizer-forgotten",
        where="resume",
        title="A resumed run has a fresh optimizer",
        line="model, optimizer = GPT.from_parameters(parameters), AdamW(parameters, **ADAMW)",
        lesson="A file with the weights is all that somebody who generates needs, so it is easily taken "
        "for all there is. Training knows more: which way each weight has been moving and how large its "
        "gradients are. A fresh AdamW knows nothing, and its first update moves every weight by the whole "
        "learning rate, whatever its gradient: m̂ / √v̂ is ± 1.",
        in_practice="The loss of the step after is right, since the weights are. Then it jumps: after 60 "
        "of 240 steps it is up to 0.27 nats above right code's and 0.09 on average over the next ten, "
        "half way 0.02, and nothing at the end. A plot shows a bump at every resumption.",
        fools=(),
        subject=RIGHT._replace(run=OptimizerForgotten),
    ),
    Bug(
        name="resume-moments-forgotten",
        where="resume",
        title="The step count is restored and the moments are not",
        line='optimizer.steps_taken = int(kept.optimizer["steps_taken"])',
        lesson="The count is one number and goes into the file with the others; the moments are twice the "
        "size of the model. Now they stand at zero and nothing says so: the correction is that of an old "
        "run, and one gradient gives an m of (1 - β₁) g over a √v of √(1 - β₂) |g|, uncorrected. What "
        "belongs together is saved and restored together.",
        in_practice="The loss of the step after is right, since the weights are. After 60 of 240 steps it "
        "then is up to 0.28 nats above right code's and 0.09 on average over the next ten, half way 0.03, "
        "and takes longer to settle than with an optimizer that is altogether fresh.",
        fools=(),
        subject=RIGHT._replace(run=MomentsForgotten),
    ),
    Bug(
        name="resume-corrected-again",
        where="resume",
        title="The moments are restored and the step count is not",
        line='optimizer.load_state_dict(kept.optimizer | {"steps_taken": np.array(0)})',
        lesson="Two arrays look like the optimizer's state, and the plain number beside them is forgotten. "
        "With t = 1 again, m is divided by 1 - β₁ and √v by √(1 - β₂), as if both had just started at "
        "zero. They had not, and late in a run the first update is √(1 - β₂) / (1 - β₁) times as long as it "
        "should be: as long for 0.9 and 0.99, a third for 0.9 and 0.999.",
        in_practice="After 60 of 240 steps, with betas of 0.9 and 0.99, the first update is half as long "
        "again as it should be, and soon they are too short. The loss is within 0.01 nats of right code's "
        "on average: only bits tell.",
        fools=(),
        subject=RIGHT._replace(run=CorrectedAgain),
    ),
    Bug(
        name="resume-batches-start-over",
        where="resume",
        title="A resumed run sees its first batches again",
        line="for batch, step in enumerate(range(self.step, until)):",
        lesson="The data loader counts for itself, and a new process has a new one. A job that is stopped "
        "every hour then learns the first hour's texts over and over and never sees the rest. If the batch "
        "is a function of the step, as `training_batch` is, there is no second counter to be restored.",
        in_practice="The loss looks right at every step, 0.01 nats from right code's on average. Stopped "
        "half way, the run has seen the batches of its first half twice and those of its second half "
        "never, which shows in no number until it is tried on other text.",
        fools=(),
        subject=RIGHT._replace(run=BatchesStartOver),
    ),
    Bug(
        name="resume-schedule-starts-over",
        where="resume",
        title="A resumed run warms up again",
        line="for rate, step in enumerate(range(self.step, until)):",
        lesson="A schedule with a counter of its own, made anew, begins at its beginning: a low rate, then "
        "the peak, for weights that were meant to be settling. It ends half way down, at a rate that the "
        "end of training should not have. The rate too is a function of the step and needs no state.",
        in_practice="Stopped half way, the small run ends 0.01 to 0.04 nats higher than right code, on "
        "four seeds, and more noisily: its last rate is half of the peak. A plot of the rate shows the "
        "second warm-up.",
        fools=(),
        subject=RIGHT._replace(run=ScheduleStartsOver),
    ),
    Bug(
        name="resume-last-step-made-twice",
        where="resume",
        title="The step that was made last is made again",
        line="last_step = self.step - 1",
        lesson="A loop over `range(steps)` saves its loop variable, the number of the step it has just "
        "made, and begins with the number it finds. Is a saved step of 100 the last one made or the next? "
        "Both can be read into it. Completed steps leave no doubt: their count is the number of the next, "
        "since numbers begin at 0.",
        in_practice="One batch counts double, and all that follow are right. The repeated step's loss is "
        "0.02 nats lower than the first time, which is less than it changes from batch to batch, and at "
        "the end there is no difference.",
        fools=(),
        subject=RIGHT._replace(run=LastStepMadeTwice),
    ),
    Bug(
        name="resume-kept-in-half",
        where="resume",
        title="The weights are rounded to float16 when they are saved",
        line="weights = {name: array.astype(np.float16) for name, array in model.state_dict().items()}",
        lesson="For generating text half the bytes do, and so files are saved like that. A float16 has "
        "eleven bits: a weight of 0.02 moves by up to 8e-6, as AdamW moves it at a learning rate of 8e-6. "
        "Whoever trains on needs every bit, and the moments as well.",
        in_practice="The loss is the same to the third digit, before and after: weights that are fit for "
        "use are nearly right. After 240 steps no weight is off by more than a thousandth, and hardly one "
        "has the same bits.",
        fools=(),
        subject=RIGHT._replace(run=KeptInHalf),
    ),
    Bug(
        name="resume-kept-by-reference",
        where="resume",
        title="What was kept changes as training goes on",
        line="weights = dict(model.named_parameters())",
        lesson="The best model so far is to be kept in memory, and what is kept are views of the very "
        "arrays that the next step updates in place; torch's state_dict gives such references too. Written "
        "to a file at once it would be right. Whatever is kept for later is copied: state_dict does so "
        "here.",
        in_practice="A run that is resumed at once, or from a file, is right. Here the run goes on for 40 "
        "steps, and what was kept at step 60 is the model of step 100 with the moments of step 60: its "
        "loss is 0.09 nats lower than that of right code at the same step, over ten steps, as it has "
        "learned longer.",
        fools=(),
        subject=RIGHT._replace(run=KeptByReference),
    ),
)
