"""A driver to be killed: counts the records of a load by key in real-time mode until it is.

Usage: killed_realtime.py DIRECTORY LIFE. The directory holds ``load.trace`` and gets everything
else. The session is made at once; the flow starts with the first line of standard input and ends
between two batches with the second, or when standard input ends. A flow that fails is started
again: each such attempt has a name, and every result bears the attempt and the batch it is of.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tailrace.errors import TailraceError
from tailrace.load import Trace
from tailrace.plan import Backend, Plan, first_plan
from tailrace.spark import sinks
from tailrace.spark.backends import realtime
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.flow import Flow
from tailrace.spark.health import selftest
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.graph import Graph

BATCH_MS = 500.0
"""A tenth of the default in Spark: more batch ends to be killed at."""

MIN_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"


def count(key: str, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
    for row in rows:
        state["n"] += 1
        yield key, row.seq, state["n"]


def pipeline(records: DataFrame) -> DataFrame:
    read = records.transform(step("read", lambda row: (row.key, row.seq), "key string, seq long"))
    return read.transform(
        keyed_step("count", count, "key string, seq long, n long", key="key", state={"n": 0})
    )


def two_partitions(graph: Graph) -> Plan:
    plan = first_plan(graph, BATCH_MS, slots=2)
    return replace(plan, backend=Backend.REALTIME)


def noting(directory: Path, attempt: str) -> Callable[[Any], None]:
    """A function that leaves a line for every result, whatever happens to the worker then."""

    def note(row: Any) -> None:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        line = f"{batch} {os.getpid()} {row.key} {row.seq} {row.n}\n"
        place = directory / f"{attempt}-{context.partitionId()}.txt"
        file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    return note


def attempt(directory: Path, name: str, spark: SparkSession, ending: threading.Event) -> None:
    """Run the flow until it fails or is to end."""
    run = Flow(
        "killed",
        replay(Trace.load(directory / "load.trace")),
        pipeline,
        sinks.each(noting(directory / "out", name)),
        checkpoint=directory / "flow",
        backend="realtime",
        recovery=BATCH_MS,
        mode="observe",
    ).start(spark, plan=two_partitions)
    while not ending.is_set() and not run.wait(0.05):
        pass
    run.stop()


def main(directory: Path, life: int) -> None:
    """Run until killed, or until asked to end."""
    vars(realtime)["SHORTEST_BATCH_MS"] = BATCH_MS
    spark = session("killed", master="local[4]", settings={MIN_BATCH: f"{BATCH_MS:.0f}ms"})
    selftest._passed.add(spark.sparkContext.applicationId or "")  # it costs seconds of every life
    ending = threading.Event()

    def hear() -> None:
        sys.stdin.readline()
        ending.set()

    if sys.stdin.readline():
        threading.Thread(target=hear, daemon=True).start()
        for number in range(1_000):
            name = f"{life}.{number}"
            committed = BatchLog(directory / "flow" / "checkpoint").committed
            _say(directory, {"starts": name, "committed": committed})
            try:
                attempt(directory, name, spark, ending)
            except TailraceError as error:
                _say(directory, {"failed": name, "error": str(error)})
            else:
                _say(directory, {"ended": name})
                break
    spark.stop()


def _say(directory: Path, what: dict[str, Any]) -> None:
    with (directory / "attempts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
