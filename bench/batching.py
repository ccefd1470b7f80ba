"""Batching: does the batch interval use what a bound allows, and what does that save?

A constant load under four bounds on the mean, and back to back for comparison. For each bound: the
share of intervals with a mean between 70 % and 100 % of it, and the CPU time per million records.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.floor import pass_on
from tailrace import load
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.health.usage import cpu_seconds
from tailrace.spark.pipeline.step import batch_step
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.profile.batch import BatchMeasure

BOUNDS_MS = (300.0, 500.0, 1_000.0, 2_000.0)
BAND = (0.7, 1.0)
RATE_PER_S = 2_000


def measure(*, quick: bool) -> dict[str, Any]:
    """Run each bound in turn in one session, after a first run that only warms it up."""
    settle_s, measured_s = (15.0, 20.0) if quick else (25.0, 105.0)
    spark = session("batching")
    try:
        _run(spark, None, 10.0, 5.0)
        back = _run(spark, None, settle_s, measured_s)
        bounds = [_run(spark, bound, settle_s, measured_s) for bound in BOUNDS_MS]
    finally:
        spark.stop()
    return {
        "rate_per_s": RATE_PER_S,
        "measured_s": measured_s,
        "bounds": bounds,
        "back_to_back": back,
        "cpu_ratio_at_longest": round(
            back["cpu_s_per_million"] / bounds[-1]["cpu_s_per_million"], 2
        ),
        "machine": described(),
    }


class _Counter:
    """Counts records and batches once counting is switched on."""

    def __init__(self) -> None:
        self.counting = False
        self.records = 0
        self.batches = 0

    def __call__(self, batch: BatchMeasure) -> None:
        if self.counting:
            self.records += batch.records
            self.batches += 1


def _run(
    spark: SparkSession, bound_ms: float | None, settle_s: float, measured_s: float
) -> dict[str, Any]:
    trace = load.generate(load.Constant(RATE_PER_S, settle_s + measured_s + 20), seed=1)

    def pipeline(records: DataFrame) -> DataFrame:
        records = records.select("seq", "due", "key")
        for name in ("first", "second", "third"):
            records = records.transform(
                batch_step(name, pass_on, "seq long, due timestamp, key string")
            )
        return records

    source = replay(trace, partitions=1)
    flow = Flow("batching", source, pipeline, sinks.discard(), warm_up=f"{settle_s} s")
    if bound_ms is not None:
        flow.keep(mean=bound_ms)
    counter = _Counter()
    run = flow.start(spark, on_measure=counter)
    threading.Event().wait(settle_s)
    counter.counting, began_cpu_s = True, cpu_seconds()
    threading.Event().wait(measured_s)
    counter.counting, cpu_s = False, cpu_seconds() - began_cpu_s
    report = run.stop()
    means = [i["mean_ms"] for i in report.intervals[:-1] if not i["warm_up"]]
    result = {
        "bound_ms": bound_ms,
        "mean_ms": round(sum(means) / len(means), 1),
        "intervals": len(means),
        "batches_per_s": round(counter.batches / measured_s, 2),
        "cpu_s_per_million": round(cpu_s / counter.records * 1e6, 2),
    }
    if bound_ms is None:
        return result
    inside = [BAND[0] * bound_ms <= mean <= BAND[1] * bound_ms for mean in means]
    kept = [mean <= bound_ms for mean in means]
    return {
        **result,
        "share_in_band": round(sum(inside) / len(inside), 3),
        "share_fulfilled": round(sum(kept) / len(kept), 3),
    }


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title=f"Adaptive batching at {result['rate_per_s']} records/s")
    for column in ("bound", "mean", "in band", "kept", "batches/s", "CPU s per million"):
        shown.add_column(column, justify="right")
    for row in (*result["bounds"], result["back_to_back"]):
        bound = row["bound_ms"]
        shown.add_row(
            "back to back" if bound is None else f"{bound:g} ms",
            f"{row['mean_ms']:g} ms",
            "" if bound is None else f"{row['share_in_band']:.0%}",
            "" if bound is None else f"{row['share_fulfilled']:.0%}",
            f"{row['batches_per_s']:g}",
            f"{row['cpu_s_per_million']:g}",
        )
    shown.caption = f"{result['cpu_ratio_at_longest']} times less CPU at the longest bound"
    return shown
