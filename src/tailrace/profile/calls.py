"""What a step takes for a call, and what for each record in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.profile.costs import USUAL_CALL_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

BENT = 0.02
"""The relative amount by which the times of calls of different sizes may be off any line."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Sums over the calls of a step, each with its number of records and its time.

    Records reach a step in Arrow batches. A call takes ``f + s*n`` for n records: f for what is
    done once, such as converting columns to rows and back, and s for each record. The two can be
    separated only if calls differ in size, and not by size alone: while a machine is slow, records
    pile up, so large calls are slow calls, and records would seem to take longer than they do. So
    we use the growth z of a call over the one before it: both ran while the machine was equally
    fast, and the time that a call takes cannot influence its own size. ``grown`` is the sum of z,
    ``grown_records`` that of z*n, ``grown_ms`` that of z times the time taken.
    """

    count: int = 0
    records: int = 0
    busy_ms: float = 0.0
    grown: int = 0
    grown_records: int = 0
    grown_ms: float = 0.0

    @classmethod
    def of(cls, calls: Iterable[tuple[int, float]]) -> Calls:
        """Sums over consecutive calls, each given by its records and the time it took."""
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
        """The sums for a part of them, assumed to be like the whole."""
        return Calls(
            round(self.count * fraction),
            round(self.records * fraction),
            self.busy_ms * fraction,
            round(self.grown * fraction),
            round(self.grown_records * fraction),
            self.grown_ms * fraction,
        )

    def line(self) -> tuple[float, float]:
        """``(f, s)``, neither below zero, with f shrunk towards its usual value.

        The slope is ``cov(z, took) / cov(z, n)``: least squares with z as the instrument. Its
        precision depends on how much calls differ in size: if their times are off the line by a
        share b, perhaps systematically over a thousand calls, f is off by
        ``b*took*size/deviation``. It is averaged with the usual value, or half of what a call takes
        if that is less; each is weighted by the inverse of its variance.
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
