"""The arrival time that records bear through Spark's own operators, unseen by the pipeline."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from tailrace.errors import InputError
from tailrace.plan import Backend, Plan
from tailrace.policy.realtime import SHORTEST_BATCH_MS
from tailrace.spark import sinks
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.pipeline.compilation import carried, lost_in, tagged
from tailrace.spark.pipeline.step import step
from tailrace.spark.pipeline.trace import trace
from tailrace.spark.sources import replay
from tailrace.spark.worker.chain import READ, TAG
from tests.spark.collected import Files, plan_on
from tests.spark.flows import Running, observed, total
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
by_value(__name__)

TAGS = {seq: 1_000_000 + seq for seq in range(12)}
"""The arrival of each record, by which it can be told from every other."""

COLUMNS = ["seq", "key", "parts", "at"]


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    """Records as a pipeline gets them: with a tag, which is not among their columns.

    ``at`` is the same moment, in a column that the pipeline carries along by itself.
    """
    rows = [(seq, f"k{seq % 3}", [seq] * (seq % 3), tag) for seq, tag in TAGS.items()]
    frame = spark.createDataFrame(rows, "seq long, key string, parts array<long>, at long")
    return tagged(frame, F.col("at"))


@pytest.fixture(scope="module")
def names(spark: SparkSession) -> DataFrame:
    """A static side: two rows for one key, one for the next, none for the third, one for no key."""
    rows = [("k0", "zero", 7), ("k0", "null", 8), ("k1", "one", 9), ("k9", "nine", 10)]
    made = spark.createDataFrame(rows, "key string, name string, at int")
    made.createOrReplaceTempView("names")
    return made


Through = dict[str, "Callable[[DataFrame, DataFrame], DataFrame]"]


def sql(query: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """A query in SQL on a view of the records."""

    def through(frame: DataFrame, _: DataFrame) -> DataFrame:
        view = f"records_{next(_views)}"
        frame.createOrReplaceTempView(view)
        return frame.sparkSession.sql(query.replace("records", view))

    return through


_views = itertools.count()

KEPT: Through = {
    "nothing": lambda f, _: f,
    "select": lambda f, _: f.select("at", "seq", "parts", "key"),
    "computed select": lambda f, _: f.select("*", (F.col("seq") + 1).alias("n"), F.lit(1)),
    "where": lambda f, _: f.where("seq % 2 = 0"),
    "withColumn": lambda f, _: f.withColumn("key", F.concat("key", F.lit(""))),
    "drop": lambda f, _: f.withColumn("more", F.lit(1)).drop("more"),
    "renamed": lambda f, _: f.withColumnRenamed("seq", "x").withColumnRenamed("x", "seq"),
    "alias": lambda f, _: f.alias("f").select("f.*"),
    "selectExpr": lambda f, _: f.selectExpr("*", "seq * 2 as twice"),
    "sql": sql("select upper(r.key) as key, r.seq, r.parts, r.at from records r where seq > 1"),
    "sql with a name": sql("with w as (select * from records where seq > 1) select * from w"),
    "union": lambda f, _: f.where("seq % 2 = 1").union(f.where("seq % 2 = 0")),
    "union by name": lambda f, _: (
        f.where("seq % 2 = 1").unionByName(f.where("seq % 2 = 0").select(*COLUMNS[::-1]))
        if f.columns == COLUMNS
        else f
    ),
    "repartition": lambda f, _: f.repartition(3, "key"),
    "coalesce": lambda f, _: f.coalesce(1),
    "rebalance": lambda f, _: f.hint("rebalance"),
    "explode": lambda f, _: f.select("*", F.explode("parts").alias("part")),
    "outer explode": lambda f, _: f.select("*", F.explode_outer("parts").alias("part")),
    "posexplode": lambda f, _: f.select("*", F.posexplode("parts").alias("at_", "part")),
    "inline": lambda f, _: f.select("*", F.inline(F.array(F.struct(F.lit(1).alias("x"))))),
    "stack": lambda f, _: f.selectExpr("*", "stack(2, seq, -seq) as n"),
    "lateral view": sql("select r.* from records r lateral view explode(parts) t as part"),
    "two lateral views": sql(
        "select r.* from records r lateral view explode(parts) as x "
        "lateral view outer posexplode(parts) as i, y"
    ),
    "lateral subquery": sql("select r.* from records r, lateral (select r.seq + 1 as next)"),
    "unpivot": lambda f, _: f.select(*COLUMNS).unpivot(
        tuple(COLUMNS), [F.col("seq").alias("a"), F.col("at").alias("b")], "which", "value"
    ),
    "distinct": lambda f, _: f.distinct(),
    "dropDuplicates by column": lambda f, _: f.dropDuplicates(["key"]),
    "sample": lambda f, _: f.sample(fraction=0.7, seed=3),
    "observe": lambda f, _: f.observe(f"seen_{next(_views)}", F.count("*").alias("n")),
    "watermark": lambda f, _: f.withColumn("ts", F.timestamp_micros("at")).withWatermark(
        "ts", "1 minute"
    ),
    "inner join by name": lambda f, n: f.join(n.drop("at"), "key"),
    "broadcast join": lambda f, n: f.join(F.broadcast(n.drop("at")), "key"),
    "left outer join": lambda f, n: f.join(n.drop("at"), "key", "left"),
    "right outer join": lambda f, n: n.select(F.col("key").alias("other")).join(
        f, F.col("other") == f["key"], "right"
    ),
    "semi join": lambda f, n: f.join(n, "key", "left_semi"),
    "anti join": lambda f, n: f.join(n, "key", "left_anti"),
    "cross join": lambda f, n: f.crossJoin(n.select("name")),
    "join of a range": lambda f, n: f.join(n.select(F.col("at").alias("m")), F.expr("seq < m")),
    "join with columns of the same names": lambda f, n: (
        f.alias("f").join(n.alias("n"), F.expr("f.key = n.key")).select("f.*", "n.name")
    ),
    "join in sql": sql("select r.*, n.name from records r join names n using (key)"),
    "in": sql("select * from records where key in (select key from names)"),
    "not exists": sql(
        "select * from records r where not exists (select 1 from names n where n.key = r.key)"
    ),
    "scalar subquery": sql("select *, (select max(name) from names) as most from records"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_record_keeps_its_tag_through(records: DataFrame, names: DataFrame, name: str) -> None:
    compare(KEPT[name](records, names))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(chosen=st.lists(st.sampled_from(sorted(KEPT)), min_size=2, max_size=7))
def test_a_record_keeps_its_tag_through_any_of_these_in_a_row(
    records: DataFrame, names: DataFrame, chosen: list[str]
) -> None:
    frame = records
    for name in chosen:
        frame = KEPT[name](frame, names).select(*COLUMNS)
    compare(frame)


def compare(result: DataFrame) -> None:
    """The results are the same, each with the moment that the pipeline carried along itself."""
    assert TAG not in result.columns
    found = carried(result)
    assert found.columns == [*result.columns, TAG]
    rows = found.collect()
    at = result.columns.index("at")
    assert [row[-1] for row in rows] == [row[at] for row in rows]
    assert Counter(str(row[:-1]) for row in rows) == Counter(
        str(tuple(row)) for row in result.collect()
    )


def test_duplicates_are_found_by_the_columns_of_the_pipeline_and_not_by_the_tag(
    records: DataFrame,
) -> None:
    result = records.select("key").dropDuplicates()
    assert sorted(row["key"] for row in result.collect()) == ["k0", "k1", "k2"]
    rows = carried(result).collect()
    assert sorted(row["key"] for row in rows) == ["k0", "k1", "k2"]
    assert all(
        row[TAG] in {t for s, t in TAGS.items() if f"k{s % 3}" == row["key"]} for row in rows
    )


def aggregated(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.sum("seq").alias("seq"))


LOST: dict[str, tuple[str, Callable[[DataFrame, DataFrame], DataFrame]]] = {
    "aggregation": ("an aggregation", lambda f, _: aggregated(f)),
    "what follows an aggregation": (
        "an aggregation",
        lambda f, n: aggregated(f).join(n, "key").where("seq > 1").select("seq"),
    ),
    "SELECT DISTINCT": ("SELECT DISTINCT", sql("select distinct key from records")),
    "self-join": ("a join of two streams", lambda f, _: f.join(f.where("seq > 3"), "seq")),
    "full outer join": ("a full outer join", lambda f, n: f.join(n, "key", "full")),
    "left outer join of the static side": (
        "a left outer join that keeps the other side whole",
        lambda f, n: n.join(f, "key", "left"),
    ),
    "union with records that have none": (
        "a union with records that are not of the flow's source",
        lambda f, n: f.select("key").union(n.select("key")),
    ),
    "union with an aggregation": (
        "an aggregation",
        lambda f, _: f.select("key", "seq").union(aggregated(f)),
    ),
    "mapInArrow": ("mapInArrow", lambda f, _: f.select("seq").mapInArrow(lambda b: b, "seq long")),
    "intersection": (
        "Spark's operator Intersect",
        lambda f, n: f.select("key").intersect(n.select("key")),
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_where_records_become_others_the_tag_ends_and_nothing_else_changes(
    records: DataFrame, names: DataFrame, name: str
) -> None:
    culprit, through = LOST[name]
    result = through(records, names)
    found = carried(result)
    assert found.columns == result.columns
    assert Counter(map(str, found.collect())) == Counter(map(str, result.collect()))
    assert lost_in(result).startswith(culprit)


def test_a_static_side_gets_no_tag(records: DataFrame, names: DataFrame) -> None:
    assert carried(names).columns == names.columns
    joined = carried(records.join(names, "key").select("seq", "name"))
    plan = joined._jdf.queryExecution().analyzed().toString()
    (static,) = [line for line in plan.splitlines() if "name#" in line and "LogicalRDD" in line]
    assert TAG not in static


def test_a_column_named_like_the_tag_that_does_not_leave_the_pipeline_is_not_taken_for_it(
    records: DataFrame,
) -> None:
    own = records.withColumn(TAG, F.lit(5)).where(f"{TAG} = 5").drop(TAG)
    compare(own.withColumn("more", F.lit(1)))


# --- in a running flow -----------------------------------------------------------------------

EARLIER_MS = 100_000.0
"""So long before they really came the records of these flows say that they arrived: their latency
can be mistaken for nothing else."""


def long_ago(path: Path, count: int, keys: int = 1) -> Callable[[SparkSession], DataFrame]:
    """A source of the user's own whose records arrived long ago, those of each key at another time.

    A record of k1 came half as long ago again as one of k0.
    """
    file = path / "own.trace"
    even_trace(count, 1_000, keys).save(file)

    def source(session: SparkSession) -> DataFrame:
        reader = session.readStream.format("tailrace-replay").option("trace", str(file))
        frame = reader.option("partitions", "1").load()
        earlier_s = F.expr(f"{EARLIER_MS / 1e3} * (1 + substring(key, 2) / 2)")
        return frame.withColumn("then", F.col("due") - F.make_dt_interval(secs=earlier_s))

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


KEYED = "seq long, key string, at long"


def joined(names: DataFrame, how: str) -> Callable[[DataFrame], DataFrame]:
    """A step, a join with a static side, and another step; ``at`` is carried along by hand."""

    def pipeline(records: DataFrame) -> DataFrame:
        at = records.withColumn("at", F.unix_micros("then")).where("seq >= 0")
        first = at.transform(step("a", lambda row: (row.seq, row.key, row.at), KEYED))
        with_names = first.join(names, "key", how).select("seq", "name", "at")
        last = step("b", tuple, "seq long, name string, at long")
        return with_names.transform(last)

    return pipeline


def noted(path: Path) -> tuple[Files, sinks.Each]:
    """A sink that notes with every result when it came."""
    files = Files(path)
    append = files.append

    def note(row: Any) -> None:
        append((*row, time.time_ns() // 1_000))

    return files, sinks.each(note)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_latency_behind_a_join_is_that_of_the_records_that_came_through(
    spark: SparkSession, tmp_path: Path, names: DataFrame, how: str
) -> None:
    """One key is doubled, one dropped by the inner join; the sink knows what each result took."""
    files, sink = noted(tmp_path / "out")
    count = 300
    flow = observed(
        joined(names.drop("at"), how),
        sink,
        source=long_ago(tmp_path, count, keys=3),
        arrived="then",
        backend="realtime",
    )
    flow.keep(mean=f"{2 * EARLIER_MS} ms").keep(mean=f"{EARLIER_MS / 2} ms")
    of_key: dict[int, list[str | None]] = {
        0: ["zero", "null"],
        1: ["one"],
        2: [None] if how == "left" else [],
    }
    expected = Counter((seq, name) for seq in range(count) for name in of_key[seq % 3])
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(files.hold(expected.total()), "all results")
        log = BatchLog(running.run._directory / "checkpoint")
        assert log.committed == -1  # while the batch runs
        report = running.run.stop()
    rows = files.rows()
    assert Counter(row[:2] for row in rows) == expected
    took_ms = np.array([(now - at) / 1e3 for *_, at, now in rows])
    latency = report.data["latency_ms"]
    assert report.data["records"] == count
    assert latency["mean_ms"] == pytest.approx(took_ms.mean(), rel=0.01)
    for quantile in (50, 95, 99):
        expected_ms = np.percentile(took_ms, quantile, method="inverted_cdf")
        assert latency[f"p{quantile}_ms"] == pytest.approx(expected_ms, rel=0.03)
    kept, broken = report.data["constraints"]
    assert kept["fulfilled_share"] == 1
    assert broken["fulfilled_share"] == 0


def much_in_between(records: DataFrame) -> DataFrame:
    """Two steps, and most of what Spark can do on the way; ``at`` is carried along by hand."""
    at = records.withColumn("at", F.unix_micros("then"))
    first = at.transform(step("a", lambda row: (row.seq, row.key, row.at), KEYED))
    query = """
        with known as (select * from live l where key in (select key from names))
        select k.*, n.name, pos from known k left join names n on k.key = n.key and n.at < 8
        lateral view posexplode(array(1, 2)) p as pos, part
    """
    first.createOrReplaceTempView("live")
    asked = records.sparkSession.sql(query).hint("broadcast")
    timed = asked.withColumn("ts", F.timestamp_micros("at")).withWatermark("ts", "1 minute")
    watched = timed.observe("watched", F.count("*").alias("n")).drop("ts")
    others = records.sparkSession.sql("select name as other from names where name like 'o%'")
    unlike = watched.join(others, F.expr("name = other"), "anti")
    turned = unlike.unpivot(
        ["seq", "name", "at"], [F.col("pos"), F.col("seq").cast("int").alias("twice")], "kind", "n"
    )
    last = step("b", lambda row: (row.seq, row.name, row.kind, row.at), LAST_COLUMNS)
    return turned.repartition(1).transform(last)


LAST_COLUMNS = "seq long, name string, kind string, at long"


def test_a_flow_of_many_operators_makes_the_same_in_real_time_and_knows_when_records_came(
    spark: SparkSession, tmp_path: Path, names: DataFrame
) -> None:
    names.createOrReplaceTempView("names")
    files, sink = noted(tmp_path / "out")
    count = 120
    rows = [(seq, f"k{seq % 3}") for seq in range(count)]
    batch = spark.createDataFrame(rows, "seq long, key string").withColumn("then", F.now())
    expected = Counter(row[:3] for row in map(tuple, much_in_between(batch).collect()))
    flow = observed(
        much_in_between,
        sink,
        source=long_ago(tmp_path, count, keys=3),
        arrived="then",
        backend="realtime",
    ).keep(mean="1 h")
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(files.hold(expected.total()), "all results")
        report = running.run.stop()
    assert Counter(row[:3] for row in files.rows()) == expected
    took_ms = np.array([(now - at) / 1e3 for *_, at, now in files.rows()])
    assert report.data["latency_ms"]["mean_ms"] == pytest.approx(took_ms.mean(), rel=0.01)


def test_a_source_made_of_several_streams_is_one_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, sink = noted(tmp_path / "out")
    count = 100
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def both(session: SparkSession) -> DataFrame:
        one, two = (long_ago(tmp_path / name, count)(session) for name in ("one", "two"))
        return one.union(two.withColumn("seq", F.col("seq") + count))

    def pipeline(records: DataFrame) -> DataFrame:
        at = records.select("seq", F.unix_micros("then").alias("at"))
        return at.transform(step("a", tuple, "seq long, at long"))

    flow = observed(pipeline, sink, source=both, arrived="then", backend="realtime")
    with Running(spark, flow.keep(mean="1 h"), plan=plan_on("realtime")) as running:
        until(files.hold(2 * count), "all results")
        report = running.run.stop()
    assert sorted(row[0] for row in files.rows()) == list(range(2 * count))
    took_ms = np.array([(now - at) / 1e3 for *_, at, now in files.rows()])
    assert report.data["latency_ms"]["mean_ms"] == pytest.approx(took_ms.mean(), rel=0.01)


RESERVED_NAMES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "The source of the flow has": (
        lambda f: f.withColumn(TAG, F.lit(1)),
        lambda f: f.select("seq"),
    ),
    "Step 'a' gets": (
        lambda f: f,
        lambda f: f.withColumn(TAG.upper(), F.lit(1)).transform(step("a", lambda _: 1, "x int")),
    ),
    "Step 'a' makes": (lambda f: f, lambda f: f.transform(step("a", lambda _: 1, f"{READ} int"))),
    "The output 'sink' of the pipeline has": (lambda f: f, lambda f: f.withColumn(TAG, F.lit(1))),
}


@pytest.mark.parametrize("where", RESERVED_NAMES)
def test_a_column_with_a_name_of_ours_is_refused(spark: SparkSession, where: str) -> None:
    before, pipeline = RESERVED_NAMES[where]
    stream = before(spark.readStream.format("rate").load().withColumn("seq", F.col("value")))
    with pytest.raises(
        InputError, match=f"{where} a column '_(?i:tailrace)_.*give it another name"
    ):
        trace(pipeline, stream)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_does_not_change_the_latency_in_micro_batches(
    spark: SparkSession, tmp_path: Path, names: DataFrame, how: str
) -> None:
    """Arrivals are counted where records enter: each once, whatever a join makes of it."""
    memory, count = sinks.memory(), 300
    flow = observed(
        joined(names.drop("at"), how),
        memory,
        source=long_ago(tmp_path, count, keys=3),
        arrived="then",
    )
    results = count // 3 * {"inner": 3, "left": 4}[how]
    with Running(spark, flow, plan=plan_on("microbatch")) as running:
        until(lambda: total(memory) >= results, "all results")
        report = running.run.stop()
    assert total(memory) == results
    assert report.data["records"] == count
    shown = report.data["latency_ms"]
    # However late a batch is on a busy machine, the ages of the keys lie further apart.
    near_ms = EARLIER_MS / 4
    assert shown["mean_ms"] == pytest.approx(1.5 * EARLIER_MS, abs=near_ms)
    assert shown["p50_ms"] == pytest.approx(1.5 * EARLIER_MS, abs=near_ms)
    assert shown["p99_ms"] == pytest.approx(2 * EARLIER_MS, abs=near_ms)


def test_a_static_side_is_read_when_a_batch_begins_though_the_flow_holds_every_slot(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "names.csv"
    file.write_text("k0,before\n")
    names = spark.read.csv(str(file), "key string, name string").repartition(3)

    def pipeline(records: DataFrame) -> DataFrame:
        with_names = records.join(names, "key")
        return with_names.transform(step("a", lambda row: row.name, "name string"))

    files = Files(tmp_path / "out")
    slots = spark.sparkContext.defaultParallelism
    load = replay(even_trace(60_000, 1_000), partitions=slots)
    flow = observed(pipeline, files.sink, source=load, backend="realtime").keep(mean="1 h")
    short = Plan(SHORTEST_BATCH_MS, (("a",),), {}, Backend.REALTIME)
    with Running(spark, flow, plan=lambda _: short) as running:
        until(files.hold(1), "results of the first batch")
        file.write_text("k0,afterw\n")
        until(lambda: ("afterw",) in files.rows(), "results of the next batch")
        running.run.stop()
    seen = [name for (name,) in files.rows()]
    assert set(seen) == {"before", "afterw"}


@pytest.mark.parametrize("columns", [["x"], None], ids=["by column", "by all columns"])
def test_duplicates_in_a_running_flow_are_found_by_what_the_pipeline_sees(
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
