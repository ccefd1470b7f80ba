"""Reads the load of an earlier run from its report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.load.rates import Recorded
from tailrace.outside import MOST_MS, parse_json, read_text, shown

if TYPE_CHECKING:
    from pathlib import Path

MOST_INTERVALS = 1_000_000
"""Nearly two months of intervals of 5 s."""


def read_recorded(path: Path) -> Recorded:
    """The arrival rates of a run, interval by interval.

    An interval without records is missing in a report; its rate is 0.

    Raises:
        InputError: If the file cannot be read, or is not the report of a run.
    """
    text = read_text(path, "report", "name the report.json of a run")
    data = parse_json(text, f"The report {path}")
    intervals = data.get("intervals") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(intervals, list) or not intervals:
        raise InputError(
            f"{path} is no report of a run with intervals: name the report.json that "
            "'tailrace run --out' wrote."
        )
    every_us = _number(path, data, "interval_ms", 1.0, MOST_MS) * 1e3
    starts_us = [_number(path, found, "start_us", 0.0, math.inf) for found in intervals]
    places = [(start_us - starts_us[0]) / every_us for start_us in starts_us]
    if min(places) < 0 or max(places) >= MOST_INTERVALS:
        raise InputError(
            f"The intervals in {path} do not follow one another within {MOST_INTERVALS:,} of them: "
            "name the report.json of a run as it was written."
        )
    rates = [0.0] * (round(max(places)) + 1)
    for place, found in zip(places, intervals, strict=True):
        rates[round(place)] += _number(path, found, "records", 0.0, math.inf) / every_us * 1e6
    return Recorded(rates, every_us / 1e6)


def _number(path: Path, found: Any, name: str, least: float, most: float) -> float:
    """A number of a report, or of one of its intervals."""
    value = found.get(name) if isinstance(found, dict) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value is None or not least <= value <= most:
        raise InputError(
            f"The report {path} has {shown(value)} as '{name}', which is no number from {least:g} "
            "up: name the report.json of a run as it was written."
        )
    return float(value)
