"""Benchmarks that anyone can run: each compares its sides in one run, and says on what machine.

Run as ``python -m bench NAME``, from the directory that holds this one. Each is a module of its
name, imported when it is asked for: together they take seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from tailrace.cli.results import Measurement

NAMES = (
    "floor",
    "batching",
    "realtime",
    "kafka",
    "staircase",
    "overhead",
    "replay",
    "starts",
    "simulator",
    "predict",
    "scale",
    "stela",
)

LONG = ("scale",)
"""Those that keep what they have done in a file."""


class LongBenchmark(Protocol):
    """One that keeps what it has done in a file, and goes on from there when it is run again."""

    def measure(self, *, quick: bool, keep: Path | None = None) -> dict[str, Any]:
        """Run what is not kept yet; the result as plain data."""

    def table(self, result: dict[str, Any]) -> Table:
        """The result for a person."""


def benchmark(name: str) -> Measurement:
    """The benchmark of that name."""
    return cast("Measurement", import_module(f"{__name__}.{name}"))


def long_benchmark(name: str) -> LongBenchmark:
    """One of ``LONG``, which can be told to keep its runs."""
    return cast("LongBenchmark", benchmark(name))
