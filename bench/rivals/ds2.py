"""Flink's current autoscaler, based on DS2.

The documented core of the original, with its default values, on the figures that every scaler gets
here. It has no latency bound: it targets a utilisation.
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

    While busy a unit handles ``done / (busy time)`` records per second, the inverse of the time per
    record. The target capacity is

        rate/target + rate*restart/catch_up + backlog/catch_up

    and the size is that divided by the true rate of one unit, changing by a factor from ``1 -
    max_down`` to ``1 + max_up`` at a time. Nothing changes while the capacity lies between those
    for the rate at ``target + boundary`` and at ``target - boundary``. Rates are means over
    ``window_ms``, which starts ``stabilisation_ms`` after a move and must be full. A size is
    reduced only after smaller sizes were computed throughout ``scale_down_ms``, to the largest of
    these. A ``catch_up_ms`` of 0 ignores the backlog.

    The values are those of Flink's ``job.autoscaler.*`` options, in milliseconds. Left out are the
    lag threshold, the detection of ineffective scaling (off in Flink), and everything about several
    vertices.
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
        """Refuse impossible targets."""
        if not (0 < self.target <= 1 and self.boundary >= 0 and 0 <= self.max_down <= 1):
            raise InputError(
                f"An autoscaler cannot target a utilisation of {self.target} +- {self.boundary} "
                f"and go down by {self.max_down} at once: give a target above 0 and up to 1, a "
                "boundary from 0 up and a share from 0 to 1."
            )

    def decide(self, load: Load) -> Move:
        """The size that the true rate calls for, once it has been measured for long enough."""
        if load.moving:
            self._forget()
            return wait(load)
        if load.since_move * load.step_ms < self.stabilisation_ms:
            self._forget()
            return stay(load, f"No move for {show_duration(self.stabilisation_ms)} after one.")
        self._remember(load)
        known_ms = (load.at_us - self._window[0].at_us) / 1e3 + load.step_ms
        if known_ms < self.window_ms:
            return stay(load, f"Only {show_duration(known_ms)} measured since the last move.")
        useful = math.fsum(seen.done_per_s * seen.service_ms / 1e3 for seen in self._window)
        done = math.fsum(seen.done_per_s for seen in self._window)
        if not useful or not done:
            return stay(load, "No record was handled, so the true rate is unknown.")
        return self._sized(load, done / useful)

    def _forget(self) -> None:
        self._window.clear()
        self._smaller.clear()

    def _remember(self, load: Load) -> None:
        """Add a step, and drop the oldest ones while the rest still fills the window."""
        if self._window and self._window[-1].size != load.size:
            self._forget()
        self._window.append(load)
        enough_us = load.at_us - (self.window_ms - load.step_ms) * 1e3
        while len(self._window) > 1 and self._window[1].at_us <= enough_us:
            self._window.popleft()

    def _capacity_per_s(self, load: Load, utilisation: float, restart_ms: float) -> float:
        """The capacity that all units together should have."""
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
        said = f"A unit handles {show_rate(true_per_s)} when busy and {show_rate(wanted)} is"
        said = f"{said} needed, at {self.target:.0%} busy"
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
            return stay(load, f"{said}, which {load.size} units nearly provide.")
        return ask(load, size, f"{said}, so {size} units.")
