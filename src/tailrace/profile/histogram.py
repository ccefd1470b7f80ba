"""A histogram with logarithmic bins: quantiles with a fixed relative error, and exact merging."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

ACCURACY = 0.004
"""Relative error of a value read back from its bin. It is below half of the promised one percent
because a latency is binned twice: as the age of a record at the source, then as its latency."""

SMALLEST_MS = 0.01
"""Everything up to this falls into bin 0."""

GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = math.log(GAMMA)


def bin_of(values_ms: ArrayLike) -> NDArray[np.int64]:
    """The bin of each value: bin i > 0 holds (s g^(i-1), s g^i], s the smallest, g the ratio."""
    values = np.maximum(np.asarray(values_ms, dtype=np.float64), SMALLEST_MS)
    return np.ceil(np.log(values / SMALLEST_MS) / _LOG_GAMMA - 1e-9).astype(np.int64)


def value_of(bins: ArrayLike) -> NDArray[np.float64]:
    """The value that stands for each bin, off by at most ``ACCURACY`` from anything in it."""
    bins = np.asarray(bins, dtype=np.float64)
    return np.asarray(SMALLEST_MS * 2 * np.power(GAMMA, bins) / (1 + GAMMA))


def _empty() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The quantiles that are reported, and kept if the whole distribution would be too large."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class LogHistogram:
    """Counts of values in milliseconds, by logarithmic bin.

    Bins never move, so merging just adds counts and loses nothing: the merge of the parts equals
    the histogram of the whole, in any order (the idea of DDSketch, Masson et al. 2019, with a fixed
    smallest value). ``bins`` is sorted, without duplicates.
    """

    bins: NDArray[np.int64] = field(default_factory=_empty)
    counts: NDArray[np.int64] = field(default_factory=_empty)

    @classmethod
    def of(cls, values_ms: ArrayLike) -> LogHistogram:
        """The histogram of an array of values."""
        bins, counts = np.unique(bin_of(values_ms), return_counts=True)
        return cls(bins, counts.astype(np.int64))

    @classmethod
    def from_bins(cls, counts: Mapping[int, int]) -> LogHistogram:
        """A histogram whose bins were counted elsewhere, in a worker or in the JVM."""
        bins = np.array(sorted(b for b, count in counts.items() if count), dtype=np.int64)
        return cls(bins, np.array([counts[int(b)] for b in bins], dtype=np.int64))

    @classmethod
    def merged(cls, parts: Iterable[LogHistogram]) -> LogHistogram:
        """The histogram of all values of all parts."""
        return cls._collapse([(part.bins, part.counts) for part in parts])

    @classmethod
    def _collapse(cls, parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> LogHistogram:
        if not parts:
            return cls()
        every = np.concatenate([bins for bins, _ in parts])
        counts = np.concatenate([counts for _, counts in parts])
        bins, where = np.unique(every, return_inverse=True)
        sums = np.zeros(bins.size, dtype=np.int64)
        np.add.at(sums, where, counts)
        return cls(bins, sums)

    @property
    def count(self) -> int:
        """How many values it holds."""
        return int(self.counts.sum())

    @property
    def values_ms(self) -> NDArray[np.float64]:
        """The value that stands for each bin."""
        return value_of(self.bins)

    def mean_ms(self) -> float:
        """The mean, within the accuracy of the bins."""
        return float(np.average(self.values_ms, weights=self.counts)) if self.bins.size else 0.0

    def shifted(self, by_ms: float) -> LogHistogram:
        """The histogram after ``by_ms`` is added to every value; nothing falls below zero."""
        return self._collapse([(bin_of(self.values_ms + by_ms), self.counts)])

    def quantile_ms(self, quantile: float) -> float:
        """The smallest value that at least this share of the values does not exceed."""
        if not self.bins.size:
            return math.nan
        rank = max(1, math.ceil(quantile * self.count - 1e-9))
        where = int(np.searchsorted(np.cumsum(self.counts), rank))
        return float(self.values_ms[where])

    def quantiles(self) -> Quantiles:
        """The figures for a report."""
        p50_ms, p95_ms, p99_ms = map(self.quantile_ms, (0.5, 0.95, 0.99))
        return Quantiles(p50_ms, p95_ms, p99_ms, self.max_ms())

    def max_ms(self) -> float:
        """The largest value, within the accuracy of the bins."""
        return float(self.values_ms[-1]) if self.bins.size else math.nan
