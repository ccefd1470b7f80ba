"""Simulation, for what formulas do not cover: quantiles, transients, bursts, traces, pauses.

Records arrive at given times and pass stations (queues with servers), micro-batches or hand-overs.
Every run is determined by its arrays and its seed. Times are milliseconds as floats.

>>> come = arrivals(Times.exponential(1.0), records=200_000, seed=1)
>>> found = queue(come, Times.exponential(0.8), seed=1)  # M/M/1: the mean is 1/(1/0.8 - 1) = 4
>>> round(found.mean_ms), round(found.stations[0].utilisation, 1)
(4, 0.8)

This module holds networks of stations, and is the entry point to the rest: ``chance`` (times and
arrivals), ``stations``, ``batchruns`` (micro-batches and hand-overs), ``pauses`` and ``simulated``
(the results).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.simulation import kernels
from bench.simulation.batchruns import StageTasks, hand_overs, micro_batches
from bench.simulation.chance import (
    Purpose,
    Times,
    arrivals,
    checked_arrivals,
    picked,
    seeded,
)
from bench.simulation.pauses import gaps
from bench.simulation.simulated import Simulated, replicated, warm_up_of, warm_up_records
from bench.simulation.stations import Records, Station, Visit, joined, serve, tandem
from tailrace.constraint import SOURCE
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

__all__ = [
    "Simulated",
    "StageTasks",
    "Station",
    "Stream",
    "Times",
    "arrivals",
    "gaps",
    "hand_overs",
    "micro_batches",
    "network",
    "queue",
    "replicated",
    "warm_up_of",
]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Stream:
    """Records go from one station, or the source, to another; ``share`` is the part that does."""

    origin: str
    target: str
    share: float = 1.0


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
    """Records through an acyclic network of stations, in series unless ``streams`` are given.

    A record that leaves a station takes one of the streams from there, by share; if shares add up
    to less than 1, the rest leaves the network. Streams that meet are merged in order of time.
    ``keys`` are the keys of the entering records.

    The latency of a record ends with its last result (``counted="record"``); with ``"result"``
    every result counts separately, for each record in it. ``warm_up`` is the share of records to
    leave out at the start, 0 if the start itself is of interest; if not given, the rule MSER
    decides. If any station has a buffer, it must be the only station, or all must be single servers
    in series.
    """
    comes = checked_arrivals(arrivals_ms)
    row = streams is None
    if streams is None:
        names = [SOURCE, *(station.name for station in stations)]
        streams = [Stream(*pair) for pair in pairwise(names)]
    _check_network(stations, streams)
    every = np.arange(len(comes))
    entered = Records(comes, every, every, _keys(keys, comes))
    if any(station.buffer is not None for station in stations) and len(stations) > 1:
        _check_row(stations, row=row)
        left, visits = tandem(entered, stations, seed)
    else:
        left, visits = _forward(entered, stations, streams, seed)
    began, latencies = _latencies(left, comes, counted)
    skipped = warm_up_records(latencies, warm_up)
    since_ms = float(began[skipped]) if len(began) else 0.0
    span_ms = (float(left.times[-1]) if len(left.times) else math.inf) - since_ms
    finished = int(np.count_nonzero(~np.isnan(latencies[skipped:])))
    uses = tuple(visit.use(since_ms) for visit in visits)
    throughput = finished / max(span_ms, 1e-300) * 1e3
    return Simulated(began, latencies, uses, throughput, skipped)


def _keys(keys: Indices | None, comes: Floats) -> Indices:
    if keys is None:
        return np.zeros(0, np.int64)
    if len(keys) != len(comes):
        raise InputError(f"There are {len(comes)} arrivals and {len(keys)} keys: give one each.")
    return np.asarray(keys, dtype=np.int64)


def _latencies(left: Records, comes: Floats, counted: str) -> tuple[Floats, Floats]:
    """The arrival times of what is counted, in order, and the latencies."""
    if counted == "result":
        order = np.argsort(left.origins, kind="stable")
        began = comes[left.origins[order]]
        return began, left.times[left.at[order]] - began
    latencies = np.full(len(comes), math.nan)
    kernels.last_results(left.origins, left.at, left.times, comes, latencies)
    return comes, latencies


def _check_network(stations: Sequence[Station], streams: Sequence[Stream]) -> None:
    places = {station.name: place for place, station in enumerate(stations)}
    if not stations or len(places) < len(stations) or SOURCE in places:
        raise InputError(f"A network needs stations with unique names, none of them '{SOURCE}'.")
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
    entered: Records, stations: Sequence[Station], streams: Sequence[Stream], seed: int
) -> tuple[Records, list[Visit]]:
    """Take records from station to station, in the order of the list."""
    waiting: dict[str, list[Records]] = {station.name: [] for station in stations}
    leaving: list[Records] = []
    visits = []

    def send(origin: str, records: Records, number: int, *, broadcast: bool) -> None:
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
            choice = picked(every, seeded(seed, Purpose.ONWARD, number), len(records.times))
            for place, stream in enumerate(onward):
                waiting[stream.target].append(records.picked(choice == place))
            leaving.append(records.picked(choice == len(onward)))

    send(SOURCE, entered, 0, broadcast=False)
    for number, station in enumerate(stations, 1):
        records, visit = serve(station, joined(waiting.pop(station.name)), seed, number)
        visits.append(visit)
        send(station.name, records, number, broadcast=station.broadcast)
    return joined(leaving), visits


def _check_row(stations: Sequence[Station], *, row: bool) -> None:
    plain = (1, 1, 1, 1.0)
    for station in stations:
        if not row or (station.tasks, station.servers, station.window, station.fan_out) != plain:
            raise InputError(
                f"Station '{station.name}' cannot be simulated with buffers: these need single "
                "servers in a row, without windows, fan-out or streams of their own."
            )
