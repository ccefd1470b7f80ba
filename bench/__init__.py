"""Benchmarks: each compares its sides in one run, and records the machine it ran on.

Run them as ``python -m bench NAME``, from the directory that holds this one. Each is a module,
imported only when needed: all together take seconds to import.
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
    "rehearse",
    "stela",
)

LONG = ("scale", "rehearse")
"""Benchmarks that can keep finished runs in a file."""


class LongBenchmark(Protocol):
    """A benchmark that keeps finished runs in a file, and resumes from there when run again."""

    def measure(self, *, quick: bool, keep: Path | None = None) -> dict[str, Any]:
        """Run everything that is not kept yet; the result as plain data."""

    def table(self, result: dict[str, Any]) -> Table:
        """The result as a table."""


def benchmark(name: str) -> Measurement:
    """The benchmark with this name."""
    return cast("Measurement", import_module(f"{__name__}.{name}"))


def long_benchmark(name: str) -> LongBenchmark:
    """A benchmark in ``LONG``, which can keep its runs."""
    return cast("LongBenchmark", benchmark(name))
