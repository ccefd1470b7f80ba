"""Runs on a shared machine: a run during which the machine was slow is repeated."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

LOOPS = 200
ADDITIONS = 100_000
"""The work that is timed: about half a second of arithmetic, since a core that is shared with a
neighbour switches between fast and slow many times a second."""

SLOWER = 1.25
"""A machine that takes this many times its best time for the same work is disturbed."""

TRIES = 3
MOST_REPEATS = 16
"""How often one run is tried, and how many runs are repeated in all: after that a disturbed run is
used, and the result says so."""


def pace_ms() -> float:
    """How long a fixed piece of arithmetic takes now."""
    start = time.perf_counter()
    for _ in range(LOOPS):
        sum(range(ADDITIONS))
    return (time.perf_counter() - start) * 1e3


class Quiet:
    """Times the machine before and after each run, and repeats those that were disturbed."""

    def __init__(self, pace: Callable[[], float] = pace_ms) -> None:
        """``pace`` measures how slow the machine is."""
        self._pace = pace
        self.best = pace()
        self.runs = self.repeated = self.disturbed = 0

    def __call__(self, run: Callable[[], _T]) -> _T:
        """The result of a run while the machine was quiet, or of the last try."""
        self.runs += 1
        for tried in range(1, TRIES + 1):
            before, result, after = self._pace(), run(), self._pace()
            self.best = min(self.best, before, after)
            slower = (before + after) / 2 / self.best
            if slower <= SLOWER:
                return result
            _LOG.warning("The machine was %.0f %% slower than its best.", (slower - 1) * 100)
            if tried == TRIES or self.repeated == MOST_REPEATS:
                break
            self.repeated += 1
        self.disturbed += 1
        return result

    def as_json(self) -> dict[str, Any]:
        """How quiet the machine was."""
        return {"runs": self.runs, "repeated": self.repeated, "disturbed": self.disturbed}
