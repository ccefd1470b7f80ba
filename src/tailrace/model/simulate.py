"""Simulation, for what formulas cannot say: quantiles, transients, bursts, traces, pauses.

Records arrive at given times and pass stations (queues with servers), micro-batches or hand-overs.
Every run follows from its arrays and its seed. Times are milliseconds as floats.

>>> come = arrivals(Times.exponential(1.0), records=200_000, seed=1)
>>> found = queue(come, Times.exponential(0.8), seed=1)  # M/M/1: the mean is 1/(1/0.8 - 1) = 4
>>> round(found.mean_ms), round(found.stations[0].utilisation, 1)
(4, 0.8)
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tailrace.errors import InputError
from tailrace.goals import SOURCE
from tailrace.model import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.model.microbatch import BatchModel
    from tailrace.model.realtime import Boundary, HandOverModel
    from tailrace.profile.histogram import LogHistogram

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

SECTIONS = 32
"""A run is cut into so many sections for its confidence intervals."""

_ROUNDING = 1e-9
_ARRIVALS, _SERVICE, _ROUTE, _COPIES, _ONWARD, _NOISE = range(6)


def _no_times() -> Floats:
    return np.zeros(0)


def _no_places() -> Indices:
    return np.zeros(0, np.int64)


# --- chance ---------------------------------------------------------------------------------------


def _state(seed: int, *purpose: int) -> np.uint64:
    """The start of a stream of random numbers that no other purpose shares."""
    if seed < 0:
        raise InputError(f"A seed of {seed} cannot be: give a whole number from 0 up.")
    return np.uint64(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0])


def _check_shares(shares: Floats) -> None:
    if not (len(shares) and np.all(np.isfinite(shares)) and shares.min() >= 0 and shares.sum()):
        raise InputError(
            f"Shares of {shares.tolist()} cannot be drawn from: give numbers from 0 up, "
            "at least one of them above 0."
        )


def _picked(shares: Floats, state: np.uint64, count: int) -> Indices:
    """Places at random, each as often as its share.

    For the alias method every place that has too little is filled up from one that has too much:
    it is kept with ``chances[i]``, and else becomes ``others[i]`` (Vose 1991).
    """
    chances = shares * (len(shares) / shares.sum())
    others = np.arange(len(shares))
    poor, rich = list(np.flatnonzero(chances < 1)), list(np.flatnonzero(chances >= 1))
    while poor and rich:
        small, large = poor.pop(), rich[-1]
        others[small] = large
        chances[large] -= 1 - chances[small]
        if chances[large] < 1:
            poor.append(rich.pop())
    chances[poor + rich] = 1.0  # what is left differs from 1 by rounding only
    out = np.empty(count, np.int64)
    kernels.pick(chances, others, state, out)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Where the times between arrivals, or those of service, are drawn from."""

    kind: int
    mean_ms: float
    cv: float = 0.0
    values: Floats = field(default_factory=_no_times)
    counts: Floats = field(default_factory=_no_times)

    def __post_init__(self) -> None:
        """Refuse times that cannot be."""
        if not (0 <= self.mean_ms < math.inf and 0 <= self.cv < math.inf):
            raise InputError(
                f"Times with a mean of {self.mean_ms} ms and a variation of {self.cv} cannot be: "
                "give two finite numbers from 0 up."
            )

    @classmethod
    def exponential(cls, mean_ms: float) -> Times:
        """Exponential; gaps like that make a Poisson process."""
        return cls(kernels.EXPONENTIAL, mean_ms, 1.0)

    @classmethod
    def constant(cls, mean_ms: float) -> Times:
        """Always the same."""
        return cls(kernels.CONSTANT, mean_ms)

    @classmethod
    def gamma(cls, mean_ms: float, cv: float) -> Times:
        """Gamma distributed, with that mean and coefficient of variation."""
        return cls(kernels.GAMMA if cv else kernels.CONSTANT, mean_ms, cv)

    @classmethod
    def lognormal(cls, mean_ms: float, cv: float) -> Times:
        """Lognormal, with that mean and coefficient of variation."""
        return cls(kernels.LOGNORMAL, mean_ms, cv)

    @classmethod
    def empirical(cls, histogram: LogHistogram) -> Times:
        """What was measured: the value of a bin, as often as it was counted."""
        values = histogram.values_ms
        counts = histogram.counts.astype(np.float64)
        _check_shares(counts)
        mean_ms = histogram.mean_ms()
        spread = float(np.average((values - mean_ms) ** 2, weights=counts))
        return cls(kernels.CONSTANT, mean_ms, math.sqrt(spread) / mean_ms, values, counts)

    def draw(self, count: int, seed: int, *purpose: int) -> Floats:
        """So many times; the same for the same seed and purpose."""
        state = _state(seed, *purpose)
        if len(self.values):
            return self.values[_picked(self.counts, state, count)]
        out = np.empty(count)
        kernels.draw(self.kind, float(self.mean_ms), float(self.cv), state, out)
        return out


def arrivals(gaps: Times, records: int, seed: int) -> Floats:
    """The times of so many arrivals, with independent gaps, the first of them after 0.

    Arrivals that follow a rate that changes come from ``tailrace.load``: ``trace.due_us / 1e3``.
    """
    times = gaps.draw(records, seed, _ARRIVALS)
    return np.cumsum(times, out=times)


def gaps(boundary: Boundary, until_ms: float) -> tuple[tuple[float, float], ...]:
    """The pauses that real-time batches make: a gap after each batch, the first starting at 0."""
    whole_ms = boundary.length_ms + boundary.gap_ms
    if boundary.gap_ms <= 0 or whole_ms <= 0:
        return ()
    ends = np.arange(1, math.ceil(until_ms / whole_ms) + 1) * whole_ms
    return tuple((float(end) - boundary.gap_ms, float(end)) for end in ends)


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StationUse:
    """What a station did for the records that count.

    ``utilisation`` is the share of time that its servers worked, ``busiest`` that of its busiest
    task. ``wait_ms`` is the mean time from coming to the station until service starts, and
    ``blocked_ms`` the mean time in which a record found no room: in front of the first station,
    or at a server whose work on it was done.
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
    """When each batch was cut and done, and how many records it held."""

    cuts_ms: Floats
    ends_ms: Floats
    records: Indices

    @property
    def begins_ms(self) -> Floats:
        """When the work on each began: at its cut, or when the one before it was done."""
        return np.maximum(self.cuts_ms, np.concatenate(([-math.inf], self.ends_ms[:-1])))


@dataclass(frozen=True, slots=True)
class Window:
    """The records that arrived in a window; without any, the latencies are not a number."""

    start_ms: float
    records: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Latencies in rising order, with how many records there are up to each."""

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
class Simulated:
    """What came out of a run.

    ``latencies_ms`` has one value for each of ``arrivals_ms``, not a number where there was no
    result; with ``weights`` a value stands for that many records. The first ``skipped`` are the
    warm-up: they are part of ``windows`` and of nothing else.

    Confidence intervals rest on independent replications where there are any. Otherwise the run
    is cut into 32 sections in order of arrival (batch means; for quantiles, sectioning), which
    must be long beside the time that a queue takes to forget. Either way the sample is small, so
    Student's t it is.
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
        """How many records the statistics are of."""
        return self._whole.records

    @property
    def mean_ms(self) -> float:
        """The mean latency."""
        return self._whole.mean_ms

    @property
    def p50_ms(self) -> float:
        """The median of the latency."""
        return self.quantile_ms(0.5)

    @property
    def p95_ms(self) -> float:
        """The latency that 95 % of the records do not exceed."""
        return self.quantile_ms(0.95)

    @property
    def p99_ms(self) -> float:
        """The latency that 99 % of the records do not exceed."""
        return self.quantile_ms(0.99)

    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""
        return self.statistic_ms(quantile)

    def statistic_ms(self, quantile: float | None) -> float:
        """What a constraint asks for: a quantile, or None for the mean."""
        if quantile is not None and not 0 < quantile <= 1:
            raise InputError(f"There is no quantile {quantile}: give a share above 0 and up to 1.")
        return self._whole.statistic_ms(quantile)

    @property
    def method(self) -> str:
        """Where the confidence intervals come from."""
        return "independent replications" if self.replications else "batch means"

    def half_width_ms(self, quantile: float | None = None, level: float = 0.95) -> float:
        """How far the statistic may be off, at that level of confidence.

        ``t * sqrt(sum((x_i - x)**2) / (n - 1) / n)`` with the statistic of each of n sections and
        that of the whole; infinite when there are too few records to say.
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
        """How latency went: the records that arrived in each ``every_ms``, warm-up included."""
        if not every_ms > 0:
            raise InputError(f"Windows of {every_ms} ms cannot be: give a length above 0.")
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
    """The same run under independent seeds; kernels let go of the interpreter, so threads help."""
    if replications < 2 or threads < 1:
        raise InputError(
            f"{replications} replications on {threads} threads cannot be: give at least 2 on 1."
        )
    seeds = [int(_state(seed, n) >> np.uint64(1)) for n in range(replications)]
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

    Of all cuts in the first half, the one after which the mean is surest:
    ``sum((x_i - mean)**2) / n**2`` over what is left is least. The records are first averaged in
    groups, at most 1000 of them, so that single outliers do not decide.
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


# --- stations -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Station:
    """A queue with servers, or ``tasks`` of them side by side with ``servers`` each.

    Records go to the tasks in turn, or at random by ``shares``, or by key: ``homes[key]`` is the
    task of a key. Each task serves in order of arrival; ``service`` may be an array with a time
    for each record that comes. In ``pauses`` (from, to) no service starts. A station with a
    ``buffer`` holds so many records, those in service included, and what is before it waits.

    Of what a task has served, each ``window`` records become one result when the last of them is
    done; and for each result ``fan_out`` records go on, rounded at random. They follow one of the
    streams from here, or with ``broadcast`` every one.
    """

    name: str
    service: Times | Floats
    tasks: int = 1
    servers: int = 1
    shares: tuple[float, ...] = ()
    homes: tuple[int, ...] = ()
    fan_out: float = 1.0
    window: int = 1
    pauses: Sequence[tuple[float, float]] = ()
    buffer: int | None = None
    broadcast: bool = False

    def __post_init__(self) -> None:
        """Refuse a station that cannot be."""
        if min(self.tasks, self.servers, self.window) < 1 or not 0 <= self.fan_out < math.inf:
            raise InputError(
                f"Station '{self.name}' needs at least 1 task, server and record per window, and "
                "a finite fan-out from 0 up."
            )
        if self.shares and self.homes:
            raise InputError(f"Station '{self.name}' has shares and homes: give one of them.")
        if self.shares and len(self.shares) != self.tasks:
            raise InputError(
                f"Station '{self.name}' has {self.tasks} tasks and {len(self.shares)} shares: "
                "give one for each task."
            )
        if self.shares:
            _check_shares(np.array(self.shares, np.float64))
        if self.homes and not 0 <= min(self.homes) <= max(self.homes) < self.tasks:
            raise InputError(
                f"A home at station '{self.name}' is not one of its {self.tasks} tasks: "
                f"give numbers from 0 to {self.tasks - 1}."
            )
        if self.buffer is not None and (self.buffer < self.servers or self.tasks > 1):
            raise InputError(
                f"Station '{self.name}' cannot hold {self.buffer} records: a buffer needs a single "
                "task and room for each of its servers."
            )


@dataclass(frozen=True, slots=True)
class Stream:
    """Records go from one station to another, or from the source; ``share`` is how many do."""

    origin: str
    target: str
    share: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """Records on a stream, in order of time, and which of those that entered are in each.

    Entered record ``origins[n]`` is in record ``at[n]``: a copy shares its origin with others, a
    window has many.
    """

    times: Floats
    origins: Indices
    at: Indices
    keys: Indices

    def _key(self, rows: Indices | NDArray[np.bool_]) -> Indices:
        return self.keys[rows] if len(self.keys) else self.keys

    def reordered(self, order: Indices) -> _Records:
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        return _Records(self.times[order], self.origins, where[self.at], self._key(order))

    def picked(self, chosen: NDArray[np.bool_]) -> _Records:
        where, there = np.cumsum(chosen) - 1, chosen[self.at]
        kept = where[self.at[there]]
        return _Records(self.times[chosen], self.origins[there], kept, self._key(chosen))

    def gathered(self, tasks: Indices, station: Station) -> _Records:
        """The results of count windows; what is in a window that never closes is lost."""
        windows, closing = np.empty_like(tasks), np.empty_like(tasks)
        count = kernels.gather(tasks, station.tasks, station.window, windows, closing)
        closing, window = closing[:count], windows[self.at]
        closed = window >= 0
        return _Records(
            self.times[closing], self.origins[closed], window[closed], self._key(closing)
        )

    def copied(self, copies: Indices) -> _Records:
        firsts, times = np.cumsum(copies) - copies, copies[self.at]
        number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        at = np.repeat(firsts[self.at], times) + number
        rows = np.repeat(np.arange(len(copies)), copies)
        return _Records(self.times[rows], np.repeat(self.origins, times), at, self._key(rows))


def _joined(streams: Sequence[_Records]) -> _Records:
    """Streams merged in order of time."""
    if len(streams) == 1:
        return streams[0]
    lengths = [len(stream.times) for stream in streams]
    firsts = np.cumsum([0, *lengths[:-1]])
    together = _Records(
        np.concatenate([stream.times for stream in streams]),
        np.concatenate([stream.origins for stream in streams]),
        np.concatenate([s.at + first for s, first in zip(streams, firsts, strict=True)]),
        np.concatenate([stream.keys for stream in streams]),
    )
    return together.reordered(np.argsort(together.times, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class _Visit:
    """What a station did, record by record."""

    station: Station
    comes: Floats
    services: Floats
    leaves: Floats
    tasks: Indices | None = None
    outside: Floats | None = None
    held: Floats | None = None

    def use(self, since_ms: float) -> StationUse:
        """The figures of the records that came from then on.

        All their services lie between the arrival of the first and the departure of the last.
        """
        first = int(np.searchsorted(self.comes, since_ms))
        services, station = self.services[first:], self.station
        count = len(services)
        if not count:
            return StationUse(station.name, 0.0, 0.0, 0.0, 0.0, 0.0)
        span = float(self.leaves[first:].max()) - float(self.comes[first])
        work = float(services.sum())
        most = work
        if self.tasks is not None:
            most = float(np.bincount(self.tasks[first:], services).max())
        capacity = max(span, 1e-300) * station.servers
        outside = 0.0 if self.outside is None else float(self.outside[first:].mean())
        held = 0.0 if self.held is None else float(self.held[first:].mean())
        stay = float((self.leaves[first:] - self.comes[first:]).mean())
        return StationUse(
            station.name,
            float(count),
            work / capacity / station.tasks,
            most / capacity,
            max(0.0, stay - work / count - held),
            work / count,
            outside + held,
        )


def _outside(comes: Floats, leaves: Floats, buffer: int) -> Floats:
    """How long each record waits for room: until all but ``buffer`` of those before it have left.

    ``leaves`` is in order of time. Who waits outside keeps his turn, so no service is delayed.
    """
    waits = np.zeros(len(comes))
    waits[buffer:] = np.maximum(leaves[:-buffer] - comes[buffer:], 0.0)
    return waits


def _services(station: Station, count: int, seed: int, number: int) -> Floats:
    if isinstance(station.service, Times):
        return station.service.draw(count, seed, _SERVICE, number)
    given = np.ascontiguousarray(station.service, dtype=np.float64)
    if given.shape != (count,) or not np.all(given >= 0) or not np.all(np.isfinite(given)):
        raise InputError(
            f"Station '{station.name}' serves {count} records and was given {given.size} service "
            "times: give a finite one from 0 up for each."
        )
    return given


def _route(station: Station, records: _Records, seed: int, number: int) -> Indices:
    count = len(records.times)
    if station.homes:
        if not len(records.keys):
            raise InputError(f"Station '{station.name}' routes by key: give the keys of records.")
        if count and not 0 <= records.keys.min() <= records.keys.max() < len(station.homes):
            raise InputError(
                f"A key is outside of the {len(station.homes)} homes of station "
                f"'{station.name}': give a home for every key from 0 up."
            )
        return np.array(station.homes, np.int64)[records.keys]
    if not station.shares:
        return np.arange(count) % station.tasks
    return _picked(np.array(station.shares, np.float64), _state(seed, _ROUTE, number), count)


def _visit(station: Station, records: _Records, seed: int, number: int) -> tuple[_Records, _Visit]:
    """Take records through a station: what leaves it, and what it did."""
    comes, count = records.times, len(records.times)
    services = _services(station, count, seed, number)
    leaves, tasks, order = np.empty(count), None, None
    pauses = _pauses(station.pauses)
    if station.tasks == station.servers == 1 and not len(pauses):
        kernels.lindley(comes, services, leaves)
        left = replace(records, times=leaves)
    else:
        tasks = _route(station, records, seed, number)
        kernels.serve(comes, services, tasks, station.tasks, station.servers, pauses, leaves)
        order = np.argsort(leaves, kind="stable")
        left = replace(records, times=leaves).reordered(order)
    outside = None if station.buffer is None else _outside(comes, left.times, station.buffer)
    visit = _Visit(station, comes, services, leaves, tasks, outside)
    if station.window > 1:
        at = np.zeros(count, np.int64) if tasks is None or order is None else tasks[order]
        left = left.gathered(at, station)
    if station.fan_out != 1:
        left = left.copied(_rounded(station.fan_out, len(left.times), seed, number))
    return left, visit


def _rounded(value: float, count: int, seed: int, number: int) -> Indices:
    """Whole numbers, at random up or down, with that mean."""
    chance = np.empty(count)
    kernels.uniform(_state(seed, _COPIES, number), chance)
    return np.floor(value + chance).astype(np.int64)


def _pauses(pauses: Sequence[tuple[float, float]]) -> Floats:
    """Pauses in order, those that touch made one."""
    table: list[list[float]] = []
    for begin, end in sorted(pauses):
        if not (math.isfinite(begin) and math.isfinite(end) and begin <= end):
            raise InputError(f"A pause from {begin} to {end} ms cannot be: give its start first.")
        if table and begin <= table[-1][1]:
            table[-1][1] = max(end, table[-1][1])
        elif begin < end:
            table.append([begin, end])
    return np.array(table, dtype=np.float64).reshape(-1, 2)


def _checked(arrivals_ms: Any) -> Floats:
    times: Floats = np.ascontiguousarray(arrivals_ms, dtype=np.float64)
    if times.ndim != 1 or not len(times):
        raise InputError("There are no arrivals to simulate: give the times of one or more.")
    if not (np.all(np.isfinite(times)) and np.all(times[1:] >= times[:-1])):
        raise InputError("Arrivals must be finite times that never go back: sort them first.")
    return times


def queue(
    arrivals_ms: Floats,
    service: Times | Floats,
    *,
    servers: int = 1,
    buffer: int | None = None,
    pauses: Sequence[tuple[float, float]] = (),
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """A single station, served in order of arrival. See ``network`` for the rest."""
    station = Station(name="queue", service=service, servers=servers, buffer=buffer, pauses=pauses)
    return network(arrivals_ms, [station], seed=seed, warm_up=warm_up)


def network(
    arrivals_ms: Floats,
    stations: Sequence[Station],
    streams: Sequence[Stream] | None = None,
    *,
    keys: Indices | None = None,
    counted: Literal["record", "result"] = "record",
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """Records through stations that feed forward, in a row unless ``streams`` say otherwise.

    A record that leaves a station takes one of the streams from there, by share, and leaves the
    network where the shares end. Where streams meet they are merged in order of time. ``keys``
    are those of the records that enter.

    The latency of a record ends with its last result (``counted="record"``); with ``"result"``
    every result counts by itself, for each record that is in it. ``warm_up`` is the share of
    records to leave out at the start, 0 where the start is what matters; without one, the rule
    MSER decides. Where a station has a buffer, all of them must be single servers in a row, or it
    the only one.
    """
    comes = _checked(arrivals_ms)
    row = streams is None
    if streams is None:
        names = [SOURCE, *(station.name for station in stations)]
        streams = [Stream(*pair) for pair in pairwise(names)]
    _check_network(stations, streams)
    every = np.arange(len(comes))
    entered = _Records(comes, every, every, _no_places() if keys is None else _keys(keys, comes))
    if any(station.buffer is not None for station in stations) and len(stations) > 1:
        _check_row(stations, row=row)
        left, visits = _tandem(entered, stations, seed)
    else:
        left, visits = _forward(entered, stations, streams, seed)
    began, latencies = _latencies(left, comes, counted)
    skipped = _skipped(latencies, warm_up)
    since_ms = float(began[skipped]) if len(began) else 0.0
    span_ms = (float(left.times[-1]) if len(left.times) else math.inf) - since_ms
    finished = int(np.count_nonzero(~np.isnan(latencies[skipped:])))
    uses = tuple(visit.use(since_ms) for visit in visits)
    throughput = finished / max(span_ms, 1e-300) * 1e3
    return Simulated(began, latencies, uses, throughput, skipped)


def _keys(keys: Indices, comes: Floats) -> Indices:
    if len(keys) != len(comes):
        raise InputError(f"There are {len(comes)} arrivals and {len(keys)} keys: give one each.")
    return np.asarray(keys, dtype=np.int64)


def _latencies(left: _Records, comes: Floats, counted: str) -> tuple[Floats, Floats]:
    """When what counts arrived, in order, and its latencies."""
    if counted == "result":
        order = np.argsort(left.origins, kind="stable")
        began = comes[left.origins[order]]
        return began, left.times[left.at[order]] - began
    latencies = np.full(len(comes), math.nan)
    kernels.last_results(left.origins, left.at, left.times, comes, latencies)
    return comes, latencies


def _skipped(latencies: Floats, warm_up: float | None) -> int:
    if warm_up is None:
        return warm_up_of(latencies)
    if not 0 <= warm_up < 1:
        raise InputError(f"A warm-up of {warm_up} cannot be: give a share of the records below 1.")
    return int(warm_up * len(latencies))


def _check_network(stations: Sequence[Station], streams: Sequence[Stream]) -> None:
    places = {station.name: place for place, station in enumerate(stations)}
    if not stations or len(places) < len(stations) or SOURCE in places:
        raise InputError(
            f"A network needs stations with names of their own, none of them '{SOURCE}'."
        )
    for stream in streams:
        origin, target = places.get(stream.origin, -1), places.get(stream.target, -1)
        if target <= origin or (origin < 0 and stream.origin != SOURCE):
            raise InputError(
                f"A stream from '{stream.origin}' to '{stream.target}' does not lead from a "
                "station, or the source, to one that is listed later: put stations in the order "
                "in which records meet them."
            )
    for station in stations:
        if not any(stream.target == station.name for stream in streams):
            raise InputError(f"No stream leads to station '{station.name}': add one.")
    for name in (SOURCE, *(s.name for s in stations if not s.broadcast)):
        shares = [stream.share for stream in streams if stream.origin == name]
        if not (all(0 <= share <= 1 for share in shares) and sum(shares) <= 1 + _ROUNDING):
            raise InputError(
                f"The shares of the streams from '{name}' are {shares}: give numbers from 0 that "
                "add up to at most 1, or let the station broadcast."
            )
        if name == SOURCE and sum(shares) < 1 - _ROUNDING:
            raise InputError(
                f"The shares of the streams from the source are {shares}: make them add up to 1."
            )


def _forward(
    entered: _Records, stations: Sequence[Station], streams: Sequence[Stream], seed: int
) -> tuple[_Records, list[_Visit]]:
    """Take records from station to station, in the order in which these are listed."""
    waiting: dict[str, list[_Records]] = {station.name: [] for station in stations}
    leaving: list[_Records] = []
    visits = []

    def send(origin: str, records: _Records, number: int, *, broadcast: bool) -> None:
        onward = [stream for stream in streams if stream.origin == origin]
        if not onward:
            leaving.append(records)
        elif broadcast or (len(onward) == 1 and onward[0].share == 1):
            for stream in onward:
                waiting[stream.target].append(records)
        else:
            shares = [stream.share for stream in onward]
            rest = 1 - sum(shares)
            every = np.array([*shares, rest if rest > _ROUNDING else 0.0])
            choice = _picked(every, _state(seed, _ONWARD, number), len(records.times))
            for place, stream in enumerate(onward):
                waiting[stream.target].append(records.picked(choice == place))
            leaving.append(records.picked(choice == len(onward)))

    send(SOURCE, entered, 0, broadcast=False)
    for number, station in enumerate(stations, 1):
        records, visit = _visit(station, _joined(waiting.pop(station.name)), seed, number)
        visits.append(visit)
        send(station.name, records, number, broadcast=station.broadcast)
    return _joined(leaving), visits


def _check_row(stations: Sequence[Station], *, row: bool) -> None:
    plain = (1, 1, 1, 1.0)
    for station in stations:
        if not row or (station.tasks, station.servers, station.window, station.fan_out) != plain:
            raise InputError(
                f"Station '{station.name}' cannot be simulated with buffers: these need single "
                "servers in a row, without windows, fan-out or streams of their own."
            )


def _tandem(
    entered: _Records, stations: Sequence[Station], seed: int
) -> tuple[_Records, list[_Visit]]:
    """Single servers in a row, where a full station holds up the one before it."""
    comes, count = entered.times, len(entered.times)
    numbered = list(enumerate(stations, 1))
    services = np.array([_services(station, count, seed, n) for n, station in numbered])
    rooms = np.array([count if s.buffer is None else s.buffer for s in stations], np.int64)
    pauses = [_pauses(station.pauses) for station in stations]
    ends = np.cumsum([len(table) for table in pauses])
    starts, leaves = np.empty_like(services), np.empty_like(services)
    kernels.tandem(comes, services, rooms, np.concatenate(pauses), ends, starts, leaves)
    visits = []
    for k, station in enumerate(stations):
        before = leaves[k - 1] if k else comes
        outside = _outside(comes, leaves[0], station.buffer) if k == 0 and station.buffer else None
        held = leaves[k] - starts[k] - services[k]
        visits.append(_Visit(station, before, services[k], leaves[k], None, outside, held))
    return replace(entered, times=leaves[-1]), visits


# --- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """The tasks of a stage in a micro-batch, one for each partition.

    Of n records that the batch holds, ``n * selectivity * shares[p]`` are for partition p, whose
    task takes ``task_ms`` and then ``per_record_ms`` for each of them.
    """

    shares: tuple[float, ...]
    per_record_ms: float
    task_ms: float = 0.0
    selectivity: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a stage that cannot be."""
        costs = (*self.shares, self.per_record_ms, self.task_ms, self.selectivity)
        if not self.shares or not all(0 <= cost < math.inf for cost in costs):
            raise InputError(
                f"A stage cannot be as in {self}: give it a partition and finite numbers from 0 up."
            )


def micro_batches(
    arrivals_ms: Floats,
    model: BatchModel,
    interval_ms: float,
    *,
    stages: Sequence[Stage] = (),
    slots: int = 1,
    most: int | None = None,
    noise: float = 0.0,
    poll_ms: float = 10.0,
    aligned: bool = False,
    pauses: Sequence[tuple[float, float]] = (),
    counts: Indices | None = None,
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """Records in micro-batches, one batch at a time, from time 0 on.

    A batch is cut an interval after the one before it (``aligned``: at the next multiple of the
    interval, as Spark's own trigger does) and not before that one is done; interval 0 is back to
    back. It takes the records that are there, up to ``most``. Where there are none, the query
    looks again an interval later, or after ``poll_ms`` when back to back. In a pause nothing is
    cut.

    A batch of n records lasts ``D(n) = a + c*n``, of the model, and the stages one after another:
    each as long as its tasks take on the ``slots``, in order of partitions (Cooper 2020 as
    adapted: the makespan brings in skew). ``noise`` is the coefficient of variation of the whole,
    lognormal. All records of a batch are done at its end. With ``counts`` an arrival stands for
    that many records, which ``most`` may part.
    """
    comes = _checked(arrivals_ms)
    costs = (interval_ms, noise, poll_ms)
    reached = np.cumsum(np.ones(len(comes), np.int64) if counts is None else _counts(counts, comes))
    limit = int(reached[-1]) if most is None else most
    if not all(0 <= cost < math.inf for cost in costs) or min(slots, limit) < 1:
        raise InputError(
            "An interval, noise and a poll must be finite numbers from 0 up, and slots and the "
            "most records of a batch at least 1."
        )
    room = len(comes) + int(reached[-1]) // limit + 1
    batches = Batches(np.empty(room), np.empty(room), np.empty(room, np.int64))
    number = kernels.micro_batches(
        comes,
        reached,
        (float(model.fixed_ms), float(model.per_record_ms)),
        np.array([s.task_ms for s in stages for _ in s.shares], np.float64),
        np.array(
            [s.per_record_ms * s.selectivity * p for s in stages for p in s.shares], np.float64
        ),
        np.cumsum([len(s.shares) for s in stages], dtype=np.int64),
        slots,
        (float(interval_ms), float(poll_ms), aligned),
        limit,
        float(noise),
        _pauses(pauses),
        _state(seed, _NOISE),
        batches.cuts_ms,
        batches.ends_ms,
        batches.records,
    )
    batches = _trimmed(batches, number)
    if counts is None:
        rows = np.arange(len(comes))
        of = np.repeat(np.arange(number), batches.records)
        weights = None
    else:
        done = np.cumsum(batches.records)
        edges = np.union1d(reached[reached > 0], done)
        rows, of = np.searchsorted(reached, edges), np.searchsorted(done, edges)
        weights = np.diff(edges, prepend=0).astype(np.float64)
    return _batched("batch", comes[rows], batches, of, weights, warm_up=warm_up)


def _counts(counts: Indices, comes: Floats) -> Indices:
    given = np.asarray(counts, dtype=np.int64)
    if given.shape != comes.shape or given.min() < 0 or not given.sum():
        raise InputError(
            f"{len(comes)} arrivals cannot stand for {given.size} counts of records: give a count "
            "from 0 up for each, and at least one record."
        )
    return given


def hand_overs(
    arrivals_ms: Floats,
    model: HandOverModel,
    lifetime_ms: float,
    *,
    window: int = 1,
    noise: float = 0.0,
    pauses: Sequence[tuple[float, float]] = (),
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """Records handed over to Python in real-time mode, by one task.

    They gather in an open batch, which goes when it is a lifetime old or full, but not while
    ``window`` hand-overs are under way; the work on n records takes ``S(n) = a + c*n``, with a
    lognormal ``noise`` of that coefficient of variation. What finds the open batch full waits and
    enters the next. In a pause (see ``gaps``) nothing enters: what came before goes at its start,
    what comes in it enters at its end.
    """
    comes = _checked(arrivals_ms)
    if not (0 <= lifetime_ms < math.inf and 0 <= noise < math.inf and window >= 1):
        raise InputError(
            f"A lifetime of {lifetime_ms} ms with noise {noise} and {window} hand-overs under way "
            "cannot be: give finite numbers from 0 up and at least 1 hand-over."
        )
    count = len(comes)
    batches = Batches(np.empty(count), np.empty(count), np.empty(count, np.int64))
    number = kernels.hand_overs(
        comes,
        (float(model.fixed_ms), float(model.per_record_ms)),
        float(lifetime_ms),
        model.most,
        window,
        float(noise),
        _pauses(pauses),
        _state(seed, _NOISE),
        batches.cuts_ms,
        batches.ends_ms,
        batches.records,
    )
    batches = _trimmed(batches, number)
    of = np.repeat(np.arange(number), batches.records)
    return _batched("hand-over", comes, batches, of, None, warm_up=warm_up)


def _trimmed(batches: Batches, number: int) -> Batches:
    """Only the batches that there were, without the room for more."""
    return Batches(
        batches.cuts_ms[:number].copy(),
        batches.ends_ms[:number].copy(),
        batches.records[:number].copy(),
    )


def _batched(
    name: str,
    comes: Floats,
    batches: Batches,
    of: Indices,
    weights: Floats | None,
    *,
    warm_up: float | None,
) -> Simulated:
    """The result for arrivals of which each is in batch ``of``."""
    begins, end_ms = batches.begins_ms, float(batches.ends_ms[-1])
    latencies = batches.ends_ms[of] - comes
    skipped = _skipped(latencies, warm_up)
    first, since_ms = int(of[skipped]), float(comes[skipped])
    heavy = (np.ones(len(comes)) if weights is None else weights)[skipped:]
    records = float(heavy.sum())
    wait_ms = float((begins[of] - comes)[skipped:] @ heavy) / records
    busy = (batches.ends_ms - begins)[first:]
    share = float(busy.sum()) / max(end_ms - float(begins[first]), 1e-300)
    use = StationUse(name, records, share, share, wait_ms, float(busy.mean()))
    throughput = records / max(end_ms - since_ms, 1e-300) * 1e3
    return Simulated(comes, latencies, (use,), throughput, skipped, weights, batches)
