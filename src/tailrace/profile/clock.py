"""Time that only goes forward, from a clock that may be set back.

Batches and tasks are timed by the clock of the machine. When somebody sets that back, whatever
follows would lie in intervals that are judged already, and nothing would be decided until the clock
had caught up with itself. So times are moved forward by what the clock lost.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure


class Onward:
    """Passes moments on, none before the one before it; ``lost_us`` is what the clock has lost."""

    def __init__(self) -> None:
        """Begin with the clock as it is."""
        self.lost_us = 0
        self._last_us: int | None = None

    def __call__(self, now_us: int) -> int:
        """The moment in time that goes on."""
        if self._last_us is not None and now_us + self.lost_us < self._last_us:
            self.lost_us = self._last_us - now_us
        self._last_us = now_us + self.lost_us
        return self._last_us


class Forward:
    """Passes batches on, each after the one before it."""

    def __init__(self) -> None:
        """Begin with the clock as it is."""
        self._lost_us = 0
        self._cut_us: int | None = None
        self._ended_us = 0

    def at(self, now_us: int) -> int:
        """A moment in time that goes on: not before the last batch had ended."""
        return max(now_us + self._lost_us, self._ended_us)

    def __call__(self, batch: BatchMeasure) -> BatchMeasure:
        """The batch in time that goes on.

        Batches come one after the other, so that one which was cut before the last one was shows a
        clock that was set back: it is taken to have been cut when that one ended. Where the clock
        was set back within a batch, the parts of it that are thus unknown took no time.
        """
        if self._cut_us is not None and batch.planned_us + self._lost_us < self._cut_us:
            self._lost_us = self._ended_us - batch.planned_us
        times = (
            batch.planned_us,
            batch.handed_us,
            batch.submitted_us,
            batch.started_us,
            batch.computed_us,
            batch.ended_us,
        )
        planned, handed, submitted, started, computed, ended = accumulate(
            (time + self._lost_us for time in times), max
        )
        self._cut_us, self._ended_us = planned, ended
        return replace(
            batch,
            planned_us=planned,
            handed_us=handed,
            submitted_us=submitted,
            started_us=started,
            computed_us=computed,
            ended_us=ended,
        )
