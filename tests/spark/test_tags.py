"""The arrival time that records bear through Spark's own operators, unseen by the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tailrace.spark import sinks
from tailrace.spark.chain import TAG
from tailrace.spark.sources import replay
from tailrace.spark.step import carried, step

from .collected import Files, plan_on
from .flows import Running, observed
from .support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
by_value(__name__)

TAGS = {seq: 1_000_000 + seq for seq in range(12)}
"""The arrival of each record, by which it can be told from every other."""


@pytest.fixture(scope="module")
def tagged(spark: SparkSession) -> DataFrame:
    """Records as a pipeline gets them: with a tag, which is not among their columns."""
    rows = [(seq, f"k{seq % 3}", [seq] * (seq % 3), tag) for seq, tag in TAGS.items()]
    frame = spark.createDataFrame(rows, f"seq long, key string, parts array<long>, {TAG} long")
    return frame.select("seq", "key", "parts")


Through = dict[str, "Callable[[DataFrame], DataFrame]"]

KEPT: Through = {
    "nothing": lambda f: f,
    "select": lambda f: f.select("seq"),
    "computed select": lambda f: f.select((F.col("seq") + 0).alias("seq"), F.lit(1)),
    "where": lambda f: f.where("seq % 2 = 0"),
    "withColumn": lambda f: f.withColumn("key", F.upper("key")),
    "drop": lambda f: f.drop("key", "parts"),
    "renamed": lambda f: f.withColumnRenamed("seq", "x").withColumnRenamed("x", "seq"),
    "alias": lambda f: f.alias("f").select("f.seq"),
    "union": lambda f: f.where("seq % 2 = 1").union(f.where("seq % 2 = 0")),
    "union of different columns": lambda f: (
        f.where("seq % 2 = 1")
        .select("seq", "key")
        .union(f.where("seq % 2 = 0").select("seq", "key"))
    ),
    "repartition": lambda f: f.repartition(3, "key"),
    "coalesce": lambda f: f.coalesce(1),
    "explode": lambda f: f.select("seq", F.explode("parts").alias("part")),
    "outer explode": lambda f: f.select("seq", F.explode_outer("parts").alias("part")),
    "distinct": lambda f: f.select("seq").distinct(),
    "dropDuplicates by column": lambda f: f.dropDuplicates(["seq"]),
    "many in a row": lambda f: (
        f.where("seq > 1")
        .select("seq", "key", F.explode("parts").alias("part"))
        .repartition(2)
        .withColumn("more", F.col("part") * 2)
        .select("more", "seq")
        .where("more < 20")
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_record_keeps_its_tag_through(tagged: DataFrame, name: str) -> None:
    through = KEPT[name]
    result = through(tagged)
    assert TAG not in result.columns
    plain = sorted(row["seq"] for row in result.collect())
    found = carried(result)
    assert found.columns == [*result.columns, TAG]
    rows = found.collect()
    assert sorted(row["seq"] for row in rows) == plain
    assert {row["seq"]: row[TAG] for row in rows} == {seq: TAGS[seq] for seq in plain}


def test_duplicates_are_told_by_the_columns_of_the_pipeline_and_not_by_the_tag(
    tagged: DataFrame,
) -> None:
    result = tagged.select("key").dropDuplicates()
    assert sorted(row["key"] for row in result.collect()) == ["k0", "k1", "k2"]
    rows = carried(result).collect()
    assert sorted(row["key"] for row in rows) == ["k0", "k1", "k2"]
    assert all(
        row[TAG] in {t for s, t in TAGS.items() if f"k{s % 3}" == row["key"]} for row in rows
    )


LOST: Through = {
    "aggregation": lambda f: f.groupBy("key").agg(F.sum("seq").alias("seq")),
    "join": lambda f: f.select("seq").join(f.select("seq").where("seq > 3"), "seq"),
    "union with records that have none": lambda f: f.select("seq").union(
        f.groupBy("key").agg(F.sum("seq").alias("seq")).select("seq")
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_where_records_become_others_the_tag_ends_and_nothing_else_changes(
    tagged: DataFrame, name: str
) -> None:
    result = LOST[name](tagged)
    found = carried(result)
    assert found.columns == result.columns
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, result.collect()))


def test_without_a_tag_there_is_none_to_carry(spark: SparkSession) -> None:
    frame = spark.range(3).select("id")
    assert carried(frame).columns == ["id"]


# --- in a running flow -----------------------------------------------------------------------

EARLIER_MS = 100_000.0
"""So long before they really came the records of these flows say that they arrived: their latency
can be mistaken for nothing else."""


def long_ago(path: Path, count: int) -> Callable[[SparkSession], DataFrame]:
    """A source of the user's own whose records arrived long ago."""
    file = path / "own.trace"
    even_trace(count, 1_000).save(file)

    def source(session: SparkSession) -> DataFrame:
        reader = session.readStream.format("tailrace-replay").option("trace", str(file))
        frame = reader.option("partitions", "1").load()
        return frame.withColumn(
            "then", F.col("due") - F.expr(f"interval {EARLIER_MS:.0f} milliseconds")
        )

    return source


def in_between(records: DataFrame) -> DataFrame:
    """Two steps, with a little of everything between them; every record once in the end."""
    first = records.transform(
        step("a", lambda row: (row.seq, [1, 2]), "seq long, parts array<int>")
    )
    assert first.columns == ["seq", "parts"]
    spread = first.repartition(1).select("seq", F.explode("parts").alias("part"))
    one = spread.where("part = 1").withColumn("twice", F.col("seq") * 2).select("twice", "seq")
    assert one.columns == ["twice", "seq"]
    return one.transform(step("b", lambda row: row.seq, "seq long"))


def test_the_latency_counts_from_the_arrival_through_all_that_lies_between(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, count = Files(tmp_path / "out"), 300
    flow = observed(
        in_between,
        files.sink,
        source=long_ago(tmp_path, count),
        arrived="then",
        backend="realtime",
    )
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(files.hold(count), "all results")
        report = running.run.stop()
    assert sorted(files.rows()) == [(seq,) for seq in range(count)]
    latency = report.data["latency_ms"]
    assert latency["p50_ms"] > 0.99 * EARLIER_MS
    (interval, *_) = report.intervals
    parts = interval["breakdown_ms"]
    assert {"source_wait", "hand-over", "step:a", "shuffle", "step:b", "sink"} <= set(parts)
    assert sum(parts.values()) == pytest.approx(interval["mean_ms"], rel=1e-3)
    assert parts["source_wait"] == max(parts.values())


def told_apart(record: Any) -> tuple[int, str]:
    return record.seq, record.key


def test_records_that_lost_their_tag_on_the_way_still_flow(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An outer reference table takes the tag away; the results are what they would be."""
    names = spark.createDataFrame([("k0", "zero"), ("k1", "one")], "key string, name string")

    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(step("a", told_apart, "seq long, key string"))
        joined = first.join(F.broadcast(names), "key")
        return joined.transform(step("b", lambda row: (row.seq, row.name), "seq long, name string"))

    files, count = Files(tmp_path / "out"), 300
    load = even_trace(count, 1_000, keys=2)
    flow = observed(pipeline, files.sink, source=load, backend="realtime")
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(files.hold(count), "all results")
        report = running.run.stop()
    assert sorted(files.rows()) == [(seq, ("zero", "one")[seq % 2]) for seq in range(count)]
    assert report.data["records"] == count


@pytest.mark.parametrize("columns", [["x"], None], ids=["by column", "by all columns"])
def test_duplicates_in_a_running_flow_are_told_by_what_the_pipeline_sees(
    spark: SparkSession, tmp_path: Path, columns: list[str] | None
) -> None:
    last = 199

    def pipeline(records: DataFrame) -> DataFrame:
        mark = step("a", lambda row: row.seq % 20 if row.seq < last else -1, "x long")
        return records.transform(mark).dropDuplicates(columns)

    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    files = Files(tmp_path / "out")
    load = replay(even_trace(last + 1, 1_000), partitions=1)
    flow = observed(pipeline, files.sink, source=load, backend="realtime")
    try:
        with Running(spark, flow, plan=plan_on("realtime")) as running:
            until(lambda: (-1,) in files.rows(), "what became of the last record")
            running.run.stop()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert sorted(files.rows()) == [(x,) for x in range(-1, 20)]


def test_the_sink_sees_no_tag(spark: SparkSession) -> None:
    seen: list[list[str]] = []

    class Watching(sinks.Discard):
        def attach(self, frame: DataFrame) -> Any:
            seen.append(frame.columns)
            return super().attach(frame)

    flow = observed(in_between, Watching(), backend="realtime")
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        running.run.stop()
    assert seen == [["seq"]]
