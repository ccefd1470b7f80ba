"""Flows that the tests run, and how."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from tailrace.plan import Plan
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import batch_step, flat_step, step
from tests.spark.support import by_value, even_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.control.actions import Change
    from tailrace.profile.batch import BatchMeasure
    from tailrace.spark import sinks
    from tailrace.spark.run import Run

by_value(__name__)

COUNT = 900
PAIR = "seq bigint, n bigint"
APART = (("a",), ("b",), ("c",))


def three_steps(records: DataFrame) -> DataFrame:
    def plus_one(batch: pa.RecordBatch) -> pa.RecordBatch:
        n = pa.array([value + 1 for value in batch["n"].to_pylist()], pa.int64())
        return pa.RecordBatch.from_arrays([batch["seq"], n], names=["seq", "n"])

    first = records.transform(step("a", lambda row: (row.seq, row.seq * 3), PAIR))
    second = first.transform(flat_step("b", lambda row: [tuple(row)] * (row.seq % 3), PAIR))
    return second.transform(batch_step("c", plus_one, PAIR))


def sequentially(count: int = COUNT) -> Counter[tuple[int, int]]:
    """What three steps make of the records, computed one by one."""
    return Counter({(seq, seq * 3 + 1): seq % 3 for seq in range(count) if seq % 3})


def pairs(memory: sinks.Memory) -> Counter[tuple[int, int]]:
    return Counter((row["seq"], row["n"]) for row in memory.rows())


def total(memory: sinks.Memory) -> int:
    return sum(table.num_rows for table in memory.batches.values())


def more_than(rows: int, memory: sinks.Memory) -> Callable[[], bool]:
    return lambda: total(memory) > rows


def chained(chains: tuple[tuple[str, ...], ...], interval_ms: float = 0.0) -> Any:
    return lambda _graph: Plan(interval_ms, chains)


class Running:
    """A flow that runs as long as the block, by default observed and not controlled."""

    def __init__(self, spark: SparkSession, flow: Flow, **how: Any) -> None:
        self.measures: list[BatchMeasure] = []
        self.run: Run = flow.start(spark, on_measure=self.measures.append, **how)

    def apply(self, *actions: Change) -> None:
        """Change the plan from outside, as a controller would."""
        for action in actions:
            self.run._backend.apply(action)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run._backend.stop()  # whatever the test saw, the query must not outlive it
        self.run._held.close()


def observed(pipeline: Any, sink: object, **how: Any) -> Flow:
    source = how.pop("source", even_trace(COUNT, 1500))
    how = {"mode": "observe", "warm_up": 0, **how}
    return Flow("tested", source, pipeline, sink, **how)


def a_step(function: Callable[[Any], Any], **how: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda records: records.transform(step("a", function, "seq bigint", **how))
