"""What a step takes for a call, and what for each record of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

USUAL_MS = 0.15
"""What a call takes by itself, give or take as much, as long as calls say nothing else."""

BENT = 0.02
"""The share by which the time of calls of different sizes may differ from any line."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Sums over the calls of a step, each with some records, that took some time.

    Records come to a step in Arrow batches. A call takes ``f + s*n`` for n records: f for what is
    done once, such as making rows of columns and back, and s for each record. Which part is which
    shows only where calls differ in size.
    """

    count: int = 0
    records: int = 0
    squares: int = 0
    busy_ms: float = 0.0
    cross_ms: float = 0.0

    @classmethod
    def merged(cls, parts: Iterable[Calls]) -> Calls:
        """All calls of all parts."""
        parts = list(parts)
        return cls(
            sum(part.count for part in parts),
            sum(part.records for part in parts),
            sum(part.squares for part in parts),
            sum(part.busy_ms for part in parts),
            sum(part.cross_ms for part in parts),
        )

    def part(self, fraction: float) -> Calls:
        """What falls to a part of them, taken to be like the whole."""
        return Calls(
            round(self.count * fraction),
            round(self.records * fraction),
            round(self.squares * fraction),
            self.busy_ms * fraction,
            self.cross_ms * fraction,
        )

    def line(self) -> tuple[float, float]:
        """``(f, s)`` by least squares, neither below zero, f drawn towards what is usual.

        The line is only as good as calls differ in size: if their times are off it by a share b,
        which also a thousand calls may be in the same way, f is off by ``b*took*size/deviation``.
        Against that stands what is usual, or half of what a call takes if that is less; each counts
        by the inverse of its variance.
        """
        if not self.records or not self.count:
            return 0.0, 0.0
        size, took_ms = self.records / self.count, self.busy_ms / self.count
        usual_ms = min(USUAL_MS, took_ms / 2)
        spread = self.squares / self.count - size**2
        if spread <= 1e-9 * size**2:
            return usual_ms, (took_ms - usual_ms) / size
        slope = (self.cross_ms / self.count - size * took_ms) / spread
        off_ms = BENT * took_ms * size / math.sqrt(spread)
        trust = USUAL_MS**2 / (USUAL_MS**2 + off_ms**2)
        found_ms = trust * (took_ms - slope * size) + (1 - trust) * usual_ms
        fixed_ms = min(max(0.0, found_ms), took_ms)
        return fixed_ms, (took_ms - fixed_ms) / size
