"""The inner loops of the simulation, compiled by numba: plain loops over arrays of times.

A kernel takes arrays and fills arrays; ``simulate`` describes their meaning. Each station is one
pass over all of its records, because in a first-come, first-served queue everything follows from
the arrival and service times of records (Lindley 1952). So a customer costs nanoseconds, whereas a
general simulator needs an event calendar.

Compiled code is kept in the user's cache directory, or in ``NUMBA_CACHE_DIR``, and never beside the
source, which may be read-only. Without a writable directory, or with one that other users can write
to, each process compiles for itself.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numba
import numpy as np

from tailrace import cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

_LOG = logging.getLogger(__name__)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _cache_directory(chosen: str = "") -> str:
    """The directory for compiled kernels, which belongs to the user; empty if there is none.

    Numba unpickles files in it, so others must not be able to write to it.
    """
    try:
        directory = cache.made(Path(chosen) if chosen else cache.directory() / "kernels")
        usable = _is_trusted(directory) and os.access(directory, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # a read-only home, or no home at all
        return ""
    return str(directory) if usable else ""


@functools.cache
def _is_trusted(directory: Path) -> bool:
    """Whether only the user can write to it; warns once, not for each kernel."""
    why = cache.distrusted(directory)
    if why is not None:
        _LOG.warning(
            "Compiled kernels are not kept, because %s: remove that permission, or set "
            "NUMBA_CACHE_DIR to a directory of your own.",
            why,
        )
    return why is None


def kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function at its first call; it runs without the interpreter lock.

    The only place where untyped numba meets typed code. Numba chooses its cache directory when it
    decorates, so the setting is changed for that moment.
    """
    settings: Any = numba.config
    compiler: Any = numba.njit
    before = settings.CACHE_DIR
    directory = _cache_directory(before)
    settings.CACHE_DIR = directory
    try:
        compiled = compiler(function, nogil=True, cache=bool(directory))
    finally:
        settings.CACHE_DIR = before
    return cast("Callable[_P, _R]", compiled)


# --- chance ---------------------------------------------------------------------------------------
#
# A stream of random numbers is one 64-bit word, which every draw advances and returns: splitmix
# (Steele, Lea and Flood 2014). It stays in a register, and equal words give equal runs everywhere.

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_ELEVEN = np.uint64(11)
_LAYER = np.uint64(255)
_UNIT = 2.0**-53


@kernel
def _bits(state: np.uint64) -> tuple[np.uint64, np.uint64]:
    state = state + _STEP
    mixed = (state ^ (state >> _SHIFTS[0])) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MIX_2
    return mixed ^ (mixed >> _SHIFTS[2]), state


@kernel
def _uniform(state: np.uint64) -> tuple[float, np.uint64]:
    """From [0, 1)."""
    bits, state = _bits(state)
    return (bits >> _ELEVEN) * _UNIT, state


def _layers(right: float, count: int) -> tuple[Floats, Floats]:
    """The ziggurat of Marsaglia and Tsang 2000 for exp(-x): stacked layers of equal area.

    ``right`` is where the lowest layer meets the tail. Returns the right ends, lowest first, with
    the lowest widened to include the area of the tail, and the density at each.
    """
    area = (right + 1) * math.exp(-right)
    ends = np.zeros(count + 1)
    ends[0], ends[1] = area * math.exp(right), right
    for layer in range(1, count - 1):
        ends[layer + 1] = -math.log(math.exp(-ends[layer]) + area / ends[layer])
    return ends, np.exp(-ends)


_TAIL = 7.69711747013105
_ENDS, _DENSITIES = _layers(_TAIL, 256)


@kernel
def _exponential(state: np.uint64) -> tuple[float, np.uint64]:
    """A draw with mean 1. All but one in a hundred draws cost a single multiplication."""
    tail = 0.0
    while True:
        bits, state = _bits(state)
        layer = np.int64(bits & _LAYER)
        x = (bits >> _ELEVEN) * _UNIT * _ENDS[layer]
        if x < _ENDS[layer + 1]:
            return tail + x, state
        if layer == 0:
            tail += _TAIL  # the tail of an exponential is an exponential
            continue
        u, state = _uniform(state)
        low, high = _DENSITIES[layer], _DENSITIES[layer + 1]
        if low + u * (high - low) < math.exp(-x):
            return tail + x, state


@kernel
def _normal(state: np.uint64) -> tuple[float, np.uint64]:
    """Box and Muller 1958."""
    radius, state = _exponential(state)
    turn, state = _uniform(state)
    return math.sqrt(2 * radius) * math.cos(2 * math.pi * turn), state


@kernel
def _gamma(shape: float, state: np.uint64) -> tuple[float, np.uint64]:
    """Marsaglia and Tsang 2000b; a shape below 1 is reduced to that shape plus 1."""
    scale = 1.0
    if shape < 1:
        e, state = _exponential(state)
        scale = math.exp(-e / shape)
        shape += 1
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x, state = _normal(state)
        v = 1 + c * x
        u, state = _uniform(state)
        if v <= 0:
            continue
        v *= v * v
        # The first test implies the second, and nearly always avoids its logarithms.
        if u < 1 - 0.0331 * x**4 or math.log(u) < x * x / 2 + d - d * v + d * math.log(v):
            return scale * d * v, state


EXPONENTIAL, CONSTANT, GAMMA, LOGNORMAL = range(4)


@kernel
def draw(kind: int, mean: float, cv: float, state: np.uint64, out: Floats) -> None:
    """Fill ``out`` with times of a distribution."""
    variance = math.log1p(cv * cv)
    for i in range(len(out)):
        if kind == EXPONENTIAL:
            x, state = _exponential(state)
            out[i] = mean * x
        elif kind == GAMMA:
            x, state = _gamma(1 / (cv * cv), state)
            out[i] = mean * cv * cv * x
        elif kind == LOGNORMAL:
            x, state = _normal(state)
            out[i] = mean * math.exp(math.sqrt(variance) * x - variance / 2)
        else:
            out[i] = mean


@kernel
def pick(chances: Floats, others: Indices, state: np.uint64, out: Indices) -> None:
    """Fill ``out`` with indices by the alias method (Walker 1977).

    An index is drawn uniformly and kept with its probability; otherwise its alias replaces it.
    """
    for i in range(len(out)):
        u, state = _uniform(state)
        scaled = u * len(chances)
        place = np.int64(scaled)
        out[i] = place if scaled - place < chances[place] else others[place]


@kernel
def uniform(state: np.uint64, out: Floats) -> None:
    """Fill ``out`` with numbers from [0, 1)."""
    for i in range(len(out)):
        out[i], state = _uniform(state)


# --- stations -------------------------------------------------------------------------------------


@kernel
def _after_pause(moment: float, pauses: Floats, number: int) -> tuple[float, int]:
    """The time, or the end of the pause that it falls into, and the index of the next pause.

    Times must not decrease from call to call; ``number`` is the index from the last call.
    """
    while number < len(pauses) and pauses[number, 1] <= moment:
        number += 1
    if number < len(pauses) and pauses[number, 0] <= moment:
        moment = pauses[number, 1]
        number += 1
    return moment, number


@kernel
def lindley(arrivals: Floats, services: Floats, departures: Floats) -> None:
    """One server: a record starts when it has arrived and the previous one is done."""
    free = -math.inf
    for i in range(len(arrivals)):
        free = max(arrivals[i], free) + services[i]
        departures[i] = free


@kernel
def serve(  # noqa: PLR0917 - numba takes arguments by position
    arrivals: Floats,
    services: Floats,
    tasks: Indices,
    task_count: int,
    servers: int,
    pauses: Floats,
    departures: Floats,
) -> None:
    """Tasks with several servers each: a record takes its task's first free server."""
    free = np.full(task_count * servers, -math.inf)
    began, coming = np.full(task_count, -math.inf), np.zeros(task_count, np.int64)
    for i in range(len(arrivals)):
        task = tasks[i]
        lane = task * servers
        for other in range(lane + 1, (task + 1) * servers):
            if free[other] < free[lane]:
                lane = other
        start = max(arrivals[i], free[lane])
        if len(pauses):  # none starts before an earlier arrival, even if its server is free
            start, coming[task] = _after_pause(max(start, began[task]), pauses, coming[task])
            began[task] = start
        free[lane] = start + services[i]
        departures[i] = free[lane]


@kernel
def tandem(  # noqa: PLR0917 - numba takes arguments by position
    arrivals: Floats,
    services: Floats,
    rooms: Indices,
    pauses: Floats,
    pause_ends: Indices,
    starts: Floats,
    departures: Floats,
) -> None:
    """Single servers in series; station k has room for ``rooms[k]`` records.

    A finished record stays with its server until the next station has room, and records for which
    the first station has no room wait at the source. Record i enters station k no earlier than
    record ``i - rooms[k]`` leaves it; since that is an earlier record, each record can be taken
    through all stations in one go. The pauses of station k end at row ``pause_ends[k]``.
    """
    stations, records = departures.shape
    coming = np.zeros(stations, np.int64)
    coming[1:] = pause_ends[:-1]
    for i in range(records):
        enters = arrivals[i]
        if i >= rooms[0]:
            enters = max(enters, departures[0, i - rooms[0]])
        for k in range(stations):
            start = max(enters, departures[k, i - 1]) if i else enters
            if len(pauses):
                start, coming[k] = _after_pause(start, pauses[: pause_ends[k]], coming[k])
            enters = start + services[k, i]
            if k + 1 < stations and i >= rooms[k + 1]:
                enters = max(enters, departures[k + 1, i - rooms[k + 1]])
            starts[k, i], departures[k, i] = start, enters


# --- streams --------------------------------------------------------------------------------------


@kernel
def gather(tasks: Indices, task_count: int, size: int, windows: Indices, closing: Indices) -> int:
    """Windows of ``size`` records per task: the window of each record, -1 if it never closes.

    ``closing`` gets the record that closes each window. Returns how many windows closed.
    """
    held = np.zeros(task_count, np.int64)
    members = np.empty((task_count, size), np.int64)
    windows[:] = -1
    closed = 0
    for i in range(len(tasks)):
        task = tasks[i]
        members[task, held[task]] = i
        held[task] += 1
        if held[task] == size:
            for member in members[task]:
                windows[member] = closed
            closing[closed] = i
            closed += 1
            held[task] = 0
    return closed


@kernel
def last_results(
    origins: Indices, at: Indices, times: Floats, arrivals: Floats, out: Floats
) -> None:
    """The latency of each record, up to the last of its results."""
    for n in range(len(origins)):
        latency = times[at[n]] - arrivals[origins[n]]
        if not latency <= out[origins[n]]:  # also true while there is none yet
            out[origins[n]] = latency


# --- batches --------------------------------------------------------------------------------------


@kernel
def _makespan(tasks_ms: Floats, records: float, per_record_ms: Floats, free: Floats) -> float:
    """When the last task of a stage ends; each in order takes the first free slot."""
    free[:] = 0.0
    for p in range(len(tasks_ms)):
        slot = 0
        for other in range(1, len(free)):
            if free[other] < free[slot]:
                slot = other
        free[slot] += tasks_ms[p] + records * per_record_ms[p]
    return float(free.max())


@kernel
def _noise(cv: float, state: np.uint64) -> tuple[float, np.uint64]:
    """A lognormal factor with mean 1."""
    if cv == 0:
        return 1.0, state
    variance = math.log1p(cv * cv)
    x, state = _normal(state)
    return math.exp(math.sqrt(variance) * x - variance / 2), state


@kernel
def _multiple(step: float, least: float, above: bool) -> float:
    """The first multiple of the step at or above ``least``, or strictly above it if ``above``."""
    count = math.floor(least / step)
    while count * step < least or (above and count * step <= least):
        count += 1
    return count * step


@kernel
def _next_look(look: float, due: float, interval: float, poll: float, aligned: bool) -> float:
    """The first poll at or after ``due``, which is after ``look``."""
    if interval > 0 and aligned:
        return _multiple(interval, due, False)
    step = interval if interval > 0 else poll
    return max(due, look + _multiple(step, due - look, False)) if step > 0 else due


@kernel
def _due_rows(arrivals: Floats, reached: Indices, row: int, look: float, enough: int) -> int:
    """The last row from ``row`` on that is due by ``look``, up to the row that makes it enough."""
    while row + 1 < len(arrivals) and arrivals[row + 1] <= look and reached[row] < enough:
        row += 1
    return row


@kernel
def micro_batches(  # noqa: PLR0917 - numba takes arguments by position
    arrivals: Floats,
    reached: Indices,
    costs: tuple[float, float],
    tasks_ms: Floats,
    per_record_ms: Floats,
    stage_ends: Indices,
    slots: int,
    timing: tuple[float, float, bool],
    most: int,
    noise: float,
    pauses: Floats,
    state: np.uint64,
    cuts: Floats,
    ends: Floats,
    taken: Indices,
) -> int:
    """Consecutive batches: when each is cut and ends, and how many records it takes.

    ``reached[i]`` records are due once row i is due. A batch takes those that are due at its cut,
    up to ``most``. Returns the number of batches.
    """
    interval, poll, aligned = timing
    free = np.zeros(slots)
    look, number, row, done, batches = 0.0, 0, 0, 0, 0
    while done < reached[-1]:
        while reached[row] <= done:
            row += 1
        look, number = _after_pause(look, pauses, number)
        while arrivals[row] > look:
            due = arrivals[row]
            if number < len(pauses):
                due = min(due, pauses[number, 0])  # a poll during a pause happens at its end
            look = _next_look(look, due, interval, poll, aligned)
            look, number = _after_pause(look, pauses, number)
        row = _due_rows(arrivals, reached, row, look, done + most)
        records = min(reached[row] - done, most)
        duration = costs[0] + costs[1] * records
        first = 0
        for end in stage_ends:
            duration += _makespan(tasks_ms[first:end], records, per_record_ms[first:end], free)
            first = end
        factor, state = _noise(noise, state)
        cuts[batches], taken[batches] = look, records
        ends[batches] = look + duration * factor
        due = _multiple(interval, look, True) if aligned and interval > 0 else look + interval
        look = max(due, ends[batches])
        done += records
        batches += 1
    return batches


@kernel
def hand_overs(  # noqa: PLR0917 - numba takes arguments by position
    arrivals: Floats,
    costs: tuple[float, float],
    lifetime: float,
    most: int,
    window: int,
    noise: float,
    pauses: Floats,
    state: np.uint64,
    cuts: Floats,
    ends: Floats,
    taken: Indices,
) -> int:
    """Consecutive hand-overs: when each is sent and returns, and how many records it holds.

    A record enters the open batch once it has arrived, the previous batch was sent if that was
    full, and there is no pause. The batch is sent once it is old enough, full, or closed by a
    pause, and the one ``window`` before it has returned. Returns the number of hand-overs.
    """
    cut, row, batches, number = -math.inf, 0, 0, 0
    while row < len(arrivals):
        opened, number = _after_pause(max(arrivals[row], cut), pauses, number)
        closes = pauses[number, 0] if number < len(pauses) else math.inf
        due = min(opened + lifetime, closes)
        if row + most <= len(arrivals):
            due = min(due, max(opened, arrivals[row + most - 1]))
        cut = max(due, ends[batches - window]) if batches >= window else due
        last = row + 1
        end = min(row + most, len(arrivals))
        while last < end and arrivals[last] <= cut and arrivals[last] < closes:
            last += 1
        factor, state = _noise(noise, state)
        begins = max(cut, ends[batches - 1]) if batches else cut
        cuts[batches], taken[batches] = cut, last - row
        ends[batches] = begins + (costs[0] + costs[1] * (last - row)) * factor
        row = last
        batches += 1
    return batches
