"""Stations, the queues of a simulation, and the records that pass them.

Here records go through one station, or through a series of stations that can block each other;
``bench.simulation.simulate`` sends them from station to station.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bench.simulation import kernels
from bench.simulation.chance import Purpose, Times, check_shares, picked, rounded, seeded
from bench.simulation.pauses import merged
from bench.simulation.simulated import StationUse
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Station:
    """A queue with servers, or ``tasks`` parallel queues with ``servers`` each.

    Records go to the tasks round-robin, or at random by ``shares``, or by key: ``homes[key]`` is
    the task of a key. Each task serves in order of arrival; ``service`` may be an array with a time
    for each arriving record. In ``pauses`` (from, to) no service starts. ``buffer`` limits the
    records in a station, including those in service; further records wait before it.

    Every ``window`` records that a task has served become one result when the last of them is done;
    and for each result ``fan_out`` records go on, randomly rounded. They follow one of the streams
    from here, or with ``broadcast`` all of them.
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
        """Refuse an impossible station."""
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
            check_shares(np.array(self.shares, np.float64))
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


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records on a stream, in order of time, and which of the entered records each contains.

    Entered record ``origins[n]`` is in record ``at[n]``: copies share an origin, and a window has
    many.
    """

    times: Floats
    origins: Indices
    at: Indices
    keys: Indices

    def _key(self, rows: Indices | NDArray[np.bool_]) -> Indices:
        return self.keys[rows] if len(self.keys) else self.keys

    def reordered(self, order: Indices) -> Records:
        """The same records in another order."""
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        return Records(self.times[order], self.origins, where[self.at], self._key(order))

    def picked(self, chosen: NDArray[np.bool_]) -> Records:
        """Only the chosen records."""
        where, there = np.cumsum(chosen) - 1, chosen[self.at]
        kept = where[self.at[there]]
        return Records(self.times[chosen], self.origins[there], kept, self._key(chosen))

    def gathered(self, tasks: Indices, station: Station) -> Records:
        """The results of count windows; records in a window that never closes are lost."""
        windows, closing = np.empty_like(tasks), np.empty_like(tasks)
        count = kernels.gather(tasks, station.tasks, station.window, windows, closing)
        closing, window = closing[:count], windows[self.at]
        closed = window >= 0
        return Records(
            self.times[closing], self.origins[closed], window[closed], self._key(closing)
        )

    def copied(self, copies: Indices) -> Records:
        """Each record as often as it has copies, possibly 0 times."""
        firsts, times = np.cumsum(copies) - copies, copies[self.at]
        number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        at = np.repeat(firsts[self.at], times) + number
        rows = np.repeat(np.arange(len(copies)), copies)
        return Records(self.times[rows], np.repeat(self.origins, times), at, self._key(rows))


def joined(streams: Sequence[Records]) -> Records:
    """Streams merged in order of time."""
    if len(streams) == 1:
        return streams[0]
    lengths = [len(stream.times) for stream in streams]
    firsts = np.cumsum([0, *lengths[:-1]])
    together = Records(
        np.concatenate([stream.times for stream in streams]),
        np.concatenate([stream.origins for stream in streams]),
        np.concatenate([s.at + first for s, first in zip(streams, firsts, strict=True)]),
        np.concatenate([stream.keys for stream in streams]),
    )
    return together.reordered(np.argsort(together.times, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """What a station did, record by record."""

    station: Station
    comes: Floats
    services: Floats
    leaves: Floats
    tasks: Indices | None = None
    outside: Floats | None = None
    held: Floats | None = None

    def use(self, since_ms: float) -> StationUse:
        """The figures of the records that arrived from then on.

        All of their services are between the arrival of the first and the departure of the last.
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


def serve(station: Station, records: Records, seed: int, number: int) -> tuple[Records, Visit]:
    """Take records through a station; returns the output and the visit."""
    comes, count = records.times, len(records.times)
    services = _services(station, count, seed, number)
    leaves, tasks, order = np.empty(count), None, None
    pauses = merged(station.pauses)
    if station.tasks == station.servers == 1 and not len(pauses):
        kernels.lindley(comes, services, leaves)
        left = replace(records, times=leaves)
    else:
        tasks = _route(station, records, seed, number)
        kernels.serve(comes, services, tasks, station.tasks, station.servers, pauses, leaves)
        order = np.argsort(leaves, kind="stable")
        left = replace(records, times=leaves).reordered(order)
    outside = None if station.buffer is None else _outside(comes, left.times, station.buffer)
    visit = Visit(station, comes, services, leaves, tasks, outside)
    if station.window > 1:
        at = np.zeros(count, np.int64) if tasks is None or order is None else tasks[order]
        left = left.gathered(at, station)
    if station.fan_out != 1:
        left = left.copied(
            rounded(station.fan_out, len(left.times), seeded(seed, Purpose.COPIES, number))
        )
    return left, visit


def tandem(entered: Records, stations: Sequence[Station], seed: int) -> tuple[Records, list[Visit]]:
    """Single servers in series, where a full station blocks the one before it."""
    comes, count = entered.times, len(entered.times)
    numbered = list(enumerate(stations, 1))
    services = np.array([_services(station, count, seed, n) for n, station in numbered])
    rooms = np.array([count if s.buffer is None else s.buffer for s in stations], np.int64)
    pauses = [merged(station.pauses) for station in stations]
    ends = np.cumsum([len(table) for table in pauses])
    starts, leaves = np.empty_like(services), np.empty_like(services)
    kernels.tandem(comes, services, rooms, np.concatenate(pauses), ends, starts, leaves)
    visits = []
    for k, station in enumerate(stations):
        before = leaves[k - 1] if k else comes
        outside = _outside(comes, leaves[0], station.buffer) if k == 0 and station.buffer else None
        held = leaves[k] - starts[k] - services[k]
        visits.append(Visit(station, before, services[k], leaves[k], None, outside, held))
    return replace(entered, times=leaves[-1]), visits


def _outside(comes: Floats, leaves: Floats, buffer: int) -> Floats:
    """How long each record waits for room: until all but ``buffer`` of the earlier ones have left.

    ``leaves`` is in order of time. Waiting records keep their order, so no service is delayed.
    """
    waits = np.zeros(len(comes))
    waits[buffer:] = np.maximum(leaves[:-buffer] - comes[buffer:], 0.0)
    return waits


def _services(station: Station, count: int, seed: int, number: int) -> Floats:
    if isinstance(station.service, Times):
        return station.service.draw(count, seed, Purpose.SERVICE, number)
    given = np.ascontiguousarray(station.service, dtype=np.float64)
    if given.shape != (count,) or not np.all(given >= 0) or not np.all(np.isfinite(given)):
        raise InputError(
            f"Station '{station.name}' serves {count} records and was given {given.size} service "
            "times: give a finite one from 0 up for each."
        )
    return given


def _route(station: Station, records: Records, seed: int, number: int) -> Indices:
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
    return picked(np.array(station.shares, np.float64), seeded(seed, Purpose.ROUTE, number), count)
