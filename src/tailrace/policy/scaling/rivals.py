"""What others run today: the autoscaler of Flink, after DS2, and the dynamic allocation of Spark.

Both are the documented core of the original, with its default values, on the numbers that every
scaler sees here. Neither knows of a latency bound: one aims at a utilisation, the other at no task
waiting.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.levels import Spl
from tailrace.policy.scaling.rules import (
    LatencyRule,
    Peak,
    ThresholdRule,
    ask,
    stay,
    wait,
)
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.policy.scaling.sizing import Load, Move, Scaler

_MINUTE_MS = 60_000.0
_ROUNDING = 1e-9


@dataclass(slots=True)
class Ds2:
    """DS2 (Kalavri et al. 2018) as Flink's autoscaler runs it: size by the true processing rate.

    While busy a unit handles ``done / (busy time)`` records a second, the inverse of what a record
    takes of its time. The capacity to have is

        rate/target + rate*restart/catch_up + backlog/catch_up

    and the size is that over the true rate of one unit, changed by a factor from ``1 - max_down``
    to ``1 + max_up`` at a time. Nothing changes while the capacity lies between what the rate asks
    for at ``target + boundary`` and at ``target - boundary``. Rates are means over ``window_ms``,
    which starts ``stabilisation_ms`` after a move and has to be full. A smaller size has to have
    been called for during ``scale_down_ms``, and is then the largest of those called for. A
    ``catch_up_ms`` of 0 leaves the backlog out.

    The values are those of Flink's ``job.autoscaler.*`` options, in milliseconds. Left out are the
    lag threshold, the detection of scaling without effect (off in Flink), and all that concerns
    several vertices.
    """

    target: float = 0.7
    boundary: float = 0.3
    window_ms: float = 15 * _MINUTE_MS
    stabilisation_ms: float = 5 * _MINUTE_MS
    scale_down_ms: float = 60 * _MINUTE_MS
    catch_up_ms: float = 30 * _MINUTE_MS
    restart_ms: float = 5 * _MINUTE_MS
    max_up: float = 100_000.0
    max_down: float = 0.6
    name: str = "Flink"
    _window: deque[Load] = field(default_factory=deque, init=False, repr=False)
    _smaller: deque[tuple[int, int]] = field(default_factory=deque, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what could never be aimed at."""
        if not (0 < self.target <= 1 and self.boundary >= 0 and 0 <= self.max_down <= 1):
            raise InputError(
                f"An autoscaler cannot aim at a utilisation of {self.target} +- {self.boundary} "
                f"and go down by {self.max_down} at once: give a target above 0 and up to 1, a "
                "boundary from 0 up and a share from 0 to 1."
            )

    def decide(self, load: Load) -> Move:
        """The size that the true rate asks for, once it has been measured for long enough."""
        if load.moving:
            self._forget()
            return wait(load)
        if load.since_move * load.step_ms < self.stabilisation_ms:
            self._forget()
            return stay(load, f"No move for {show_duration(self.stabilisation_ms)} after one.")
        self._remember(load)
        known_ms = (load.at_us - self._window[0].at_us) / 1e3 + load.step_ms
        if known_ms < self.window_ms:
            return stay(load, f"Only {show_duration(known_ms)} are measured since the last move.")
        useful = math.fsum(seen.done_per_s * seen.service_ms / 1e3 for seen in self._window)
        done = math.fsum(seen.done_per_s for seen in self._window)
        if not useful or not done:
            return stay(load, "No record was handled, so the true rate is not known.")
        return self._sized(load, done / useful)

    def _forget(self) -> None:
        self._window.clear()
        self._smaller.clear()

    def _remember(self, load: Load) -> None:
        """Add a step, and drop the oldest as long as the rest still fills the window."""
        if self._window and self._window[-1].size != load.size:
            self._forget()
        self._window.append(load)
        enough_us = load.at_us - (self.window_ms - load.step_ms) * 1e3
        while len(self._window) > 1 and self._window[1].at_us <= enough_us:
            self._window.popleft()

    def _capacity_per_s(self, load: Load, utilisation: float, restart_ms: float) -> float:
        """What all units together should be able to handle."""
        rate = math.fsum(seen.rate_per_s for seen in self._window) / len(self._window)
        steady = rate / utilisation if utilisation > 0 else math.inf
        if not self.catch_up_ms:
            return steady
        return steady + (rate * restart_ms + load.backlog * 1e3) / self.catch_up_ms

    def _sized(self, load: Load, true_per_s: float) -> Move:
        wanted = self._capacity_per_s(load, self.target, self.restart_ms)
        factor = wanted / (true_per_s * load.size)
        factor = min(max(factor, 1 - self.max_down), 1 + self.max_up)
        size = load.limits.within(factor * load.size - _ROUNDING)
        said = f"A unit handles {show_rate(true_per_s)} when busy and {show_rate(wanted)} are"
        said = f"{said} called for, at {self.target:.0%} busy"
        if size >= load.size:
            self._smaller.clear()
        else:
            self._smaller.append((load.at_us, size))
            waited_ms = (load.at_us - self._smaller[0][0]) / 1e3
            if waited_ms < self.scale_down_ms:
                left = show_duration(self.scale_down_ms - waited_ms)
                return stay(load, f"{said}: {size} units, if still so in {left}.")
            while (load.at_us - self._smaller[0][0]) / 1e3 > self.scale_down_ms:
                self._smaller.popleft()
            size = max(smaller for _, smaller in self._smaller)
        low = self._capacity_per_s(load, min(1.0, self.target + self.boundary), 0.0)
        high = self._capacity_per_s(load, self.target - self.boundary, self.restart_ms)
        if size == load.size or low <= true_per_s * load.size <= high:
            return stay(load, f"{said}, which {load.size} units do nearly enough.")
        return ask(load, size, f"{said}, so {size} units.")


@dataclass(slots=True)
class DynamicAllocation:
    """Spark's own: executors for tasks that wait, and none taken back until it idles.

    Tasks wait while records are held up (``load.blocked``). When they have waited for
    ``backlog_ms`` one executor is added, then 2, 4, 8 after every further ``sustained_ms``, up to
    what all tasks can use at once: ``ceil(tasks/cores)``, with ``tasks`` those of a batch, or one
    for each core that there may be. When no task waits any more it begins with 1 again.

    An executor goes when it has run no task for ``idle_ms``. Spark deals the tasks of each batch
    out to executors at random, so that a running stream leaves none without one for a minute;
    that it never gives back is what SPARK-24815 is about. Only a stream that rests shrinks.
    """

    backlog_ms: float = 1_000.0
    sustained_ms: float = 1_000.0
    idle_ms: float = 60_000.0
    tasks: int | None = None
    name: str = "Spark"
    _waited_ms: float = field(default=0.0, init=False, repr=False)
    _idle_ms: float = field(default=0.0, init=False, repr=False)
    _rounds: int = field(default=0, init=False, repr=False)
    _next: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse timeouts that Spark refuses too."""
        if min(self.backlog_ms, self.sustained_ms, self.idle_ms) <= 0:
            raise InputError("A timeout of dynamic allocation must be above 0 ms.")

    def decide(self, load: Load) -> Move:
        """More executors while tasks wait, the least when nothing ran for long enough."""
        passed_ms = load.steps * load.step_ms
        self._idle_ms = 0.0 if load.busy else self._idle_ms + passed_ms
        self._waited_ms += load.blocked * passed_ms
        if not load.blocked:
            self._waited_ms, self._rounds, self._next = 0.0, 0, 1
        if load.moving:
            return wait(load)
        if self._idle_ms >= self.idle_ms:
            idle = show_duration(self._idle_ms)
            return ask(load, load.limits.least, f"No executor ran a task for {idle}.")
        if not load.blocked:
            return stay(load, "No task waits.")
        return self._added(load)

    def _added(self, load: Load) -> Move:
        past_ms = self._waited_ms - self.backlog_ms
        due = 0 if past_ms < 0 else 1 + math.floor(past_ms / self.sustained_ms)
        cores = load.limits.cores
        tasks = load.limits.most * cores if self.tasks is None else self.tasks
        usable = min(math.ceil(tasks / cores), load.limits.most)
        said = f"Tasks have waited for {show_duration(self._waited_ms)}"
        size = load.size
        for _ in range(self._rounds, due):
            if size >= usable:
                self._next = 1
                break
            size, self._next = min(size + self._next, usable), self._next * 2
        self._rounds = due
        if load.size >= usable:
            return stay(load, f"{said}, and {usable} executors are all that they can use.")
        if size == load.size:
            return stay(load, f"{said}, and more executors are not due yet.")
        return ask(load, size, f"{said}, so there are {size - load.size} more executors.")


def rivals(hurry: float = 1.0) -> dict[str, Callable[[], Scaler]]:
    """Every rival by name, each a maker of fresh ones, with the values it was published with.

    DS2 is the size that the true rate asks for at a utilisation of 70 %, Flink's, at every step:
    without the pauses and windows that Flink, as ``Flink``, or its authors put around it.
    ``hurry`` divides the minutes and hours of Flink's defaults: for a load that plays a day in
    minutes they have to pass as fast as the load does, or it would never move at all.
    """
    if not 0 < hurry < math.inf:
        raise InputError(f"Time cannot pass {hurry} times as fast: give a number above 0.")
    flink = partial(
        Ds2,
        window_ms=15 * _MINUTE_MS / hurry,
        stabilisation_ms=5 * _MINUTE_MS / hurry,
        scale_down_ms=60 * _MINUTE_MS / hurry,
        catch_up_ms=30 * _MINUTE_MS / hurry,
        restart_ms=5 * _MINUTE_MS / hurry,
    )
    core = partial(
        Ds2,
        boundary=0.0,
        window_ms=0.0,
        stabilisation_ms=0.0,
        scale_down_ms=0.0,
        catch_up_ms=0.0,
        restart_ms=0.0,
        max_down=1.0,
        name="DS2",
    )
    return {
        "peak": Peak,
        "Th-Rule": ThresholdRule,
        "Lat-Rule": LatencyRule,
        "SPL": Spl,
        "DS2": core,
        "Flink": flink,
        "Spark": DynamicAllocation,
    }
