"""Reads durations, rates and sizes as people write them, and prints them.

Every public function of Tailrace that takes a duration, a rate or a size accepts what these
functions accept. Inside, a duration is milliseconds, a rate is records per second and a size is
bytes. A bare number, or a text with only a number, is already in that unit.

>>> duration_ms("2 min"), rate_per_s("2 k/s"), size_bytes("1 GiB")
(120000.0, 2000.0, 1073741824)
>>> show_duration(1500.0), show_rate(2e6), show_size(1536)
('1.5 s', '2 M/s', '1.5 KiB')
"""

from __future__ import annotations

import contextlib
import math
import re
from datetime import timedelta
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Final

from tailrace.errors import UnitError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DURATION_MS: Final = {
    "us": 1e-3,
    "\u00b5s": 1e-3,  # the micro sign
    "\u03bcs": 1e-3,  # the Greek letter, which looks the same
    "ms": 1.0,
    "s": 1e3,
    "min": 6e4,
    "h": 3.6e6,
}
_RATE_PER_S: Final = {
    f"{prefix}/{time}": scale / seconds
    for prefix, scale in {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}.items()
    for time, seconds in {"s": 1.0, "min": 60.0, "h": 3600.0}.items()
}
_SIZE_BYTES: Final = {
    "B": 1.0,
    **{f"{prefix}B": 1e3**power for prefix, power in zip("kKMGT", (1, 1, 2, 3, 4), strict=True)},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
}
# The units that are printed, largest first, each with the smallest value that it is used for.
_SHOWN_DURATIONS: Final = (
    ("h", 3.6e6, 1.0),
    ("min", 6e4, 1.0),
    ("s", 1e3, 1.0),
    ("ms", 1.0, 0.1),
    ("us", 1e-3, 0.0),
)
_SHOWN_RATES: Final = (
    ("G/s", 1e9, 1.0),
    ("M/s", 1e6, 1.0),
    ("k/s", 1e3, 1.0),
    ("/s", 1.0, 0.0),
)
_SHOWN_SIZES: Final = (
    ("TiB", 2.0**40, 1.0),
    ("GiB", 2.0**30, 1.0),
    ("MiB", 2.0**20, 1.0),
    ("KiB", 2.0**10, 1.0),
)
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\d\s.+-]*)", re.ASCII
)


def duration_ms(value: str | float | timedelta) -> float:
    """Read a duration, in milliseconds; zero is a duration.

    Args:
        value: A text such as "400 ms", "5 s", "2 min", "1 h" or "250us", a timedelta, or a
            number of milliseconds.

    Raises:
        UnitError: If it is not a duration, is negative or is not finite.
    """
    number = value / timedelta(milliseconds=1) if isinstance(value, timedelta) else value
    hint = 'a duration: write a number and a unit, as in "400 ms" or "5 s"'
    read, scale = _read(value, number, _DURATION_MS, hint)
    return read * scale


def positive_duration_ms(value: str | float | timedelta, what: str) -> float:
    """Read a duration that must be above zero; the error names what it is for.

    Args:
        value: As for `duration_ms`.
        what: What the duration is for, such as "the bound".

    Raises:
        UnitError: If it is not a duration above zero.
    """
    try:
        read_ms = duration_ms(value)
    except UnitError as error:
        raise UnitError(f"{what}: {error}") from None
    if read_ms == 0:
        raise UnitError(f'{what}: {value!r} must be above zero: write "400 ms" or "5 s".')
    return read_ms


def rate_per_s(value: str | float) -> float:
    """Read a rate, in records per second; zero is a rate.

    Args:
        value: A text such as "2 k/s", "1.5 M/s" or "600 /min", or a number of records per second.

    Raises:
        UnitError: If it is not a rate, is negative or is not finite.
    """
    hint = 'a rate: write a number and a unit, as in "850 /s", "2 k/s" or "600 /min"'
    read, scale = _read(value, value, _RATE_PER_S, hint)
    return read * scale


def size_bytes(value: str | float) -> int:
    """Read a size, in whole bytes: kB is 1000 bytes, KiB is 1024.

    A fraction of a larger unit is rounded to the nearest byte; a fraction of a byte is an error.

    Args:
        value: A text such as "1 GiB", "10 kB" or "512 B", or a number of bytes.

    Raises:
        UnitError: If it is not a size, is negative, is not finite or is a fraction of a byte.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    hint = 'a size: write a whole number of bytes, as in "512 B", "10 kB" or "1 GiB"'
    read, scale = _read(value, value, _SIZE_BYTES, hint)
    if scale == 1 and not read.is_integer():
        raise UnitError(f"{value!r} is not {hint}.")
    return round(read * scale)


def show_duration(ms: float) -> str:
    """Print a duration to three significant digits, such as "412 ms", "1.5 s" or "2 min"."""
    return _show(ms, _SHOWN_DURATIONS) if ms else "0 ms"


def show_rate(per_s: float) -> str:
    """Print a rate to three significant digits, such as "2 k/s" or "850 /s"."""
    return _show(per_s, _SHOWN_RATES)


def show_size(size: int) -> str:
    """Print a size in binary units to three significant digits; below 1 KiB it is exact."""
    return _show(size, _SHOWN_SIZES) if abs(size) >= 1024 else f"{size} B"


def _read(
    asked: object, value: object, scales: Mapping[str, float], hint: str
) -> tuple[float, float]:
    """Read a number, or a text with a number and perhaps a unit, as (number, scale of the unit).

    `asked` is what the user wrote, for the error.
    """
    number, scale = math.nan, 1.0
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        unit = match["unit"] if match else ""
        if match is None or (unit and unit not in scales):
            raise UnitError(f"{asked!r} is not {hint}.")
        number, scale = float(match["number"]), scales[unit] if unit else 1.0
    elif isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an int beyond every float is not finite
            number = float(value)
    else:
        raise UnitError(f"{asked!r} is not {hint}.")
    if not 0 <= number * scale < math.inf:
        raise UnitError(f"{asked!r} is negative or not finite, so it is not {hint}.")
    return number, scale


def _show(value: float, scales: tuple[tuple[str, float, float], ...]) -> str:
    """Print in the largest unit whose printed number is not below that unit's minimum."""
    if not math.isfinite(value):
        return str(value)
    shown = ((f"{value / scale:.3g}", unit, least) for unit, scale, least in scales)
    printed, unit = next((n, unit) for n, unit, least in shown if abs(float(n)) >= least)
    return f"{Decimal(printed):f} {unit}"


def finite(value: float | None, digits: int) -> float | None:
    """A number as JSON can hold it: JSON has no infinity, so a value that is not finite is None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
