"""Searches for the highest rate that each of several sides holds, in turns.

A search takes minutes, and other activity on the machine changes during that time. So no side
searches alone: each tries one rate, then the next side does, until all have found theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bench.peers import BOUND_MS, LEAST_RATE_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping


class Outcome(Protocol):
    """What a search needs from a turn, ours or a peer's."""

    @property
    def p50_ms(self) -> float:
        """The median latency."""

    def held(self) -> bool:
        """Whether the rate was held."""


@dataclass(frozen=True, slots=True)
class Climber:
    """A side: its first rate, and how it tries a rate. A turn of None means that it gave up."""

    start_per_s: float
    turn: Callable[[float], Outcome | None]

    def holds(self, rate_per_s: float) -> bool | None:
        """Whether it holds a rate.

        A rate at which only the tail was late is tried once more: on a machine that does other
        things, a pause of a tenth of a second does not show a limit.
        """
        outcome = self.turn(rate_per_s)
        if outcome is not None and not outcome.held() and outcome.p50_ms < BOUND_MS:
            outcome = self.turn(rate_per_s)
        return None if outcome is None else outcome.held()


def search(start_per_s: float, tolerance: float) -> Generator[float, bool, float]:
    """Yields the rates to try, receives whether each was held, returns the highest that was.

    The rate is doubled or halved to bracket the highest, then bisected on a log scale until the
    bracket is within ``tolerance``: the search of ``peers.highest_rate``, one step at a time.
    """
    low = start_per_s
    if (yield low):
        while (yield 2 * low):
            low *= 2
    else:
        low /= 2
        while not (yield low):
            low /= 2
            if low < LEAST_RATE_PER_S:
                return 0.0
    high = 2 * low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low


def climb(climbers: Mapping[str, Climber], tolerance: float) -> dict[str, float]:
    """The highest rate of each side, by name, without those that gave up."""
    searches = {name: search(side.start_per_s, tolerance) for name, side in climbers.items()}
    rates = {name: next(steps) for name, steps in searches.items()}
    found: dict[str, float] = {}
    while rates:
        for name in tuple(rates):
            held = climbers[name].holds(rates[name])
            if held is None:
                del rates[name]
                continue
            try:
                rates[name] = searches[name].send(held)
            except StopIteration as end:
                found[name] = end.value
                del rates[name]
    return found
