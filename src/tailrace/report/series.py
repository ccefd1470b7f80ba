"""Reads rates over time from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from datetime import UTC, datetime
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.load.rates import Recorded
from tailrace.model.forecasting.forecast import Series
from tailrace.outside import MOST_RATE_PER_S, read_text
from tailrace.units import rate_per_s

if TYPE_CHECKING:
    from pathlib import Path

TIME, RATE = "time", "rate"

MOST_ROWS = 1_000_000
"""Nearly two years of rates, one per minute."""

EARLIEST_S, LATEST_S = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (10, 5000))
"""The range of times that have a date, with room for a forecast."""

LEAST_PER_S = 1e-9
"""A rate below this, one record in thirty years, counts as zero."""


def read_series(path: Path) -> Series:
    """Read a CSV file with the columns ``time`` (ISO 8601, or seconds since 1970) and ``rate``.

    Rows are at equal time steps; missing rows and empty rates are gaps.
    """
    rates, step_s, first_s = _read(path)
    return Series(tuple(rates), step_s * 1e3, round(first_s * 1e6))


def read_load(path: Path) -> Recorded:
    """Read the same file as a load: each rate lasts for a step, and a gap has the rate before it.

    Raises:
        InputError: If the file cannot be read, or its first rate is missing.
    """
    rates, step_s, _ = _read(path)
    if math.isnan(rates[0]):
        raise InputError(f"The first rate in {path} is missing: begin with a row that has one.")
    return Recorded(list(accumulate(rates, _or_before)), step_s)


def _read(path: Path) -> tuple[list[float], float, float]:
    """The rates of a file, NaN in gaps, how many seconds each lasts, and when the first begins."""
    rows = _rows(path)
    if not rows or not {TIME, RATE} <= set(rows[0]):
        raise InputError(f"{path} has no columns 'time' and 'rate': write them in its first line.")
    points = [_point(path, number, row) for number, row in enumerate(rows, start=2)]
    steps = [later - earlier for (earlier, _), (later, _) in pairwise(points)]
    step_s = min(steps, default=0.0)
    if step_s <= 0:
        raise InputError(f"The times in {path} do not rise: sort its rows, and remove duplicates.")
    first = points[0][0]
    count = (points[-1][0] - first) / step_s + 1
    if count > MOST_ROWS:
        raise InputError(
            f"The times in {path} span {count:,.0f} steps of {step_s:g} s, and at most "
            f"{MOST_ROWS:,} are read: resample them in longer steps, or give the newest."
        )
    rates = [math.nan] * round(count)
    for at, rate in points:
        place = (at - first) / step_s
        if abs(place - round(place)) > 0.01:
            raise InputError(
                f"The times in {path} are not at equal steps of {step_s:g} s: resample them."
            )
        rates[round(place)] = rate
    return rates, step_s, first


def _or_before(before: float, rate: float) -> float:
    return before if math.isnan(rate) else rate


def _rows(path: Path) -> list[dict[str, str | None]]:
    """The rows of the file, each with its values by column name."""
    text = read_text(path, "file of rates", "name a CSV file")
    try:
        rows = list(islice(csv.DictReader(io.StringIO(text, newline="")), MOST_ROWS + 1))
    except csv.Error as error:
        raise InputError(f"The rates {path} are not CSV ({error}): write time,rate rows.") from None
    if len(rows) > MOST_ROWS:
        raise InputError(
            f"The rates {path} have more than {MOST_ROWS:,} rows: resample them in longer steps, "
            "or give the newest."
        )
    return rows


def _point(path: Path, number: int, row: dict[str, str | None]) -> tuple[float, float]:
    try:
        text = (row[RATE] or "").strip()
        at, rate = _seconds((row[TIME] or "").strip()), rate_per_s(text) if text else math.nan
    except (ValueError, InputError) as error:
        raise InputError(
            f"Line {number} of {path} does not hold a time and a rate: write 2026-01-31T12:00:00 "
            "or seconds, and a number."
        ) from error
    if not EARLIEST_S <= at <= LATEST_S or rate > MOST_RATE_PER_S:
        raise InputError(
            f"Line {number} of {path} has a time outside of the years 10 to 5000, or a rate above "
            f"{MOST_RATE_PER_S:g} /s: give times in seconds and rates in records per second."
        )
    return at, 0.0 if rate < LEAST_PER_S else rate


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
