"""The hand-over of real-time mode: what goes to Python and back, and how it is measured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.load import Trace
from tailrace.profile.live import SinkReport
from tailrace.spark import sinks
from tailrace.spark.pipeline.step import batch_step, step
from tailrace.spark.worker.records import rows_of
from tests.spark.collected import Files, plan_on
from tests.spark.flows import COUNT, PAIR, Running, observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
by_value(__name__)

TYPES = {
    "a_boolean": ("boolean", "seq % 2 = 0"),
    "a_byte": ("tinyint", "cast(seq % 100 as tinyint)"),
    "a_short": ("smallint", "cast(seq as smallint)"),
    "an_int": ("int", "cast(-seq as int)"),
    "a_long": ("bigint", "seq * 5000000000"),
    "a_float": ("float", "cast(seq / 3 as float)"),
    "a_double": ("double", "seq / 3"),
    "a_decimal": ("decimal(20, 3)", "cast(seq / 8 as decimal(20, 3))"),
    "a_date": ("date", "date_add(date'1969-12-01', cast(seq as int))"),
    "a_moment": ("timestamp", "timestamp_micros(seq * 1000003 - 5)"),
    "a_local_moment": ("timestamp_ntz", "cast(timestamp_micros(seq * 7) as timestamp_ntz)"),
    "a_text": ("string", "repeat('é', cast(seq % 90 as int))"),
    "some_bytes": ("binary", "cast(repeat('xy', cast(seq % 7 as int)) as binary)"),
    "a_list": ("array<bigint>", "sequence(0, seq % 4)"),
    "a_struct": (
        "struct<n: bigint, s: string>",
        "struct(nullif(seq, 1) as n, nullif(key, '') as s)",
    ),
    "a_map": ("map<string, bigint>", "map('n', seq)"),
}
SCHEMA = "seq bigint, " + ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())


def of_every_type(records: DataFrame) -> DataFrame:
    """A column of every type, each null in every third record but not in the same ones."""
    columns = [
        f"if((seq + {place}) % 3 = 0, null, {value}) as {name}"
        for place, (name, (_, value)) in enumerate(TYPES.items())
    ]
    return records.selectExpr("seq", *columns)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def crowd(count: int, size: int = 0) -> Trace:
    """Records that are all due at once, so that they are handed over by the hundred."""
    zeros = np.zeros(count, np.int32)
    return Trace(np.zeros(count, np.int64), zeros, zeros + size, ("key",))


@pytest.mark.parametrize("filtered", [False, True])
def test_values_of_every_type_go_to_python_and_back_as_they_are(
    spark: SparkSession, tmp_path: Path, filtered: bool
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        values = of_every_type(records.where("seq >= 0") if filtered else records)
        there = values.transform(batch_step("there", same, SCHEMA))
        again = there.transform(batch_step("again", same, SCHEMA))
        return again.transform(step("shown", lambda row: repr(tuple(row)), "shown string"))

    files = Files(tmp_path / "out")
    apart = plan_on("realtime", (("there",), ("again", "shown")))
    with Running(spark, observed(pipeline, files.sink, source=crowd(COUNT)), plan=apart) as running:
        until(files.hold(COUNT), "all results")
        running.run.stop()
    records = spark.range(COUNT).selectExpr("id as seq", "'key' as key")
    expected = of_every_type(records).toArrow()
    rows = [row for batch in expected.to_batches() for row in rows_of(batch)]
    assert files.counted() == Counter((repr(tuple(row)),) for row in rows)


def test_a_hand_over_of_large_records_is_full_at_a_mebibyte(
    spark: SparkSession, tmp_path: Path
) -> None:
    count, size = 1_000, 20_000

    def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = sum(len(text) for text in batch["payload"].to_pylist())
        return pa.RecordBatch.from_pydict({"seq": [batch.num_rows], "n": [texts]})

    def pipeline(records: DataFrame) -> DataFrame:
        return records.select("payload").transform(batch_step("a", measured, PAIR))

    files = Files(tmp_path / "out")
    flow = observed(pipeline, files.sink, source=crowd(count, size))
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(lambda: sum(row[0] for row in files.rows()) >= count, "all records")
        running.run.stop()
    found = files.rows()
    assert sum(records for records, _ in found) == count
    assert all(texts == records * size for records, texts in found)
    assert size < max(texts for _, texts in found) <= (1 << 20) + size


@pytest.mark.parametrize("behind", [None, "n >= 0"], ids=["step", "filter"])
def test_every_record_is_seen_once_at_the_end_whatever_stands_before_it(
    spark: SparkSession, behind: str | None
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        made = records.transform(step("a", lambda row: (row.seq, row.seq), PAIR))
        return made if behind is None else made.where(behind)

    flow = observed(pipeline, sinks.discard(), source=even_trace(COUNT, 1500))
    seen: list[SinkReport] = []
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        server = running.run._backend._telemetry
        server._heard = heard(seen, server._heard)
        until(lambda: sum(one.age_ms.count for one in seen) >= COUNT / 2, "half of the records")
        report = running.run.stop()  # what entered by then is seen in the end
    assert sum(one.age_ms.count for one in seen) == report.data["records"]
    for one in seen:
        assert one.ages_ms.counts.sum() == one.age_ms.count
        assert one.ages_ms.mean_ms() == pytest.approx(one.age_ms.mean, rel=0.005, abs=0.01)
        assert one.first_us <= one.last_us


def heard(seen: list[SinkReport], pass_on: Callable[[Any], None]) -> Callable[[Any], None]:
    def listen(said: Any) -> None:
        seen.extend([said] if isinstance(said, SinkReport) else [])
        pass_on(said)

    return listen
