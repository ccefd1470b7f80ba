"""Results of a simulation: latencies with confidence intervals, use of stations, windows.

A run starts empty, which is not its steady state, so the first records are left out as a warm-up.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from bench.simulation.chance import seeded
from tailrace.errors import InputError
from tailrace.model.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

SECTIONS = 32
"""A run is cut into this many sections for its confidence intervals."""


@dataclass(frozen=True, slots=True)
class StationUse:
    """What a station did for the counted records.

    ``utilisation`` is the share of time that its servers worked, ``busiest`` that of its busiest
    task. ``wait_ms`` is the mean time from arrival at the station until service starts, and
    ``blocked_ms`` the mean time that a record waited for room: in front of the first station, or at
    a server that had finished with it.
    """

    name: str
    records: float
    utilisation: float
    busiest: float
    wait_ms: float
    service_ms: float
    blocked_ms: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """When each batch was cut and finished, and how many records it held."""

    cuts_ms: Floats
    ends_ms: Floats
    records: Indices

    @property
    def begins_ms(self) -> Floats:
        """When the work on each began: at its cut, or when the previous one was done."""
        return np.maximum(self.cuts_ms, np.concatenate(([-math.inf], self.ends_ms[:-1])))


@dataclass(frozen=True, slots=True)
class Window:
    """The records that arrived in a window; without any, the latencies are NaN."""

    start_ms: float
    records: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Latencies in increasing order, with the number of records up to each."""

    values: Floats
    reached: Floats | None
    mean_ms: float

    @classmethod
    def of(cls, values: Floats, weights: Floats | None) -> _Sorted:
        if weights is None:
            return cls(np.sort(values), None, float(values.mean()) if len(values) else math.nan)
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        total = float(reached[-1]) if len(reached) else 0.0
        return cls(values[order], reached, float(values @ weights) / total if total else math.nan)

    @property
    def records(self) -> float:
        if self.reached is None or not len(self.reached):
            return float(len(self.values))
        return float(self.reached[-1])

    def statistic_ms(self, quantile: float | None) -> float:
        """The mean, or the smallest value that this share of the records does not exceed."""
        if quantile is None:
            return self.mean_ms
        if not len(self.values):
            return math.nan
        rank = max(1, math.ceil(quantile * self.records - 1e-9))
        if self.reached is None:
            return float(self.values[rank - 1])
        return float(self.values[np.searchsorted(self.reached, rank)])


@dataclass(frozen=True, eq=False)
class Simulated(Latencies):
    """The result of a run.

    ``latencies_ms`` has one value for each of ``arrivals_ms``, NaN if there was no result; with
    ``weights`` a value stands for that many records. The first ``skipped`` are the warm-up: they
    appear only in ``windows``.

    Confidence intervals come from independent replications if there are any. Otherwise the run is
    cut into 32 sections in order of arrival (batch means; for quantiles, sectioning), which must be
    long compared with the time over which a queue's length is correlated. Either way the sample is
    small, so Student's t is used.
    """

    arrivals_ms: Floats
    latencies_ms: Floats
    stations: tuple[StationUse, ...]
    throughput_per_s: float
    skipped: int = 0
    weights: Floats | None = None
    batches: Batches | None = None
    replications: tuple[Simulated, ...] = ()

    @property
    def records(self) -> float:
        """The number of records in the statistics."""
        return self._whole.records

    @property
    def mean_ms(self) -> float:
        """The mean latency."""
        return self._whole.mean_ms

    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""
        if not 0 < quantile <= 1:
            raise InputError(f"There is no quantile {quantile}: give a share above 0 and up to 1.")
        return self._whole.statistic_ms(quantile)

    @property
    def method(self) -> str:
        """The method behind the confidence intervals."""
        return "independent replications" if self.replications else "batch means"

    def half_width_ms(self, quantile: float | None = None, level: float = 0.95) -> float:
        """The half-width of the confidence interval at this level.

        ``t * sqrt(sum((x_i - x)**2) / (n - 1) / n)`` with the statistic of each of n sections and
        that of the whole; infinite if there are too few records.
        """
        found = [s.statistic_ms(quantile) for s in self._sections if len(s.values)]
        if len(found) < 2:
            return math.inf
        apart = np.array(found) - self.statistic_ms(quantile)
        error = math.sqrt(float(apart @ apart) / (len(found) - 1) / len(found))
        return float(stdtrit(len(found) - 1, (1 + level) / 2)) * error

    def interval_ms(
        self, quantile: float | None = None, level: float = 0.95
    ) -> tuple[float, float]:
        """The confidence interval of the mean (None) or of a quantile."""
        middle, half = self.statistic_ms(quantile), self.half_width_ms(quantile, level)
        return middle - half, middle + half

    def windows(self, every_ms: float) -> tuple[Window, ...]:
        """Latency over time: the records that arrived in each ``every_ms``, with the warm-up."""
        if not every_ms > 0:
            raise InputError(f"Windows of {every_ms} ms are impossible: give a length above 0.")
        numbers = np.floor(self.arrivals_ms / every_ms).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        first, last = int(numbers[order[0]]), int(numbers[order[-1]])
        ends = np.searchsorted(numbers[order], np.arange(first, last + 2))
        return tuple(
            self._window((first + n) * every_ms, order[ends[n] : ends[n + 1]])
            for n in range(last - first + 1)
        )

    def _window(self, start_ms: float, rows: Indices) -> Window:
        found = self._sorted(rows)
        quantiles = (found.statistic_ms(quantile) for quantile in (0.5, 0.95, 0.99))
        return Window(start_ms, found.records, found.mean_ms, *quantiles)

    def _sorted(self, rows: Indices | slice) -> _Sorted:
        values = self.latencies_ms[rows]
        weights = None if self.weights is None else self.weights[rows]
        there = ~np.isnan(values)
        if not there.all():
            values = values[there]
            weights = None if weights is None else weights[there]
        return _Sorted.of(values, weights)

    @cached_property
    def _whole(self) -> _Sorted:
        if not self.replications:
            return self._sorted(slice(self.skipped, None))
        lengths = [len(part.latencies_ms) for part in self.replications]
        skipped = [part.skipped for part in self.replications]
        place = np.concatenate([np.arange(length) for length in lengths])
        return self._sorted(np.flatnonzero(place >= np.repeat(skipped, lengths)))

    @cached_property
    def _sections(self) -> tuple[_Sorted, ...]:
        if self.replications:
            return tuple(part._whole for part in self.replications)
        counted = len(self.latencies_ms) - self.skipped
        if counted < 2 * SECTIONS:
            return ()
        ends = self.skipped + np.arange(SECTIONS + 1) * counted // SECTIONS
        return tuple(self._sorted(slice(*ends[n : n + 2])) for n in range(SECTIONS))


def replicated(
    run: Callable[[int], Simulated], replications: int = 10, *, seed: int = 0, threads: int = 1
) -> Simulated:
    """The same run with several seeds; kernels release the interpreter lock, so threads help."""
    if replications < 2 or threads < 1:
        raise InputError(
            f"{replications} replications on {threads} threads cannot run: give at least 2 on 1."
        )
    seeds = [int(seeded(seed, n) >> np.uint64(1)) for n in range(replications)]
    with ThreadPoolExecutor(threads) as pool:
        parts = tuple(pool.map(run, seeds))
    weights = [part.weights for part in parts if part.weights is not None]
    return Simulated(
        np.concatenate([part.arrivals_ms for part in parts]),
        np.concatenate([part.latencies_ms for part in parts]),
        tuple(_mean_use(uses) for uses in zip(*(part.stations for part in parts), strict=True)),
        sum(part.throughput_per_s for part in parts) / len(parts),
        weights=np.concatenate(weights) if weights else None,
        replications=parts,
    )


def _mean_use(uses: Sequence[StationUse]) -> StationUse:
    names = [each.name for each in fields(StationUse)][1:]
    means = {name: sum(getattr(use, name) for use in uses) / len(uses) for name in names}
    return StationUse(uses[0].name, **means)


def warm_up_of(latencies_ms: Floats) -> int:
    """How many of the first records to leave out: the rule MSER (White 1997).

    Of all cuts in the first half, it takes the one after which the mean is most certain: with the
    smallest ``sum((x_i - mean)**2) / n**2`` over the rest. Records are first averaged in at most
    1000 groups, so that single outliers do not decide.
    """
    size = max(5, len(latencies_ms) // 1_000)
    groups = len(latencies_ms) // size
    if groups < 10:
        return 0
    grouped = latencies_ms[: groups * size].reshape(groups, size)
    there = ~np.isnan(grouped)
    if not there.any():
        return 0
    counts, sums = there.sum(axis=1), np.where(there, grouped, 0.0).sum(axis=1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / counts.sum())
    means = (means - means.mean())[::-1]
    left = np.arange(1, groups + 1)
    spread = np.cumsum(means**2) - np.cumsum(means) ** 2 / left
    scores = (spread / left**2)[::-1]
    return int(np.argmin(scores[: groups // 2])) * size


def warm_up_records(latencies_ms: Floats, warm_up: float | None) -> int:
    """How many records are the warm-up: the given share of them, or the number by MSER."""
    if warm_up is None:
        return warm_up_of(latencies_ms)
    if not 0 <= warm_up < 1:
        raise InputError(f"A warm-up of {warm_up} is impossible: give a share of records below 1.")
    return int(warm_up * len(latencies_ms))
