"""Reads and checks what tasks send to the driver in datagrams: a message is valid or rejected.

Anything may come to a port, and a message of our own may have been truncated or written by another
version. So every value is checked before it is used: a wrong one raises ``ValueError``, and the
server counts the message as bad.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.profile.histogram import LogHistogram
from tailrace.profile.live import ChainReport, SinkReport
from tailrace.profile.moments import Moments
from tailrace.profile.stall import Stall
from tailrace.spark.backends.arrivals import measured
from tailrace.spark.worker.meter import Meter

if TYPE_CHECKING:
    from tailrace.profile.batch import StepMeasure

MOST = 1 << 62
"""Above any count of records and any time in nanoseconds."""

MOST_SUM = 1 << 100
MOST_NUMBER = 1e30
"""Above any sum of ages in microseconds, and any sum of squares of milliseconds."""

LATEST_US = 1 << 53
"""Long after any run of today has ended."""

MOST_MESSAGES = 1 << 32

MOST_BINS = 10_000
"""Fewer bins than this reach beyond the age of the universe."""

LONGEST_TEXT = 2_000

Said = SinkReport | ChainReport | Stall | None
"""None is a task that is alive."""


class Envelope(NamedTuple):
    """The sender of a message, its number, and how many could not be sent before it."""

    speaker: str
    number: int
    unsent: int


def opened(said: bytes, token: str) -> dict[str, Any] | None:
    """A message of our own tasks; None for anything else that comes to the port."""
    try:
        message = json.loads(said)
    except (ValueError, RecursionError):
        return None
    own = isinstance(message, dict) and message.get("token") == token
    return message if own else None


def envelope(message: dict[str, Any]) -> Envelope:
    """The envelope of a message."""
    number = _whole(message.get("number"), most=MOST_MESSAGES)
    unsent = _whole(message.get("unsent", 0), most=MOST_MESSAGES)
    return Envelope(_text(message, "speaker"), number, unsent)


def read(message: dict[str, Any]) -> Said:
    """The content of a message.

    Raises:
        ValueError: If anything is missing or invalid.
    """
    if "sink" in message:
        return _sink_report(message)
    if "stalled" in message:
        return _stall(message)
    if "alive" in message:
        return None
    return _chain_report(message)


def _sink_report(message: dict[str, Any]) -> SinkReport:
    first_us, last_us = _span(message)
    return SinkReport(
        _text(message, "sink"),
        _batch(message),
        _count(message, "partition"),
        first_us,
        last_us,
        Moments(_count(message, "count"), _number(message, "mean_ms"), _number(message, "m2")),
        _histogram(message, "bins"),
    )


def _chain_report(message: dict[str, Any]) -> ChainReport:
    first_us, last_us = _span(message)
    records, partition = _count(message, "records"), _count(message, "partition")
    return ChainReport(
        _text(message, "chain"),
        _batch(message),
        partition,
        first_us,
        last_us,
        _count(message, "handovers"),
        records,
        _sum(message, "read_us") / 1e3 / max(1, records),
        _sum(message, "entered_us") / 1e3 / max(1, records),
        _count(message, "cpu_ns") / 1e6,
        {name: _step(said, partition) for name, said in _table(message, "steps").items()},
    )


def _step(said: object, partition: int) -> StepMeasure:
    if not isinstance(said, dict):
        raise ValueError(f"a step is {type(said).__name__}")  # noqa: TRY004 - of one kind with the rest
    calls, *sizes = _several(said, "calls", 4)
    sampled, *sums = _several(said, "sampled", 3)
    grown, grown_records, grown_ns = map(_signed, sizes)
    sum_ms, square_ms = map(_finite, sums)
    meter = Meter(
        records_in=_count(said, "in"),
        records_out=_count(said, "out"),
        errors=_count(said, "errors"),
        busy_ns=max(0, _sum(said, "busy_ns")),
        cpu_ns=_count(said, "cpu_ns"),
        calls=_whole(calls),
        grown=grown,
        grown_records=grown_records,
        grown_ns=grown_ns,
        sampled=_whole(sampled),
        sampled_sum_ms=sum_ms,
        sampled_square_ms=square_ms,
        residence=_bins(said, "residence"),
        keys=Counter({key: _whole(held) for key, held in _table(said, "keys").items()}),
        key_type=_text(said, "key_type"),
    )
    entered_ms = _sum(said, "age_in_us") / 1e3 / max(1, meter.records_in)
    left_ms = _sum(said, "age_out_us") / 1e3 / max(1, meter.records_out)
    return measured(meter, partition, entered_ms, left_ms)


def _stall(message: dict[str, Any]) -> Stall:
    stack = message.get("stack", [])
    if not isinstance(stack, list) or not all(isinstance(line, str) for line in stack):
        raise ValueError("stack")
    return Stall(
        "step",
        _batch(message),
        _number(message, "seconds"),
        _text(message, "stalled"),
        _count(message, "partition"),
        stack=tuple(line[:LONGEST_TEXT] for line in stack[:50]),
        over=message.get("over") is True,
    )


# --- values ----------------------------------------------------------------------------------


def _whole(value: object, *, least: int = 0, most: int = MOST) -> int:
    if type(value) is not int or not least <= value < most:
        raise ValueError(f"{repr(value)[:50]} is not a count")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value < MOST_NUMBER:
        raise ValueError(f"{repr(value)[:50]} is not a valid number")
    return float(value)


def _count(message: dict[str, Any], key: str) -> int:
    return _whole(message.get(key))


def _sum(message: dict[str, Any], key: str) -> int:
    """A sum of ages or times: below zero if clocks differ or jump."""
    return _signed(message.get(key))


def _signed(value: object) -> int:
    return _whole(value, least=-MOST_SUM, most=MOST_SUM)


def _number(message: dict[str, Any], key: str) -> float:
    return _finite(message.get(key))


def _text(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text")  # noqa: TRY004 - of one kind with the rest
    return value


def _table(message: dict[str, Any], key: str) -> dict[str, Any]:
    value = message.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not an object")  # noqa: TRY004 - of one kind with the rest
    return value


def _several(message: dict[str, Any], key: str, number: int) -> list[Any]:
    value = message.get(key)
    if not isinstance(value, list) or len(value) != number:
        raise ValueError(f"{key} is not a list of {number}")
    return value


def _batch(message: dict[str, Any]) -> int:
    """The batch; a task outside of any counts as in the first."""
    value = message.get("batch")
    return 0 if value is None else _whole(value)


def _span(message: dict[str, Any]) -> tuple[int, int]:
    first_us, last_us = (_whole(message.get(k), most=LATEST_US) for k in ("first_us", "last_us"))
    return first_us, last_us


def _histogram(message: dict[str, Any], key: str) -> LogHistogram:
    return LogHistogram.from_bins(_bins(message, key))


def _bins(message: dict[str, Any], key: str) -> Counter[int]:
    counts = Counter({int(bin_): _whole(held) for bin_, held in _table(message, key).items()})
    if any(not 0 <= bin_ <= MOST_BINS for bin_ in counts) or math.fsum(counts.values()) >= MOST:
        raise ValueError(f"{key} has an invalid bin")
    return counts
