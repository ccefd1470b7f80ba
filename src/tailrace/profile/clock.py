"""Time that only moves forward, from a clock that may be set back.

Batches and tasks are timed by the machine's clock. When that is set back, later events would fall
into intervals that have been judged already, and nothing would be decided until the clock had
caught up. So times are moved forward by the amount that the clock was set back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure


class Onward:
    """Passes times on in non-decreasing order; ``lost_us`` is how far the clock was set back."""

    def __init__(self) -> None:
        """Start with the clock as it is."""
        self.lost_us = 0
        self._last_us: int | None = None

    def __call__(self, now_us: int) -> int:
        """The corrected time."""
        if self._last_us is not None and now_us + self.lost_us < self._last_us:
            self.lost_us = self._last_us - now_us
        self._last_us = now_us + self.lost_us
        return self._last_us


class Forward:
    """Passes batches on with corrected times, each after the one before it."""

    def __init__(self) -> None:
        """Start with the clock as it is."""
        self._lost_us = 0
        self._cut_us: int | None = None
        self._ended_us = 0

    def at(self, now_us: int) -> int:
        """A corrected time: not before the end of the last batch."""
        return max(now_us + self._lost_us, self._ended_us)

    def __call__(self, batch: BatchMeasure) -> BatchMeasure:
        """The batch with corrected times.

        Batches are sequential, so one that was cut before the last one shows that the clock was set
        back: it is assumed to have been cut when that one ended. If the clock was set back within a
        batch, the parts whose time is unknown count as 0.
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
