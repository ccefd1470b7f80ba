"""Staircase: the same flow under bounds of 10 ms and 500 ms, each on the backend that it chooses.

PrimeTest with its rising and falling load (``examples/primes.py``), with ``backend="auto"``. The
tight bound needs real-time mode; micro-batches keep the loose one. For comparison, the loose bound
also runs in real-time mode, which shows the cost of the choice: real-time mode holds its slots all
the time, but uses less CPU.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tailrace.report.machine import described
from tailrace.spark.from_file import example, find_flow
from tailrace.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIDES = ((10.0, "auto"), (500.0, "auto"), (500.0, "realtime"))
WHOLE_S = 50.0
"""The length of the load of the example."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Run every side once or three times, in turns, after an uncounted run of each.

    The CPU use of runs is compared, and a cold JVM spends more on compiling than on the flow.
    """
    rounds = 1 if quick else 3
    spark = session("staircase", master="local[4]")
    runs: list[dict[str, Any]] = []
    try:
        for bound_ms, backend in SIDES:
            _run(spark, bound_ms, backend, WHOLE_S)
        for _ in range(rounds):
            runs += [_run(spark, bound_ms, backend, WHOLE_S) for bound_ms, backend in SIDES]
    finally:
        spark.stop()
    sides = [
        _side([run for run in runs if (run["bound_ms"], run["asked"]) == side]) for side in SIDES
    ]
    return {"rounds": rounds, "sides": sides, "runs": runs, "machine": described()}


def _side(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All rounds of one side: the intervals of all of them, and the median of all other figures."""
    return {
        **{name: runs[-1][name] for name in ("bound_ms", "asked", "ran")},
        "fulfilled_share": round(sum(run["fulfilled_share"] for run in runs) / len(runs), 4),
        "mean_ms": median(run["latency_ms"]["mean_ms"] for run in runs),
        "cpu_seconds": median(run["cpu_seconds"] for run in runs),
    }


def _run(spark: SparkSession, bound_ms: float, backend: str, seconds: float) -> dict[str, Any]:
    flow = find_flow(f"{example('primes.py')}:flow")
    flow.backend, flow.constraints = backend, ()
    data = flow.keep(mean=bound_ms).run(seconds, spark).data
    chosen = data["intervals"][-1]["plan"]["backend"] if data["intervals"] else None
    reasons = [d["reason"] for d in data["decisions"] if d["policy"] == "backend"]
    return {
        "bound_ms": bound_ms,
        "asked": backend,
        "ran": chosen,
        "why": reasons[0] if reasons else None,
        "fulfilled_share": data["fulfilled_share"],
        "latency_ms": data["latency_ms"],
        "cpu_seconds": data["cpu_seconds"],
        "core_seconds": data["core_seconds"],
        "records": data["records"],
    }


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="PrimeTest under two bounds")
    for column in ("bound", "asked", "ran", "kept", "mean", "CPU s"):
        shown.add_column(column, justify="right")
    for side in result["sides"]:
        shown.add_row(
            f"{side['bound_ms']:g} ms",
            side["asked"],
            side["ran"],
            f"{side['fulfilled_share']:.0%}",
            f"{side['mean_ms']:g} ms",
            f"{side['cpu_seconds']:g}",
        )
    return shown
