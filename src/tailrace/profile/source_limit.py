"""What batches leave at their source, which may give each of them at most so many records.

A source says how many records a batch got, and not how many it holds back. The ages of those that
it gave tell: a batch that takes all there is has no record older than the cut before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure

FULL = 0.95
"""Batches that differ by less hold as much as their source gives, within what it rounds."""

IN_A_ROW = 3
"""So many batches of one size are no chance."""


class SourceLimit:
    """Passes batches on, each with what it left behind (``left_ms``) as far as that is known.

    If the records of a batch had come before the last cut, most of them, then that one did not
    take all there were, or they were late already when they reached the source. Whoever holds
    records back gives every batch as many as it may; what comes late comes in batches as they
    fall. So a batch that is not full shows how late records come, and that is taken off all ages
    until a younger one comes. Where nobody says how many fill a batch, those do that several in a
    row hold.
    """

    def __init__(self, most_records: int | None = None) -> None:
        """``most_records`` is what the source gives a batch at most, if that is known."""
        self.most_records = most_records
        """What the source gives a batch at most: as it was told, or as was seen."""
        self._told = most_records
        self._before: BatchMeasure | None = None
        self.late_ms = 0.0
        """How old records are when they reach the source."""
        self._old, self._largest = 0, 0

    def __call__(self, batch: BatchMeasure) -> BatchMeasure:
        """The batch with what it left behind."""
        if not batch.records:
            return batch
        before, self._before = self._before, batch
        if self.most_records is not None and batch.records * FULL > self.most_records:
            self.most_records = self._told  # what was seen is no limit, or not any more
        left_ms = 0.0 if before is None else self._left_ms(before, batch)
        if not left_ms:
            return batch
        self.most_records = self._told or batch.records
        return replace(batch, left_ms=left_ms)

    def _left_ms(self, before: BatchMeasure, batch: BatchMeasure) -> float:
        """In how long a time the records came that are left: since the last one of the batch did.

        Batches take records in order. At an even rate those between the middles of two batches came
        in the time between these, and the last after the middle by what its batch has of them.
        Where the rate has fallen since, fewer are left than came in such a time before.
        """
        came_ms = (batch.planned_us - before.planned_us) / 1e3
        waited_ms = (batch.planned_us - batch.arrived_us) / 1e3
        older_ms = max(0.0, waited_ms - came_ms / 2)
        self.late_ms = min(self.late_ms, older_ms)
        if waited_ms <= came_ms + self.late_ms:
            self._old, self._largest = 0, 0
            if waited_ms > came_ms:  # late, and so were those that were taken for held back
                self.most_records = self._told
            return 0.0
        alike = FULL * batch.records <= self._largest
        self._old = self._old + 1 if alike else 1
        self._largest = max(self._largest, batch.records)
        if batch.records < FULL * (self._told or self._largest):
            self.late_ms = older_ms
            self._old, self._largest = 0, 0
            return 0.0
        if self._told is None and self._old < IN_A_ROW:
            return 0.0
        passed_ms = (batch.arrived_us - before.arrived_us) / 1e3
        share = batch.records / (before.records + batch.records)
        return max(0.0, waited_ms - self.late_ms - passed_ms * share)
