"""A driver to be killed in real-time mode: counts a load by key until it is told "enough".

Usage: killed_realtime.py DIRECTORY. The directory holds ``load.trace`` and gets everything else:
the checkpoint, ``starts.jsonl`` with a line for every start of the flow, and ``outputs/`` with a
line for every result, from whichever worker had it. A flow that fails, because a worker was
killed, is started again in the same session. A file ``enough`` ends everything cleanly.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tailrace.errors import FlowFailed
from tailrace.load import Trace
from tailrace.spark import realtime, sinks
from tailrace.spark.flow import Flow
from tailrace.spark.letters import last_committed
from tailrace.spark.settings import session
from tailrace.spark.sources import replay
from tailrace.spark.step import keyed_step, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.run import Run

PARTITIONS = 2
BATCH_MS = 500
"""A tenth of what Spark allows unless told, so that there are many batch ends to be killed at."""

STEP = "count"


def main(directory: Path) -> None:
    """Run the flow until it is enough, again after every failure that it survives as a driver."""
    realtime.SHORTEST_BATCH_MS = float(BATCH_MS)
    spark = session(
        "killed",
        master=f"local[{2 * PARTITIONS}]",
        settings={"spark.sql.streaming.realTimeMode.minBatchDuration": f"{BATCH_MS}ms"},
    )
    enough = directory / "enough"
    start = 0
    while not enough.exists():
        run = begin(spark, directory, f"{os.getpid()}-{start}")
        while not enough.exists() and not run.wait(0.02):
            pass
        try:
            run.stop()
        except FlowFailed as error:
            print(error, flush=True)
        start += 1
    spark.stop()


def begin(spark: SparkSession, directory: Path, name: str) -> Run:
    """Start the flow, and say which batch it begins with: the one after the last committed."""
    checkpoint = directory / "checkpoint"
    first = last_committed(checkpoint / "checkpoint") + 1
    with (directory / "starts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"start": name, "first": first}) + "\n")
    return Flow(
        "killed",
        replay(Trace.load(directory / "load.trace"), partitions=PARTITIONS),
        counted,
        sinks.each(written(directory / "outputs", name)),
        checkpoint=checkpoint,
        mode="observe",
        backend="realtime",
        recovery=BATCH_MS,
    ).start(spark)


def counted(records: DataFrame) -> DataFrame:
    """Every record with its place among those of its key."""

    def count(key: str, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
        for row in rows:
            state["n"] = state.get("n", 0) + 1
            yield key, state["n"], row.seq

    passed = records.transform(step("pass", lambda row: (row.key, row.seq), "key string, seq long"))
    return passed.transform(
        keyed_step(
            STEP,
            count,
            "key string, n long, seq long",
            key="key",
            scale=(PARTITIONS, PARTITIONS),
        )
    )


def written(directory: Path, start: str) -> Callable[[Any], None]:
    """Writes a result so that a worker's sudden end leaves whole lines, with its batch."""

    def write(row: Any) -> None:
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        line = f"{start} {batch} {row.key} {row.n} {row.seq}\n"
        with (directory / f"{os.getpid()}.txt").open("ab", buffering=0) as file:
            file.write(line.encode())

    return write


if __name__ == "__main__":
    main(Path(sys.argv[1]))
