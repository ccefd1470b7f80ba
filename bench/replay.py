"""Replay: how many records per second does the replay source deliver from one partition?

Spark reads records that are all due at once, without a step: first all columns, then only the
index.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tailrace import load
from tailrace.report.machine import described
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 5_000_000
COLUMNS = {"all columns": "*", "index only": "seq"}


def measure(*, quick: bool) -> dict[str, Any]:
    """Read the whole trace several times; the median rate after the first, which is a warm-up."""
    turns = 4 if quick else 10
    zeros = np.zeros(RECORDS, dtype=np.int32)
    trace = load.Trace(np.zeros(RECORDS, dtype=np.int64), zeros, zeros + 32, ("key",))
    spark = session("replay")
    try:
        rates = {
            name: [_turn(spark, trace, columns) for _ in range(turns)][1:]
            for name, columns in COLUMNS.items()
        }
    finally:
        spark.stop()
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    return {"records": RECORDS, "records_per_s": medians, "machine": described()}


def _turn(spark: SparkSession, trace: load.Trace, columns: str) -> float:
    with tempfile.TemporaryDirectory(prefix="tailrace-") as directory:
        source = replay(trace, partitions=1).open(spark, Path(directory)).frame
        began = time.monotonic()
        query = (
            source.selectExpr(columns)
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{directory}/checkpoint")
            .start()
        )
        query.awaitTermination()
        return len(trace) / (time.monotonic() - began)


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="The replay source, one partition")
    for column in ("", "records/s"):
        shown.add_column(column, justify="right")
    for name, rate in result["records_per_s"].items():
        shown.add_row(name, f"{rate:,}")
    return shown
