from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.control.actions import SetChains, SetInterval
from tailrace.plan import Plan
from tailrace.spark import sinks
from tailrace.spark.pipeline.step import step
from tailrace.spark.sources import replay
from tests.spark.flows import (
    COUNT,
    Running,
    a_step,
    observed,
    pairs,
    sequentially,
    three_steps,
    total,
)
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.graph import Graph

pytestmark = pytest.mark.spark
by_value(__name__)


class Stamped:
    """A sink that knows by itself when its rows were there."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        due_us = frame.select(F.unix_micros("due").alias("us")).toArrow()["us"].to_numpy()
        self.latencies_ms += (time.time() * 1e3 - due_us / 1e3).tolist()


def test_the_latency_of_the_report_is_the_latency_that_the_sink_saw(spark: SparkSession) -> None:
    sink = Stamped()
    flow = observed(lambda f: f.where("seq >= 0"), sink, source=even_trace(4000, 1000))
    with Running(spark, flow, plan=lambda _: Plan(400.0, ())) as running:
        until(lambda: len(sink.latencies_ms) == 4000, "all records")
        report = running.run.stop()
    measured = report.data["latency_ms"]
    assert measured["mean_ms"] == pytest.approx(np.mean(sink.latencies_ms), rel=0.02)
    for quantile in (50, 95, 99):
        seen = np.percentile(sink.latencies_ms, quantile, method="inverted_cdf")
        assert measured[f"p{quantile}_ms"] == pytest.approx(seen, rel=0.02)
    assert report.data["notes"] == []


@pytest.mark.parametrize("several", [False, True])
def test_the_breakdown_adds_up_to_the_mean_latency(spark: SparkSession, several: bool) -> None:
    def pipeline(records: DataFrame) -> Any:
        result = three_steps(records)
        return {"one": result, "two": result.where("seq > 5")} if several else result

    first = sinks.memory()
    sink = {"one": first, "two": sinks.memory()} if several else first
    flow = observed(pipeline, sink, interval="500 ms", start_interval="100 ms")
    with Running(spark, flow) as running:
        until(lambda: total(first) >= sequentially().total(), "all results")
        report = running.run.stop()
    assert len(report.intervals) > 1
    for interval in report.intervals:
        parts = interval["breakdown_ms"]
        assert sum(parts.values()) == pytest.approx(interval["mean_ms"], rel=0.01)
        assert {"step:a", "step:b", "step:c", "batching", "planning", "sink"} <= set(parts)
        assert min(parts.values()) >= -0.01
    for measure in running.measures:
        moments = (
            measure.planned_us,
            measure.handed_us,
            measure.submitted_us,
            measure.started_us,
            measure.computed_us,
            measure.ended_us,
        )
        assert list(moments) == sorted(moments)


@pytest.mark.parametrize("arrived", [None, "due"])
def test_a_source_of_the_users_own_may_name_its_arrival_column_or_the_report_says_so(
    spark: SparkSession, tmp_path: Path, arrived: str | None
) -> None:
    path = tmp_path / "load.trace"
    even_trace(COUNT, 1500).save(path)

    def source(session: SparkSession) -> DataFrame:
        return session.readStream.format("tailrace-replay").option("trace", str(path)).load()

    memory = sinks.memory()
    flow = observed(a_step(lambda row: row.seq), memory, source=source, arrived=arrived)
    with Running(spark, flow) as running:
        until(lambda: total(memory) == COUNT, "all records")
        report = running.run.stop()
    assert report.data["records"] == COUNT
    notes = [note for note in report.data["notes"] if "No column says when" in note]
    assert len(notes) == (1 if arrived is None else 0)
    assert {measure.arrivals_known for measure in running.measures} == {arrived is not None}
    assert report.data["latency_ms"]["mean_ms"] > 0


def test_the_interval_changes_live(spark: SparkSession) -> None:
    flow = observed(lambda f: f.select("seq"), sinks.discard(), source=even_trace(60_000, 1000))
    with Running(spark, flow, plan=lambda _: Plan(300.0, ())) as running:
        until(lambda: len(running.measures) >= 8, "batches at the first interval")
        running.apply(SetInterval(900.0))
        changed = len(running.measures)
        until(lambda: len(running.measures) >= changed + 6, "batches at the second interval")
        report = running.run.stop()
    cuts_ms = np.array([measure.planned_us for measure in running.measures]) / 1e3
    gaps = np.diff(cuts_ms)
    # The first batch is handed over before the pacer, and the change is for the next but one.
    assert np.all(gaps[1 : changed - 1] > 290)
    assert np.all(gaps[changed + 1 :] > 890)
    assert np.median(gaps[changed + 1 :]) > 1.8 * np.median(gaps[1 : changed - 1])
    assert report.data["restarts_ms"] == []


def test_a_flow_that_is_not_measured_gives_the_same_results(spark: SparkSession) -> None:
    memory = sinks.memory()
    with Running(spark, observed(three_steps, memory), measured=False) as running:
        until(lambda: total(memory) >= sequentially().total(), "all results")
        report = running.run.stop()
    assert pairs(memory) == sequentially()
    assert running.measures == []
    assert report.intervals == []


def test_a_native_aggregation_keeps_its_state_across_batches_and_restarts(
    spark: SparkSession,
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(
            step("a", lambda row: (row.key, row.seq), "key string, seq bigint")
        ).transform(step("b", lambda row: row, "key string, seq bigint"))
        return first.groupBy("key").agg(F.count("*").alias("n"), F.sum("seq").alias("total"))

    memory = sinks.memory()
    load = even_trace(COUNT, 600, keys=3)

    def counts() -> dict[str, tuple[int, int]]:
        return {row["key"]: (row["n"], row["total"]) for row in memory.rows()}

    with Running(spark, observed(pipeline, memory, source=replay(load, partitions=1))) as running:
        until(lambda: len(memory.batches) >= 2, "some batches")
        running.apply(SetChains((("a",), ("b",))))
        until(lambda: running.run._backend.restarts_ms, "the restart")
        until(lambda: sum(n for n, _ in counts().values()) >= COUNT, "all counted")
        running.run.stop()
    expected = {f"k{k}": (COUNT // 3, sum(range(k, COUNT, 3))) for k in range(3)}
    assert counts() == expected


def test_run_for_a_time_reports_constraints_and_verdicts(spark: SparkSession) -> None:
    memory = sinks.memory()
    flow = observed(three_steps, memory, interval="500 ms")
    flow.keep(mean="60 s", every="500 ms").keep(p99="1 ms", every="500 ms")
    report = flow.run(2.0, spark)
    kept, broken = report.data["constraints"]
    assert kept["fulfilled_share"] == 1.0
    assert broken["fulfilled_share"] == 0.0
    assert json.loads(json.dumps(report.data)) == report.data
    assert total(memory) > 0


def test_waiting_for_a_flow_does_not_end_it(spark: SparkSession) -> None:
    seen = threading.Event()
    flow = observed(three_steps, lambda *_: seen.set(), source=even_trace(60_000, 1000))
    with Running(spark, flow) as running:
        assert seen.wait(60)
        assert not running.run.wait(0.1)
        running.run.stop()


def test_the_graph_of_a_flow_can_be_seen_without_running_it(spark: SparkSession) -> None:
    graph: Graph = observed(three_steps, sinks.memory()).graph(spark)
    assert graph.names == ("a", "b", "c")
    assert spark.streams.active == []
