"""What Flink runs today: its autoscaler, after DS2.

The documented core of the original, with its default values, on the numbers that every scaler sees
here. It knows of no latency bound: it aims at a utilisation.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.moves import ask, stay, wait
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Load, Move

MINUTE_MS = 60_000.0
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
    window_ms: float = 15 * MINUTE_MS
    stabilisation_ms: float = 5 * MINUTE_MS
    scale_down_ms: float = 60 * MINUTE_MS
    catch_up_ms: float = 30 * MINUTE_MS
    restart_ms: float = 5 * MINUTE_MS
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
