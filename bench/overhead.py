"""Overhead: what does measuring cost? Runs the same flow with measurement on and off, in turns.

Records that are all due at once pass through three row steps in batches of a fixed size, as fast as
possible. The times of a batch with and without measurement, in turns in one session, give the share
of throughput that measuring costs.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tailrace import load
from tailrace.errors import FlowFailed
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 100_000
SETTLE = 2
"""Batches at the start of each turn that are not counted."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Take turns with and without measurement, and compare each turn with its neighbour."""
    pairs, batches = (12, 5) if quick else (30, 8)
    times: dict[bool, list[float]] = {True: [], False: []}
    spark = session("overhead")
    try:
        _turn(spark, 2 * batches, measured=True)
        for pair in range(pairs):
            for measured in (True, False) if pair % 2 else (False, True):
                times[measured].append(statistics.median(_turn(spark, batches, measured=measured)))
    finally:
        spark.stop()
    shares = [1 - off / on for on, off in zip(times[True], times[False], strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    return {
        "records_per_s": {
            "measured": round(BATCH / statistics.median(times[True])),
            "unmeasured": round(BATCH / statistics.median(times[False])),
        },
        "pairs": pairs,
        "overhead_share": round(middle, 4),
        "overhead_quartiles": [round(low, 4), round(high, 4)],
        "machine": described(),
    }


def _turn(spark: SparkSession, batches: int, *, measured: bool) -> list[float]:
    ended: list[float] = []
    done = threading.Event()

    def take(frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        ended.append(time.monotonic())
        if len(ended) >= batches + SETTLE:
            done.set()

    def pipeline(records: DataFrame) -> DataFrame:
        return (
            records.transform(step("split", lambda row: (row.seq, row.key), "seq long, key string"))
            .transform(step("mark", lambda row: (row.seq, row.key + "!"), "seq long, key string"))
            .transform(step("count", lambda row: (row.seq, len(row.key)), "seq long, size long"))
        )

    count = (batches + SETTLE + 1) * BATCH
    zeros = np.zeros(count, dtype=np.int32)
    trace = load.Trace(np.zeros(count, dtype=np.int64), zeros, zeros, ("key",))
    source = replay(trace, most_records=BATCH)
    run = Flow("overhead", source, pipeline, sinks.call(take)).start(spark, measured=measured)
    if not done.wait(600):
        raise FlowFailed("A turn of the benchmark did not end in ten minutes: see tailrace doctor.")
    run.stop()
    counted = ended[SETTLE - 1 : SETTLE + batches]
    return [after - before for before, after in pairwise(counted)]


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="What measuring costs")
    for column in ("", "records/s"):
        shown.add_column(column, justify="right")
    for name, rate in result["records_per_s"].items():
        shown.add_row(name, f"{rate:,}")
    shown.caption = f"{result['overhead_share']:.1%} of throughput"
    return shown
