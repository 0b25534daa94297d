"""Which step size to believe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.slope import SAFETY, Slope


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
        values, uncertainties, noises = (
            np.stack([getattr(slope, part) for slope in self.slopes.values()])
            for part in ("value", "uncertainty", "noise")
        )  # (L, K) each
        gaps = np.abs(values[:, None] - values[None])  # (L, L, K), the second L for the finer one
        allowed = SAFETY * (uncertainties[:, None] + noises[None])
        contradicted = (gaps > allowed) & np.isfinite(uncertainties[None])
        finer = self.levels[None] < self.levels[:, None]
        borne_out = ~(contradicted & finer[..., None]).any(axis=1)  # (L, K)
        self.scores = np.where(borne_out, uncertainties, np.inf)
        self.picks = np.argmin(self.scores, axis=0)  # (K,)

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
        last = self.slopes[self.finest]
        unsure = (last.uncertainty > enough) & (last.uncertainty > SAFETY * last.noise)
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
        levels = self.levels[self.picks]
        columns = np.arange(len(self.picks))
        # Noise that the model missed shows in the neighbour.
        neighbours = np.where(self.picks + 1 < len(self.levels), self.picks + 1, self.picks - 1)
        parts = {
            part: np.stack([getattr(slope, part) for slope in self.slopes.values()])
            for part in ("value", "uncertainty", "noise", "low", "high")
        }  # (L, K) each
        gap = np.abs(parts["value"][neighbours, columns] - parts["value"][self.picks, columns])
        slope = Slope(**{part: rows[self.picks, columns] for part, rows in parts.items()})
        return levels, replace(slope, uncertainty=np.maximum(slope.uncertainty, gap))
