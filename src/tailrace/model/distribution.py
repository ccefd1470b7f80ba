"""How a latency is distributed, in a form that adds and mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.model.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CELLS = 128
EDGES: Floats = 1 - (1 - np.arange(CELLS + 1) / CELLS) ** 2
WEIGHTS: Floats = np.diff(EDGES)
MIDDLES: Floats = (EDGES[1:] + EDGES[:-1]) / 2
"""Where cells of probability end, how much of it they hold, and their middles."""

COARSER = 4
COARSE_WEIGHTS: Floats = WEIGHTS.reshape(-1, COARSER).sum(axis=1)
"""Of a sum, the part that varies less is taken in cells larger by this factor."""


class Distribution(Latencies):
    """How a latency is distributed: its mean in each of 128 cells of probability, rising.

    Cell k ends at the level ``1 - (1 - k/128)**2``, so that cells are finest where the tail is.
    Means of sums and mixtures are exact; quantiles are read between the middles of cells. Weighted
    values are sorted into cells when more than their mean is needed.
    """

    __slots__ = ("_points", "_weighted")

    def __init__(self, points: Floats) -> None:
        """The mean of each cell."""
        self._points: Floats | None = points
        self._weighted: tuple[Floats, Floats] = points, WEIGHTS

    @classmethod
    def of(cls, values: Floats, weights: Floats) -> Distribution:
        """The spread of weighted values."""
        made = cls.__new__(cls)
        made._points, made._weighted = None, (values, weights)
        return made

    @property
    def points(self) -> Floats:
        """The mean of each cell."""
        if self._points is None:
            self._points = _sorted(*self._weighted)
        return self._points

    @classmethod
    def constant(cls, value_ms: float) -> Distribution:
        """Every latency is the same."""
        return cls(np.full(CELLS, value_ms))

    @classmethod
    def even(cls, low_ms: float, high_ms: float) -> Distribution:
        """Every latency from low to high is as likely."""
        return cls(low_ms + (high_ms - low_ms) * MIDDLES)

    @classmethod
    def mixed(cls, parts: Sequence[Distribution], shares: Sequence[float]) -> Distribution:
        """Latencies of which each part is the share that it has."""
        if len(parts) == 1:
            return parts[0]
        values, weights = [], []
        for part, share in zip(parts, shares, strict=True):
            held, weighed = part._weighted
            values.append(held.ravel())
            weights.append(weighed.ravel() * (share / float(weighed.sum())))
        return cls.of(np.concatenate(values), np.concatenate(weights))

    @property
    def mean_ms(self) -> float:
        """The mean."""
        values, weights = self._weighted
        return float((values * weights).sum() / weights.sum())

    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""
        return float(np.interp(quantile, MIDDLES, self.points))

    def later(self, by_ms: float) -> Distribution:
        """The spread after a constant delay."""
        return Distribution(self.points + by_ms)

    def __add__(self, other: Distribution) -> Distribution:
        """The spread of the sum of two independent latencies."""
        for one, rest in ((self, other), (other, self)):
            if one.points[0] == one.points[-1]:
                return rest.later(float(one.points[0]))
        wide, narrow = (self, other) if self._reach > other._reach else (other, self)
        coarse = (WEIGHTS * narrow.points).reshape(-1, COARSER).sum(axis=1) / COARSE_WEIGHTS
        return Distribution.of(
            np.add.outer(wide.points, coarse), np.multiply.outer(WEIGHTS, COARSE_WEIGHTS)
        )

    @property
    def _reach(self) -> float:
        return float(self.points[-1] - self.points[0])


def _sorted(values: Floats, weights: Floats) -> Floats:
    """The means of weighted values in each cell."""
    order = np.argsort(values, axis=None)
    sorted_values, sorted_weights = values.ravel()[order], weights.ravel()[order]
    reached = np.concatenate(([0.0], np.cumsum(sorted_weights)))
    sums = np.concatenate(([0.0], np.cumsum(sorted_weights * sorted_values)))
    levels = EDGES * reached[-1]
    found: Floats = np.diff(np.interp(levels, reached, sums)) / (WEIGHTS * reached[-1])
    return found
