"""Bugs of AdamW."""

from __future__ import annotations

import math

import numpy as np

from numpy_gpt.parameters import Parameters
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


class DecaysEverything(AdamW):
    """Wrong: biases and norms decay too."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        theta *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class DecayInGradient(AdamW):
    """Wrong: weight decay as a part of the gradient, which is Adam with L2 regularisation."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, m, v = self.parameters.flat, self.first_moment.flat, self.second_moment.flat

        g = gradients.flat.copy()
        matrices = self.parameters.matrices
        g[: matrices.size] += self.weight_decay * matrices
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class DecayWithoutRate(AdamW):
    """Wrong: the decay does not shrink with the learning rate."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class TiedDecaysTwice(AdamW):
    """Wrong when tied: the matrix decays under each of its names."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        named = [*self.parameters.named_parameters()]
        if self.parameters.config.tie_weights:
            named.append(("vocabulary_projection.weight", self.parameters.vocabulary_projection.weight))
        for _, view in named:
            if view.ndim == 2:
                view[...] = view * (1 - rate * self.weight_decay)
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class EpsBeforeCorrection(AdamW):
    """Wrong: eps is added to √v, and grows with the correction."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        correction = math.sqrt(1 - beta2**self.steps_taken) / (1 - beta1**self.steps_taken)
        theta -= rate * correction * m / (np.sqrt(v) + self.eps)


class EpsInsideRoot(AdamW):
    """Wrong: √(v̂ + ε) instead of √v̂ + ε."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / np.sqrt(v_hat + self.eps)


class Uncorrected(AdamW):
    """Wrong: the moments' start at zero is not mended."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        theta -= rate * m / (np.sqrt(v) + self.eps)


class CountsOneTooMany(AdamW):
    """Wrong: the first step is corrected as if it were the second."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1 ** (self.steps_taken + 1))
        v_hat = v / (1 - beta2 ** (self.steps_taken + 1))
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class RateNotUsed(AdamW):
    """Wrong: the step's own learning rate is accepted and ignored."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


class GradientOverwritten(AdamW):
    """Wrong: the caller's gradient is used for scratch."""

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        beta1, beta2 = self.betas
        self.steps_taken += 1
        theta, g = self.parameters.flat, gradients.flat
        m, v = self.first_moment.flat, self.second_moment.flat

        self.parameters.matrices[...] *= 1 - rate * self.weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        g *= g
        v[...] = beta2 * v + (1 - beta2) * g
        m_hat = m / (1 - beta1**self.steps_taken)
        v_hat = v / (1 - beta2**self.steps_taken)
        theta -= rate * m_hat / (np.sqrt(v_hat) + self.eps)


BUGS = (
    Bug(
        name="adamw-decays-everything",
        where="optimizer",
        title="Biases and norms decay as well",
        line="theta *= 1 - rate * self.weight_decay",
        lesson="Weight decay keeps matrices from using larger numbers than they need. A norm's scale rests "
        "at 1 and not at 0, and a bias has no product to overfit with: pulling them towards zero only "
        "takes away what they are for. The flat vector makes the mistake one word long, theta for "
        "matrices.",
        in_practice="The loss falls as with right code: at a decay of 0.1 and a rate of 0.01 a norm loses "
        "a thousandth per step. Only a comparison with AdamW, number by number, tells.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=DecaysEverything),
    ),
    Bug(
        name="adamw-decay-in-the-gradient",
        where="optimizer",
        title="L2 regularisation instead of decoupled decay",
        line="g[: matrices.size] += self.weight_decay * matrices",
        lesson="For plain gradient descent the two are one, and textbooks say so. Adam divides by √v̂: "
        "added to the gradient, the decay is divided too, so that weights with large gradients hardly "
        "decay and rarely used ones decay a lot, and it fills the moments with what is no gradient. That "
        "they differ is the whole point of the W in AdamW.",
        in_practice="The loss falls, and ends far above right code's: a decay of 0.1 is mild when "
        "decoupled, and as a part of small gradients it rules them.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=DecayInGradient),
    ),
    Bug(
        name="adamw-decay-without-rate",
        where="optimizer",
        title="The decay does not follow the learning rate",
        line="self.parameters.matrices[...] *= 1 - self.weight_decay",
        lesson="The paper's decay is multiplied by a schedule, torch's by the learning rate, and "
        "`weight_decay=0.1` means the second: at a rate of 0.001 a weight loses a ten-thousandth per step. "
        "Without the rate it loses a tenth, a thousand times as much, and most of all where the schedule "
        "says to move little.",
        in_practice="The loss hardly falls: the matrices lose a tenth per step and are held near zero. "
        "With a smaller decay it would pass for too much regularisation.",
        fools=(),
        subject=RIGHT._replace(optimizer=DecayWithoutRate),
    ),
    Bug(
        name="adamw-tied-decays-twice",
        where="optimizer",
        title="A tied matrix decays once per name",
        line='named.append(("vocabulary_projection.weight", self.parameters.vocabulary_projection.weight))',
        lesson="A state dict lists the tied matrix under both names, so that a file reads like that of any "
        "other model. An optimizer that goes through names then meets the matrix twice. Parameters are "
        "counted by memory, not by name.",
        in_practice="The loss falls as with right code, and ends a trifle higher. Untied models are right.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=TiedDecaysTwice),
    ),
    Bug(
        name="adamw-eps-before-correction",
        where="optimizer",
        title="eps is added before the second moment is corrected",
        line="theta -= rate * correction * m / (np.sqrt(v) + self.eps)",
        lesson="Adam's paper itself suggests this order, as cheaper: both corrections become one factor. "
        "Then eps is scaled along, to ε / √(1 - β₂ᵗ), which at the first step with β₂ = 0.999 is 32 times "
        "ε. torch corrects first. With ε = 1e-8 both give the same digits, until a gradient is as small as "
        "that.",
        in_practice="The loss is the same to the third digit, as gradients are far above 1e-8. It shows in "
        "a comparison with eps = 0.001, and for parameters whose gradients nearly vanish.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=EpsBeforeCorrection),
    ),
    Bug(
        name="adamw-eps-inside-root",
        where="optimizer",
        title="eps is added under the root",
        line="theta -= rate * m_hat / np.sqrt(v_hat + self.eps)",
        lesson="Layer norm and RMSprop variants have it there. √(v̂ + 1e-8) never falls below 1e-4, so "
        "every gradient smaller than that is treated as if it were noise: those weights move in proportion "
        "to their gradient again, which is what Adam was to overcome.",
        in_practice="The loss falls as with right code. It shows in a comparison with eps = 0.001, where "
        "it shortens every step of a parameter whose gradient is small.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=EpsInsideRoot),
    ),
    Bug(
        name="adamw-uncorrected",
        where="optimizer",
        title="The moments are not corrected for their start at zero",
        line="theta -= rate * m / (np.sqrt(v) + self.eps)",
        lesson="After one step m is (1 - β₁) g and √v is √(1 - β₂) |g|: with 0.9 and 0.999 a tenth over a "
        "thirtieth, so the first step is three times too long, and the mismatch fades only over a thousand "
        "steps. A warm-up covers it up.",
        in_practice="The loss falls faster at first than with right code, as the first steps are longer: "
        "an error that looks like a good idea, until the learning rate is one at which longer steps fail.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=Uncorrected),
    ),
    Bug(
        name="adamw-counts-one-too-many",
        where="optimizer",
        title="The correction's exponent is off by one",
        line="m_hat = m / (1 - beta1 ** (self.steps_taken + 1))",
        lesson="The step counter is raised first, and a loop that counted from zero had + 1 in the "
        "exponent: after a refactoring both are there. The other off-by-one, t = 0 at the first step, "
        "divides by zero and is found at once. This one only makes the first steps shorter.",
        in_practice="The loss falls as with right code, a step behind. The first update is shorter than "
        "the learning rate, where Adam's first update is the learning rate itself in every number.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=CountsOneTooMany),
    ),
    Bug(
        name="adamw-rate-not-used",
        where="optimizer",
        title="The schedule has no effect",
        line="rate = self.learning_rate",
        lesson="The schedule is computed, logged and plotted, and passed to an optimizer that uses the "
        "rate it was made with. Every number on the screen is as it should be. What arrives is what "
        "counts: compare a step with two different rates.",
        in_practice="The loss falls, noisily, and ends above right code's: the end of training, where the "
        "rate should be small, is where the difference is.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=RateNotUsed),
    ),
    Bug(
        name="adamw-overwrites-the-gradient",
        where="optimizer",
        title="The caller's gradient is squared in place",
        line="g *= g",
        lesson="g² is needed and g no longer, as seen from this function. The caller may still log its "
        "norm, or compare it with the next one, and finds squares. In place is for one's own arrays: m and "
        "v are the optimizer's, the gradient is not.",
        in_practice="The parameters are right to the last digit, and so is the loss. The gradient after "
        "the step is not the one before it.",
        fools=("loss_falls",),
        subject=RIGHT._replace(optimizer=GradientOverwritten),
    ),
)
