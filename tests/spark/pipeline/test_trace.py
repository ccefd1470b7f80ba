from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tailrace.errors import InputError, TraceError
from tailrace.graph import Stream
from tailrace.plan import first_plan
from tailrace.spark.pipeline.step import batch_step, flat_step, step
from tailrace.spark.pipeline.trace import splits, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SAME = "value bigint, key string"


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.select("value", F.col("value").cast("string").alias("key"))


def named(name: str, **how: Any) -> Callable[[DataFrame], DataFrame]:
    return step(name, lambda row: row, SAME, **how)


def native(graph: Any, origin: str, target: str) -> tuple[str, ...]:
    (stream,) = [s for s in graph.streams if (s.origin, s.target) == (origin, target)]
    result: tuple[str, ...] = stream.native
    return result


def test_steps_in_a_row_make_a_line_and_one_chain(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(named("a"))
        second = first.transform(flat_step("b", lambda row: [row], SAME))
        return second.transform(batch_step("c", lambda batch: batch, SAME))

    graph = trace(pipeline, frame)
    assert graph.names == ("a", "b", "c")
    assert [(s.origin, s.target) for s in graph.streams] == [
        ("c", "sink"),
        ("b", "c"),
        ("a", "b"),
        ("source", "a"),
    ]
    assert graph.primary_chains() == (("a", "b", "c"),)
    assert graph.path(("source", "sink")) == ("source", "a", "b", "c", "sink")


def test_a_pipeline_without_named_steps_leads_from_source_to_sink(frame: DataFrame) -> None:
    graph = trace(lambda records: records.where("value > 0"), frame)
    assert graph.names == ()
    assert [(s.origin, s.target) for s in graph.streams] == [("source", "sink")]
    assert "Filter" in native(graph, "source", "sink")


def test_what_spark_does_between_two_steps_stands_on_their_stream(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(named("a")).where("value > 0")
        return first.withColumn("key", F.upper("key")).transform(named("b"))

    graph = trace(pipeline, frame)
    assert native(graph, "a", "b") == ("Filter", "Project")
    assert graph.primary_chains() == (("a",), ("b",))


def test_branches_that_join_again_are_both_seen(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(named("a"))
        left = first.where("value % 2 = 0").transform(named("left"))
        right = first.where("value % 2 = 1").transform(named("right"))
        return left.union(right).transform(named("end"))

    graph = trace(pipeline, frame)
    assert graph.names == ("a", "left", "right", "end")
    assert {(s.origin, s.target) for s in graph.streams} == {
        ("source", "a"),
        ("a", "left"),
        ("a", "right"),
        ("left", "end"),
        ("right", "end"),
        ("end", "sink"),
    }
    assert graph.forks() == {"a"}
    assert native(graph, "left", "end") == ("Union",)
    assert graph.primary_chains() == (("a",), ("left",), ("right",), ("end",))


def test_a_step_that_is_read_twice_on_the_way_to_one_target_is_a_fork(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(named("a"))
        return first.where("value > 5").union(first.where("value < 3"))

    graph = trace(pipeline, frame)
    assert [(s.origin, s.target) for s in graph.streams].count(("a", "sink")) == 2
    assert len(graph.streams_to("a")) == 1
    assert graph.forks() == {"a"}
    assert trace(lambda f: f.union(f), frame).forks() == {"source"}


def test_only_pipelines_that_split_and_treat_records_singly_run_batch_by_batch(
    frame: DataFrame,
) -> None:
    def twice(records: DataFrame) -> DataFrame:
        first = records.transform(named("a"))
        return first.where("value > 5").union(first)

    assert splits(trace(twice, frame))
    assert not splits(trace(named("a"), frame))
    assert not splits(trace(lambda f: twice(f).dropDuplicates(["key"]), frame))
    assert not splits(trace(lambda f: f.join(f.select("key"), "key"), frame))


def test_several_outputs_end_in_sinks_of_their_names(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        first = records.transform(named("a"))
        return {"all": first, "some": first.where("value > 3").transform(named("b"))}

    graph = trace(pipeline, frame)
    assert graph.sinks == ("sink:all", "sink:some")
    assert graph.forks() == {"a"}
    assert graph.path(("source", "sink:some")) == ("source", "a", "b", "sink:some")


@pytest.mark.parametrize(
    ("spread", "operator", "keys"),
    [
        (lambda f: f.repartition("key"), "RepartitionByExpression", ("key",)),
        (lambda f: f.repartition(4, "key"), "RepartitionByExpression", ("key",)),
        (lambda f: f.repartition(4, "key", "value"), "RepartitionByExpression", ("key", "value")),
        (lambda f: f.repartition(4), "Repartition", ()),
        (lambda f: f.dropDuplicates(["key"]), "Deduplicate", ("key",)),
        (
            lambda f: f.groupBy("key").agg(F.count("*").alias("value")).select("value", "key"),
            "Aggregate",
            ("key",),
        ),
    ],
)
def test_a_keyed_step_knows_its_keys(
    frame: DataFrame,
    spread: Callable[[DataFrame], DataFrame],
    operator: str,
    keys: tuple[str, ...],
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        return spread(records.transform(named("a"))).transform(named("b"))

    graph = trace(pipeline, frame)
    assert operator in native(graph, "a", "b")
    assert graph.keyed_by("b") == keys
    assert graph.keyed_by("a") == ()


def test_a_static_side_of_a_join_is_part_of_what_spark_does(
    spark: SparkSession, frame: DataFrame
) -> None:
    names = spark.createDataFrame([("1", "one")], "key string, name string")

    def pipeline(records: DataFrame) -> DataFrame:
        joined = records.transform(named("a")).join(names, "key", "left")
        return joined.select("value", "key").transform(named("b"))

    graph = trace(pipeline, frame)
    assert graph.names == ("a", "b")
    assert native(graph, "a", "b") == ("Join", "Project", "Project")
    assert graph.streams_from("source") == (Stream("source", "a", ("Project",)),)


def test_a_step_on_the_static_side_of_a_join_is_refused(
    spark: SparkSession, frame: DataFrame
) -> None:
    static = spark.createDataFrame([(1, "1")], SAME)

    def pipeline(records: DataFrame) -> DataFrame:
        return records.join(static.transform(named("lookup")).select("key"), "key")

    with pytest.raises(TraceError, match="'lookup' does not depend on the source of the flow"):
        trace(pipeline, frame)


def test_a_pipeline_that_ignores_its_source_is_refused(
    spark: SparkSession, frame: DataFrame
) -> None:
    static = spark.createDataFrame([(1, "1")], SAME)
    with pytest.raises(TraceError, match="'sink' does not depend on the source of the flow"):
        trace(lambda _: static, frame)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "The pipeline returned NoneType: return a DataFrame, or a dict"),
        ([1], "The pipeline returned list"),
        ({}, "The pipeline returned dict"),
        ({"out": 5}, "The output 'out' of the pipeline is int, not a DataFrame"),
    ],
)
def test_a_pipeline_that_returns_something_else_is_refused(
    frame: DataFrame, result: Any, reason: str
) -> None:
    with pytest.raises(TraceError, match=reason):
        trace(lambda _: result, frame)


def test_a_step_whose_result_is_thrown_away_is_refused(frame: DataFrame) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        records.transform(named("lost"))
        return records.transform(named("kept"))

    with pytest.raises(TraceError, match="depends on step 'lost': return its result too"):
        trace(pipeline, frame)


def test_two_steps_of_one_name_are_refused(frame: DataFrame) -> None:
    with pytest.raises(TraceError, match="Two steps are called 'a'"):
        trace(lambda f: f.transform(named("a")).transform(named("a")), frame)


@pytest.mark.parametrize("act", [lambda f: f.count(), lambda f: f.collect()])
def test_an_action_inside_the_pipeline_is_refused(
    frame: DataFrame, act: Callable[[DataFrame], Any]
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        act(records)
        return records

    with pytest.raises(TraceError, match="Spark cannot analyse the pipeline") as refusal:
        trace(pipeline, frame)
    assert "\n" not in str(refusal.value)


def test_a_column_that_is_not_there_is_named(frame: DataFrame) -> None:
    with pytest.raises(TraceError, match="wrong_name") as refusal:
        trace(lambda f: f.transform(named("a")).select("wrong_name"), frame)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("schema", ["value whatever", "", "value", "int", "a int, a"])
def test_a_schema_that_cannot_be_read_is_quoted(frame: DataFrame, schema: str) -> None:
    with pytest.raises(InputError, match="of step 'a' cannot be read: write columns and types"):
        trace(lambda f: f.transform(step("a", lambda row: row, schema)), frame)


def test_a_schema_with_two_columns_of_one_name_is_refused(frame: DataFrame) -> None:
    with pytest.raises(InputError, match="of step 'a' has two columns of the same name"):
        trace(lambda f: f.transform(step("a", lambda row: row, "x int, x string")), frame)


@pytest.mark.parametrize("several", [True, False])
def test_only_a_flow_with_one_output_may_keep_state(frame: DataFrame, several: bool) -> None:
    def pipeline(records: DataFrame) -> Any:
        counts = records.transform(named("a")).groupBy("key").count()
        return {"counts": counts, "all": records} if several else counts

    if several:
        with pytest.raises(TraceError, match="'sink:counts' has Aggregate: make it a flow of its"):
            trace(pipeline, frame)
    else:
        assert trace(pipeline, frame).names == ("a",)


def test_what_a_step_is_given_is_checked_at_once() -> None:
    with pytest.raises(InputError, match="Step 'a' was given a value of type int, which cannot"):
        step("a", 5, SAME)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has on_error='retry': write 'fail', 'drop' or"):
        named("a", on_error="retry")
    with pytest.raises(InputError, match="cannot be called 'sink'"):
        named("sink")
    with pytest.raises(InputError, match=r"The scale \(3, 2\) of step 'a' is not a range"):
        named("a", scale=(3, 2))


def test_tracing_starts_no_job(spark: SparkSession, frame: DataFrame) -> None:
    spark.sparkContext.setJobGroup("tracing", "tracing")
    trace(lambda f: f.transform(named("a")).transform(named("b")), frame)
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("tracing")) == []


def test_a_step_outside_a_flow_is_an_ordinary_transformation(spark: SparkSession) -> None:
    static = spark.createDataFrame([(1, "x"), (2, "y")], SAME)
    doubled = static.transform(step("double", lambda row: (row[0] * 2, row[1]), SAME))
    assert sorted(doubled.collect()) == [(2, "x"), (4, "y")]


def test_the_first_plan_chains_all_and_gives_scaled_steps_their_partitions(
    frame: DataFrame,
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(named("a")).transform(named("b", scale=(1, 16)))
        return first.transform(named("c")).transform(named("alone", chain=False))

    plan = first_plan(trace(pipeline, frame), 100.0, slots=2)
    assert plan.chains == (("a",), ("b", "c"), ("alone",))
    assert plan.partitions == {"b": 2}
