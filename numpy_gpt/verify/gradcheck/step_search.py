"""Which step size to believe."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.slope import SAFETY, Slope

STRIDE = 3
EXTRAPOLATION = 4.0**STRIDE
"""Steps are tried at every third power of two: from one to the next, a central difference gains so much."""


class Search:
    """The slopes from all step sizes, and which of them to believe.

    That is the one of least uncertainty among those that finer steps bear out. A step far too large can
    look certain: behind a kink, or where a saturated function lies flat. Finer steps then see another
    slope, by more than their own noise.

    Args:
        slopes: per level of the finer step.
    """

    def __init__(self, slopes: dict[int, Slope]) -> None:
        self.slopes = dict(sorted(slopes.items(), reverse=True))
        self.levels = np.array(list(self.slopes))  # (L,), coarse to fine
        self.values, self.noises, spreads = (
            np.stack([getattr(slope, part) for slope in self.slopes.values()])
            for part in ("value", "noise", "uncertainty")
        )  # (L, K) each
        # A slope is better than the next coarser one, which it differs from by that one's error.
        steps = np.concatenate([spreads[:1], np.abs(np.diff(self.values, axis=0))])
        self.uncertainties = np.maximum(np.maximum(steps, self.noises), spreads / (EXTRAPOLATION - 1))
        self.scores = np.where(self._borne_out(), self.uncertainties, np.inf)
        self.picks = np.argmin(self.scores, axis=0)  # (K,)

    def _borne_out(self) -> Array:
        """Return whether no finer step contradicts a slope (L, K)."""
        gaps = np.abs(self.values[:, None] - self.values[None])  # (L, L, K), the second L for the finer one
        allowed = SAFETY * (self.uncertainties[:, None] + self.noises[None])
        finer = self.levels[None] < self.levels[:, None]
        contradicted = (gaps > allowed) & np.isfinite(self.uncertainties[None]) & finer[..., None]
        borne_out: Array = ~contradicted.any(axis=1)
        return borne_out

    @property
    def coarsest(self) -> int:
        """The coarsest level tried."""
        return int(self.levels[0])

    @property
    def finest(self) -> int:
        """The finest level tried."""
        return int(self.levels[-1])

    def wants_coarser(self, enough: Array) -> bool:
        """Whether the largest step is the best one, and leaves more than enough."""
        unsure = (self.scores[0] > enough) & np.isfinite(self.scores[0])
        return bool((unsure & (self.picks == 0)).any())

    def wants_finer(self, enough: Array) -> bool:
        """Whether the smallest steps are the best ones, and leave more than enough and more than noise."""
        unsure = (self.uncertainties[-1] > enough) & (self.uncertainties[-1] > SAFETY * self.noises[-1])
        return bool((unsure & (self.picks >= len(self.levels) - 2)).any())

    def joined_by(self, level: int, slope: Slope) -> Search:
        """Return the search with one more step size."""
        return Search({**self.slopes, level: slope})

    @property
    def common_level(self) -> int:
        """The level that is least far from the best one for any of the upstream gradients."""
        best = np.min(self.scores, axis=0)
        regret = np.where(self.scores == best, 1.0, self.scores / best)
        return int(self.levels[np.argmin(regret.max(axis=1))])

    @property
    def best(self) -> tuple[Array, Slope]:
        """The best level per upstream gradient (K,), and the slope measured there."""
        columns = np.arange(len(self.picks))
        parts = {
            part: np.stack([getattr(slope, part) for slope in self.slopes.values()])[self.picks, columns]
            for part in ("value", "noise", "low", "high")
        }
        return self.levels[self.picks], Slope(**parts, uncertainty=self.uncertainties[self.picks, columns])
