"""Benchmarks that anyone can run: each compares its sides in one run, and says on what machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tailrace.bench import (
    batching,
    floor,
    kafka,
    overhead,
    predict,
    realtime,
    replay,
    scale,
    simulator,
    staircase,
    stela,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table


class Benchmark(Protocol):
    """A module with these two functions."""

    def measure(self, *, quick: bool) -> dict[str, Any]:
        """Run it; the result as plain data."""

    def table(self, result: dict[str, Any]) -> Table:
        """The result for a person."""


class LongBenchmark(Benchmark, Protocol):
    """One that keeps what it has done in a file, and goes on from there when it is run again."""

    def measure(self, *, quick: bool, keep: Path | None = None) -> dict[str, Any]:
        """Run what is not kept yet; the result as plain data."""


benchmarks: dict[str, Benchmark] = {
    "floor": floor,
    "batching": batching,
    "realtime": realtime,
    "kafka": kafka,
    "staircase": staircase,
    "overhead": overhead,
    "replay": replay,
    "simulator": simulator,
    "predict": predict,
    "scale": scale,
    "stela": stela,
}

long_benchmarks: dict[str, LongBenchmark] = {"scale": scale}
