"""The floor: how fast can a small batch be? The same pipeline on stock PySpark and on Tailrace.

Three trivial Python steps at 2,000 records/s from the same source into the same sink, once written
the usual way with stock settings, once as a flow. Each side has its own JVM for the whole run; they
take turns, so that other activity on the machine affects both alike. Latency is the time at which
the sink has a record minus the time at which it was due.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from rich.table import Table

from tailrace import load
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import batch_step
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

RATE_PER_S = 2_000
SCHEMA = "seq long, due timestamp, key string"
WARM_UP_S = 25.0
"""The first turn of each side, not counted: its JVM compiles hot code."""

SETTLE_S = 4.0
"""The beginning of every turn, not counted: a query's first batches compile code."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Let both sides take turns, after one each that only warms up its JVM."""
    turns, seconds = (2, 14.0) if quick else (5, 24.0)
    latencies: dict[str, list[float]] = {"stock": [], "tailrace": []}
    sides = {name: _Side(name) for name in latencies}
    try:
        for side in sides.values():
            side.take_turn(WARM_UP_S)
        for _ in range(turns):
            for name, side in sides.items():
                latencies[name] += side.take_turn(seconds)
    finally:
        for side in sides.values():
            side.close()
    result: dict[str, Any] = {name: _statistics(found) for name, found in latencies.items()}
    result["ratio_p50"] = round(result["stock"]["p50_ms"] / result["tailrace"]["p50_ms"], 2)
    result |= {"rate_per_s": RATE_PER_S, "turns": turns, "turn_s": seconds}
    return {**result, "machine": described()}


def _statistics(latencies_ms: list[float]) -> dict[str, float]:
    p50, p95, p99 = np.percentile(latencies_ms, [50, 95, 99])
    return {
        "p50_ms": round(float(p50), 1),
        "p95_ms": round(float(p95), 1),
        "p99_ms": round(float(p99), 1),
        "records": len(latencies_ms),
    }


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title=f"Three Python steps at {RATE_PER_S} records/s, latency in ms")
    for column in ("", "p50", "p95", "p99", "records"):
        shown.add_column(column, justify="left" if not column else "right")
    for name in ("stock", "tailrace"):
        row = result[name]
        shown.add_row(name, *(f"{row[key]:g}" for key in ("p50_ms", "p95_ms", "p99_ms", "records")))
    shown.caption = f"p50 is {result['ratio_p50']} times lower"
    return shown


class _Side:
    """One side in its own process, which takes turns on commands from standard input."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "bench.floor", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def take_turn(self, seconds: float) -> list[float]:
        stdin, stdout = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        stdin.write(f"{seconds}\n")
        stdin.flush()
        latencies: list[float] = json.loads(stdout.readline())
        return latencies

    def close(self) -> None:
        cast("IO[str]", self._process.stdin).close()
        self._process.wait()


def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step that does nothing, so that only its surroundings take time."""
    return batch


class _Recorder:
    """A sink that records the latency of every record of a batch."""

    def __init__(self) -> None:
        self._from_s = time.monotonic() + SETTLE_S
        self.latencies_ms: list[float] = []

    def take(self, frame: DataFrame, _batch_id: int) -> None:
        due_us = frame.toArrow().column("due").cast(pa.int64()).to_numpy()
        now_us = time.time_ns() / 1e3
        if time.monotonic() >= self._from_s:
            self.latencies_ms += ((now_us - due_us) / 1e3).tolist()


def stock_turn(spark: SparkSession, seconds: float) -> list[float]:
    """The pipeline written the usual way."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pass_on(batch)

    with tempfile.TemporaryDirectory() as directory:
        recorder = _Recorder()
        source = replay(_load(seconds), partitions=1).open(spark, Path(directory)).frame
        records = source.select("seq", "due", "key")
        for _ in range(3):
            records = records.mapInArrow(step, SCHEMA)
        query = (
            records.writeStream.foreachBatch(recorder.take)
            .option("checkpointLocation", f"{directory}/checkpoint")
            .start()
        )
        threading.Event().wait(seconds)
        query.stop()
        return recorder.latencies_ms


def tailrace_turn(spark: SparkSession, seconds: float) -> list[float]:
    """The same pipeline as a flow."""

    def pipeline(records: DataFrame) -> DataFrame:
        records = records.select("seq", "due", "key")
        for name in ("first", "second", "third"):
            records = records.transform(batch_step(name, pass_on, SCHEMA))
        return records

    recorder = _Recorder()
    source = replay(_load(seconds), partitions=1)
    flow = Flow("floor", source, pipeline, sinks.call(recorder.take))
    flow.run(seconds, spark)
    return recorder.latencies_ms


def _load(seconds: float) -> load.Trace:
    return load.generate(load.Constant(RATE_PER_S, seconds + 10), arrivals="even")


def _serve(name: str) -> None:
    """Be one side: run a turn for every line of standard input."""
    turn: Callable[[SparkSession, float], list[float]] = (
        stock_turn if name == "stock" else tailrace_turn
    )
    spark = session(f"floor-{name}", plain=name == "stock")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(turn(spark, float(line))) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    _serve(sys.argv[1])
