"""What batches leave at a source that limits the number of records per batch.

A source says how many records a batch got, but not how many it holds back. The ages of the records
show it: a batch that takes everything has no record older than the previous cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure

FULL = 0.95
"""Batches whose sizes differ by less than this are at the source's limit, up to rounding."""

IN_A_ROW = 3
"""This many batches of equal size are not a coincidence."""


class SourceLimit:
    """Passes batches on, each with what it left behind (``left_ms``), as far as known.

    If most records of a batch arrived before the last cut, then either that batch did not take all
    records, or they were already late when they reached the source. A source that holds records
    back fills every batch to its limit; late records come in batches of any size. So a batch below
    the limit shows how late records are, and that delay is subtracted from all ages until a smaller
    one is seen. If the limit is not known, it is taken from several consecutive batches of equal
    size.
    """

    def __init__(self, most_records: int | None = None) -> None:
        """``most_records`` is the source's limit of records per batch, if known."""
        self.most_records = most_records
        """The source's limit of records per batch: as given, or as observed."""
        self._told = most_records
        self._before: BatchMeasure | None = None
        self.late_ms = 0.0
        """How old records are when they reach the source."""
        self._old, self._largest = 0, 0

    def __call__(self, batch: BatchMeasure) -> BatchMeasure:
        """The batch, with what it left behind."""
        if not batch.records:
            return batch
        before, self._before = self._before, batch
        if self.most_records is not None and batch.records * FULL > self.most_records:
            self.most_records = self._told  # the observed limit is wrong or outdated
        left_ms = 0.0 if before is None else self._left_ms(before, batch)
        if not left_ms:
            return batch
        self.most_records = self._told or batch.records
        return replace(batch, left_ms=left_ms)

    def _left_ms(self, before: BatchMeasure, batch: BatchMeasure) -> float:
        """The time span over which the remaining records arrived: since the last one of the batch.

        Batches take records in order. At a constant rate, the records between the middles of two
        batches arrived in the time between those, and the last one after the middle in proportion
        to the size of its batch. If the rate has fallen since, fewer records are left than this
        assumes.
        """
        came_ms = (batch.planned_us - before.planned_us) / 1e3
        waited_ms = (batch.planned_us - batch.arrived_us) / 1e3
        older_ms = max(0.0, waited_ms - came_ms / 2)
        self.late_ms = min(self.late_ms, older_ms)
        if waited_ms <= came_ms + self.late_ms:
            self._old, self._largest = 0, 0
            if waited_ms > came_ms:  # late, as were those thought to be held back
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
