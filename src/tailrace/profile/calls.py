"""What a step takes for a call, and what for each record of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BELIEF = 2.0
"""How many calls of twice the usual size it takes to be believed that calls cost by themselves."""

MOST_MS = 1.0


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
        """``(f, s)`` by least squares, neither below zero.

        Calls of one size say nothing of f, which is then taken as 0: the slope is drawn towards
        busy time over records as if two calls of twice the usual size had shown that. Nor is f
        above a millisecond: where large calls seem to show that, it is noise.
        """
        if not self.records or not self.count:
            return 0.0, 0.0
        size, took_ms = self.records / self.count, self.busy_ms / self.count
        ratio, weight = took_ms / size, BELIEF * size**2
        spread = self.squares - self.count * size**2
        cross = self.cross_ms - self.count * size * took_ms
        slope = (cross + weight * ratio) / (max(0.0, spread) + weight)
        fixed_ms = min(max(0.0, took_ms - slope * size), took_ms, MOST_MS)
        return fixed_ms, (took_ms - fixed_ms) / size
