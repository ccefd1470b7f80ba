"""The options that commands share, each declared once, and what their values mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.constraint import only_constraint
from tailrace.errors import InputError
from tailrace.masking import MASK, masked
from tailrace.outside import LARGEST, MOST_MS, MOST_RATE_PER_S, MOST_TASKS
from tailrace.units import duration_ms, positive_duration_ms, rate_per_s, show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.constraint import Constraint

# --- of every command ---------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]

# --- of commands that measure -------------------------------------------------------------------

Quick = Annotated[bool, typer.Option(help="A short run whose ratios still hold.")]
OutFile = Annotated[Path | None, typer.Option(help="Also write the result to this file.")]

# --- of commands that run a flow ----------------------------------------------------------------

FlowTarget = Annotated[str, typer.Argument(metavar="FILE:FLOW", help="Where the flow is.")]
Master = Annotated[str | None, typer.Option(help="Spark master; default: all cores here.")]
Conf = Annotated[list[str] | None, typer.Option(help="A Spark setting, as key=value.")]

# --- of commands that read a profile ------------------------------------------------------------

ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile file.")]
Rate = Annotated[str | None, typer.Option(help="The load, such as '20 k/s'; default: as measured.")]

Interval = Annotated[str | None, typer.Option(help="The batch interval, such as '500 ms'.")]
Cores = Annotated[int | None, typer.Option(help="How many tasks run at once.")]
Partitions = Annotated[list[str] | None, typer.Option(help="Partitions of a step, as step=8.")]
OnBackend = Annotated[str | None, typer.Option("--backend", help="microbatch or realtime.")]
Lifetime = Annotated[str | None, typer.Option(help="Lifetime of hand-overs in real-time mode.")]
RowLimit = Annotated[int | None, typer.Option(help="The most records of a micro-batch.")]

Mean = Annotated[str | None, typer.Option(help="A bound on the mean latency.")]
P95 = Annotated[str | None, typer.Option(help="A bound on the 95th percentile.")]
P99 = Annotated[str | None, typer.Option(help="A bound on the 99th percentile.")]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds on a latency; a user gives at most one."""

    mean: Mean = None
    p95: P95 = None
    p99: P99 = None

    def constraint(self) -> Constraint | None:
        """The one bound that was given, if any was."""
        given = {"mean": self.mean, "p95": self.p95, "p99": self.p99}
        texts = {name: text for name, text in given.items() if text is not None}
        found = only_constraint(texts, "5 s")
        for name, text in texts.items():
            duration(text, f"--{name}")
        return found


# --- what values mean ---------------------------------------------------------------------------


def count(value: int, option: str, most: int = MOST_TASKS) -> int:
    """A whole number of cores, partitions or rows."""
    if not 1 <= value <= most:
        raise InputError(f"{option} {value} is out of range: give from 1 to {most:,}.")
    return value


def records(value: float, option: str) -> float:
    """A number of records, possibly zero."""
    if not 0 <= value <= LARGEST:
        raise InputError(f"{option} {value:g} is out of range: give from 0 to {LARGEST:,} records.")
    return value


def rate(text: str, option: str) -> float:
    """A rate, in records per second."""
    found = rate_per_s(text)
    if found > MOST_RATE_PER_S:
        raise InputError(f"{option} {text} is too high: {show_rate(MOST_RATE_PER_S)} is the most.")
    return found


def duration(text: str, option: str, *, zero: bool = False) -> float:
    """A time in milliseconds, above zero unless ``zero`` is allowed."""
    found_ms = duration_ms(text) if zero else positive_duration_ms(text, option)
    if found_ms > MOST_MS:
        raise InputError(f"{option} {text} is too long: give {show_duration(MOST_MS)} at most.")
    return found_ms


def check_length(seconds: float | None) -> None:
    """Refuse a run that could not begin or would not end."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"A run cannot take {seconds:g} seconds: give a number above 0.")


def settings(pairs: list[str] | None) -> dict[str, str]:
    """Spark settings by name."""
    found = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            shown = f"{masked(key)}{equals and f'={MASK}'}"
            raise InputError(f"'{shown}' is not a Spark setting: write --conf key=value.")
        found[key] = value
    return found
