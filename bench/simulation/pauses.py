"""Pauses, in which no work starts: those between real-time batches, and merging with others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.model.realtime import Boundary

    Floats = NDArray[np.float64]


def gaps(boundary: Boundary, until_ms: float) -> tuple[tuple[float, float], ...]:
    """The pauses from real-time batches: a gap after each batch; the first batch starts at 0."""
    whole_ms = boundary.length_ms + boundary.gap_ms
    if boundary.gap_ms <= 0 or whole_ms <= 0:
        return ()
    ends = np.arange(1, math.ceil(until_ms / whole_ms) + 1) * whole_ms
    return tuple((float(end) - boundary.gap_ms, float(end)) for end in ends)


def merged(pauses: Sequence[tuple[float, float]]) -> Floats:
    """Pauses in order, with adjacent ones merged."""
    table: list[list[float]] = []
    for begin, end in sorted(pauses):
        if not (math.isfinite(begin) and math.isfinite(end) and begin <= end):
            raise InputError(f"A pause from {begin} to {end} ms is impossible: start comes first.")
        if table and begin <= table[-1][1]:
            table[-1][1] = max(end, table[-1][1])
        elif begin < end:
            table.append([begin, end])
    return np.array(table, dtype=np.float64).reshape(-1, 2)
