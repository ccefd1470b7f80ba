"""Rates over time, as a file holds them."""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.model.forecasting.forecast import Series
from tailrace.units import rate_per_s

if TYPE_CHECKING:
    from pathlib import Path

TIME, RATE = "time", "rate"


def read_series(path: Path) -> Series:
    """Read a CSV file with the columns ``time`` (ISO 8601, or seconds since 1970) and ``rate``.

    Rows stand at equal steps; where some are missing there is a gap, and an empty rate is one too.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The rates {path} cannot be read: name a CSV file.") from error
    if not rows or not {TIME, RATE} <= set(rows[0]):
        raise InputError(f"{path} has no columns 'time' and 'rate': write them in its first line.")
    points = [_point(path, number, row) for number, row in enumerate(rows, start=2)]
    steps = [later - earlier for (earlier, _), (later, _) in pairwise(points)]
    step_s = min(steps, default=0.0)
    if step_s <= 0:
        raise InputError(f"The times in {path} do not rise: sort its rows, and leave out doubles.")
    first = points[0][0]
    rates = [math.nan] * (round((points[-1][0] - first) / step_s) + 1)
    for at, rate in points:
        place = (at - first) / step_s
        if abs(place - round(place)) > 0.01:
            raise InputError(
                f"The times in {path} are not at equal steps of {step_s:g} s: resample them."
            )
        rates[round(place)] = rate
    return Series(tuple(rates), step_s * 1e3, round(first * 1e6))


def _point(path: Path, number: int, row: dict[str, str | None]) -> tuple[float, float]:
    try:
        rate = (row[RATE] or "").strip()
        return _seconds((row[TIME] or "").strip()), rate_per_s(rate) if rate else math.nan
    except (ValueError, InputError) as error:
        raise InputError(
            f"Line {number} of {path} does not hold a time and a rate: write 2026-01-31T12:00:00 "
            "or seconds, and a number."
        ) from error


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
