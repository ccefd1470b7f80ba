"""What a step takes for a call, and what for each record of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.profile.costs import USUAL_CALL_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

BENT = 0.02
"""The share by which the time of calls of different sizes may differ from any line."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Sums over the calls of a step, each with some records, that took some time.

    Records come to a step in Arrow batches. A call takes ``f + s*n`` for n records: f for what is
    done once, such as making rows of columns and back, and s for each record. Which part is which
    shows only where calls differ in size, and not by size alone: while a machine is slow, records
    pile up, so that large calls are slow calls, and records would seem to take longer than they do.
    What tells is by how much a call is larger than the one before it, z: both have met the machine
    alike, and how long this one takes came after its size. ``grown`` is the sum of z,
    ``grown_records`` that of z*n, ``grown_ms`` that of z and the time taken.
    """

    count: int = 0
    records: int = 0
    busy_ms: float = 0.0
    grown: int = 0
    grown_records: int = 0
    grown_ms: float = 0.0

    @classmethod
    def of(cls, calls: Iterable[tuple[int, float]]) -> Calls:
        """These calls, one after the other, each with its records and the time it took."""
        calls = list(calls)
        grown = [n - before for (before, _), (n, _) in zip(calls[:1] + calls, calls, strict=False)]
        return cls(
            len(calls),
            sum(n for n, _ in calls),
            sum(ms for _, ms in calls),
            sum(grown),
            sum(z * n for z, (n, _) in zip(grown, calls, strict=True)),
            sum(z * ms for z, (_, ms) in zip(grown, calls, strict=True)),
        )

    @classmethod
    def merged(cls, parts: Iterable[Calls]) -> Calls:
        """All calls of all parts."""
        parts = list(parts)
        return cls(
            sum(part.count for part in parts),
            sum(part.records for part in parts),
            sum(part.busy_ms for part in parts),
            sum(part.grown for part in parts),
            sum(part.grown_records for part in parts),
            sum(part.grown_ms for part in parts),
        )

    def part(self, fraction: float) -> Calls:
        """What falls to a part of them, taken to be like the whole."""
        return Calls(
            round(self.count * fraction),
            round(self.records * fraction),
            self.busy_ms * fraction,
            round(self.grown * fraction),
            round(self.grown_records * fraction),
            self.grown_ms * fraction,
        )

    def line(self) -> tuple[float, float]:
        """``(f, s)``, neither below zero, f drawn towards what is usual.

        The slope is ``cov(z, took) / cov(z, n)``: least squares with z as its instrument. It is
        only as good as calls differ in size: if their times are off the line by a share b, which
        also a thousand calls may be in the same way, f is off by ``b*took*size/deviation``.
        Against that stands what is usual, or half of what a call takes if that is less; each counts
        by the inverse of its variance.
        """
        if not self.records or not self.count:
            return 0.0, 0.0
        size, took_ms = self.records / self.count, self.busy_ms / self.count
        usual_ms = min(USUAL_CALL_MS, took_ms / 2)
        spread = (self.grown_records - self.grown * size) / self.count
        if spread <= 1e-9 * size**2:
            return usual_ms, (took_ms - usual_ms) / size
        slope = (self.grown_ms - self.grown * took_ms) / self.count / spread
        off_ms = BENT * took_ms * size / math.sqrt(spread)
        trust = USUAL_CALL_MS**2 / (USUAL_CALL_MS**2 + off_ms**2)
        found_ms = trust * (took_ms - slope * size) + (1 - trust) * usual_ms
        fixed_ms = min(max(0.0, found_ms), took_ms)
        return fixed_ms, (took_ms - fixed_ms) / size
