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
    from rich.table import Table


class Benchmark(Protocol):
    """A module with these two functions."""

    def measure(self, *, quick: bool) -> dict[str, Any]:
        """Run it; the result as plain data."""

    def table(self, result: dict[str, Any]) -> Table:
        """The result for a person."""


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
