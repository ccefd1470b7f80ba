"""The strategy of SPL: climb level by level, and remember the throughput of each.

Gedik, Schneider, Hirzel and Wu 2014, in the version that De Matteis 2016 (section 7.2.5) compares
with. It targets throughput: a level is too low while the sender is congested and a higher level
might give more; it is too high if the level below is known not to be congested. The knowledge about
levels is discarded when the load changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.moves import ask, settling, stay, wait
from tailrace.units import show_rate

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Load, Move


@dataclass(frozen=True, slots=True)
class _Level:
    """What is known about a level; initially it might be congested and have any throughput.

    ``first_per_s`` is the throughput when the load last changed or the level was last entered.
    """

    congested: bool = True
    first_per_s: float = math.inf
    last_per_s: float = math.inf


_UNKNOWN = _Level()
_LIGHT = _Level(congested=False, first_per_s=0.0, last_per_s=0.0)
"""The assumption about a lower level after the load has decreased."""


@dataclass(slots=True)
class Spl:
    """Goes one level up or down by congestion, and remembers throughputs.

    ``load.blocked`` is the congestion index; a level is congested if it exceeds ``congestion``. Two
    throughputs are different if they differ by more than ``0.1 + 0.9*(1 - sensitivity)`` of the
    throughput of one unit. Published with 0.1 and 0.9.

    More stable than the published version, which would go up and down forever before a bottleneck
    further downstream: it climbs to a level only for strictly more throughput than here; less
    throughput after a climb means less load only without congestion, and more throughput after a
    descent means more load only if there was no congestion before it. If batches last longer than a
    control step, a period continues until one is done, since the throughput is unknown before.
    """

    congestion: float = 0.1
    sensitivity: float = 0.9
    name: str = "SPL"
    _levels: dict[int, _Level] = field(default_factory=dict, init=False, repr=False)
    _before: int | None = field(default=None, init=False, repr=False)
    _without: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse values that are not shares."""
        if not (0 <= self.congestion <= 1 and 0 <= self.sensitivity <= 1):
            raise InputError(
                f"SPL cannot have congestion={self.congestion} and sensitivity="
                f"{self.sensitivity}: give two shares from 0 to 1."
            )

    def decide(self, load: Load) -> Move:
        """The level above, this one or the one below."""
        if settling(load):
            self._without = 0
            return wait(load)
        if load.backlog and not load.done_per_s:
            self._without += 1
            return stay(load, "No record was finished, so this period continues.")
        size, given = load.size, load.done_per_s / (1 + self._without)
        self._without = 0
        congested = load.blocked > self.congestion
        here, below = self._level(size), self._level(size - 1)
        came_up = self._before is not None and self._before < size
        remote = came_up and congested and below.congested and given <= below.last_per_s
        change = 0 if self._before is None else self._change(size, congested, given)
        if change < 0:
            self._levels = {at: level for at, level in self._levels.items() if at >= size}
            self._levels |= dict.fromkeys(range(load.limits.least, size), _LIGHT)
        elif change > 0:
            self._levels = {at: level for at, level in self._levels.items() if at <= size}
        entered = change or self._before != size
        first = given if entered else here.first_per_s
        self._levels[size] = _Level(congested, first, given)
        self._before = size
        return self._move(load, given, congested=congested, remote=remote)

    def _level(self, size: int) -> _Level:
        return self._levels.get(size, _UNKNOWN)

    def _change(self, size: int, congested: bool, given: float) -> int:
        """1 if the load has increased since the last period, -1 if it has decreased, else 0."""
        before = self._before if self._before is not None else size
        was, here = self._level(before).congested, self._level(size)
        step = (0.1 + 0.9 * (1 - self.sensitivity)) * here.first_per_s / size
        if before == size:
            more = (congested and not was) or given > here.first_per_s + step
            less = (was and not congested) or given < here.first_per_s - step
        elif before < size:
            more = congested and not was
            less = not congested and given < self._level(size - 1).last_per_s
        else:
            more = not was and given > self._level(size + 1).last_per_s
            less = was and not congested
        return int(more) - int(less)

    def _move(self, load: Load, given: float, *, congested: bool, remote: bool) -> Move:
        size, above = load.size, self._level(load.size + 1).last_per_s
        said = f"Blocked for {load.blocked:.0%} of the time at {show_rate(given)}"
        if remote:
            return ask(load, size - 1, f"{said}, no better than with one less.")
        if congested and above > given and size < load.limits.most:
            known = "is not known" if math.isinf(above) else f"gave {show_rate(above)}"
            return ask(load, size + 1, f"{said}, and one more {known}.")
        if not congested and not self._level(size - 1).congested:
            return ask(load, size - 1, f"{said}, and one less is not known to be congested.")
        return stay(load, f"{said}, so this level stays.")
