from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace import control
from tailrace.errors import FlowFailed, InputError, StepFailed, TraceError
from tailrace.plan import Plan
from tailrace.policy.decision import Decision, Observation
from tailrace.spark import sinks
from tailrace.spark.flow import Flow, Run
from tailrace.spark.sources import replay
from tailrace.spark.step import Compilation, batch_step, flat_step, step
from tailrace.spark.trace import outputs_of

from .support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.flow import Graph
    from tailrace.profile.batch import BatchMeasure

pytestmark = pytest.mark.spark
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
    """A flow that runs while the block does, observed and not controlled unless told."""

    def __init__(self, spark: SparkSession, flow: Flow, **how: Any) -> None:
        self.measures: list[BatchMeasure] = []
        self.run: Run = flow.start(spark, on_measure=self.measures.append, **how)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.run._backend.stop()  # whatever the test saw, the query must not outlive it


def observed(pipeline: Any, sink: object, **how: Any) -> Flow:
    source = how.pop("source", even_trace(COUNT, 1500))
    how = {"mode": "observe", "warm_up": 0, **how}
    return Flow("tested", source, pipeline, sink, **how)


def a_step(function: Callable[[Any], Any], **how: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda records: records.transform(step("a", function, "seq bigint", **how))


# --- results ---------------------------------------------------------------------------------


def every_chaining() -> Iterator[tuple[tuple[str, ...], ...]]:
    names = ("a", "b", "c")
    for size in range(3):
        for cuts in combinations((1, 2), size):
            ends = [0, *cuts, 3]
            yield tuple(names[i:j] for i, j in pairwise(ends))


@pytest.mark.parametrize("chains", list(every_chaining()), ids=str)
def test_the_results_are_those_of_a_sequential_run_under_every_chaining(
    spark: SparkSession, chains: tuple[tuple[str, ...], ...]
) -> None:
    memory = sinks.memory()
    with Running(spark, observed(three_steps, memory), plan=chained(chains)) as running:
        until(lambda: total(memory) >= sequentially().total(), "all results")
        report = running.run.stop()
    assert pairs(memory) == sequentially()
    assert report.data["records"] == COUNT
    steps = [measure.steps for measure in running.measures]
    assert [sum(s[name].records_in for s in steps) for name in "abc"] == [COUNT, COUNT, COUNT]
    assert all(measure.plan.chains == chains for measure in running.measures)
    graph = running.run.controller.graph
    compilation = Compilation(Plan(0.0, chains), graph)
    with compilation.active():
        output = outputs_of(three_steps, spark.range(1).withColumnRenamed("id", "seq"))["sink"]
    plan = output._jdf.queryExecution().analyzed().toString()
    assert re.findall(r"MapInArrow tailrace:([\w+]+)", plan) == ["+".join(c) for c in chains][::-1]


def test_a_change_of_chains_while_running_loses_and_doubles_nothing(spark: SparkSession) -> None:
    memory = sinks.memory()
    flow = observed(three_steps, memory, source=even_trace(3000, 1000))
    with Running(spark, flow) as running:
        controller, backend = running.run.controller, running.run._backend
        first = controller.plan

        def restarted(times: int) -> Callable[[], bool]:
            return lambda: len(backend.restarts_ms) == times

        for change, chains in enumerate((APART, (("a", "b"), ("c",)), first.chains), start=1):
            until(more_than(total(memory), memory), "results under the plan")
            controller.plan = replace(controller.plan, chains=chains)
            until(restarted(change), "the restart")
        until(lambda: total(memory) >= sequentially(3000).total(), "all results")
        report = running.run.stop()
    assert first.chains == (("a", "b", "c"),)
    assert pairs(memory) == sequentially(3000)
    assert sorted(memory.batches) == list(range(len(memory.batches)))
    assert len(report.data["restarts_ms"]) == 3
    ran = [measure.plan.chains for measure in running.measures]
    assert {first.chains, APART, (("a", "b"), ("c",))} == set(ran)


def test_the_chaining_policy_may_restart_the_flow_by_itself(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_everything(seen: Observation) -> Decision:
        return Decision("test", replace(seen.plan, chains=APART), "to see it happen")

    monkeypatch.setattr(control, "POLICIES", (cut_everything,))
    memory = sinks.memory()
    flow = observed(three_steps, memory, mode="enforce", interval="500 ms")
    with Running(spark, flow) as running:
        until(lambda: total(memory) >= sequentially().total(), "all results")
        report = running.run.stop()
    assert pairs(memory) == sequentially()
    assert [decision["policy"] for decision in report.data["decisions"]] == ["test"]
    assert len(report.data["restarts_ms"]) <= 1  # the records may end before it is due


def test_a_scaled_step_runs_on_partitions_of_its_own_and_keeps_the_users_keys(
    spark: SparkSession,
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(step("a", lambda row: (row.seq, row.seq % 7), PAIR))
        keyed = first.repartition("n")
        mark = flat_step("b", lambda row: [(row.seq, row.n)], PAIR, scale=(3, 3))
        return keyed.transform(mark).withColumn("partition", F.spark_partition_id())

    memory = sinks.memory()
    with Running(spark, observed(pipeline, memory)) as running:
        until(lambda: total(memory) >= COUNT, "all results")
        running.run.stop()
    homes: dict[int, set[int]] = {}
    for row in memory.rows():
        homes.setdefault(row["n"], set()).add(row["partition"])
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len(set.union(*homes.values())) > 1
    keys = Counter[str]()
    for measure in running.measures:
        assert len(measure.steps["b"].busy_ms) <= 3
        keys.update(measure.steps["b"].keys)
    assert keys == Counter(str(seq % 7) for seq in range(COUNT))


def test_a_scaled_step_next_to_another_gets_its_partitions_too(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(step("a", lambda row: row.seq, "seq bigint"))
        return first.transform(step("b", lambda row: row.seq, "seq bigint", scale=(3, 3)))

    memory = sinks.memory()
    with Running(spark, observed(pipeline, memory)) as running:
        until(lambda: total(memory) >= COUNT, "all results")
        running.run.stop()
    assert max(len(measure.steps["b"].busy_ms) for measure in running.measures) == 3


# --- several outputs and forks ---------------------------------------------------------------


def test_two_outputs_share_one_reading_and_both_are_complete(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        first = records.transform(step("a", lambda row: (row.seq, row.seq * 2), PAIR))
        odd = first.where("seq % 2 = 1").transform(step("b", lambda row: row.seq, "seq bigint"))
        return {"all": first, "odd": odd}

    everything, odd = sinks.memory(), sinks.memory()
    flow = observed(pipeline, {"all": everything, "odd": odd})
    with Running(spark, flow) as running:
        until(lambda: total(everything) + total(odd) >= COUNT * 3 // 2, "all results")
        running.run.stop()
    assert sorted(row["seq"] for row in everything.rows()) == list(range(COUNT))
    assert sorted(row["seq"] for row in odd.rows()) == list(range(1, COUNT, 2))
    assert sum(measure.records for measure in running.measures) == COUNT
    assert sum(measure.steps["a"].records_in for measure in running.measures) == COUNT
    assert sum(measure.steps["b"].records_in for measure in running.measures) == COUNT // 2
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_a_step_that_two_branches_read_runs_once_and_counts_once(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        def picky(row: Any) -> int:
            if row.seq == 5:
                raise ValueError("five")
            return int(row.seq)

        first = records.transform(step("a", picky, "seq bigint", on_error="dead-letter"))
        return first.where("seq % 2 = 1").union(first.where("seq % 2 = 0"))

    memory, dead = sinks.memory(), sinks.memory()
    with Running(spark, observed(pipeline, memory, dead_letters=dead)) as running:
        until(lambda: total(memory) >= COUNT - 1, "all results")
        running.run.stop()
    assert sorted(row["seq"] for row in memory.rows()) == [s for s in range(COUNT) if s != 5]
    assert sum(measure.records for measure in running.measures) == COUNT
    assert sum(measure.steps["a"].records_in for measure in running.measures) == COUNT
    assert len(dead.rows()) == 1


def test_outputs_and_sinks_must_match(spark: SparkSession) -> None:
    for sink in ({"out": sinks.memory()}, {"in": sinks.memory(), "out": sinks.memory()}):
        with pytest.raises(InputError, match=r"\(none|\(sink|do not match: give one sink"):
            observed(three_steps, sink).start(spark)


# --- records that fail -----------------------------------------------------------------------


def picky(row: Any) -> int:
    if row.seq % 100 == 50:
        raise ValueError(f"no {row.seq}")
    return int(row.seq)


BAD = list(range(50, COUNT, 100))


def test_dead_letters_arrive_exactly_once_with_all_that_is_known(spark: SparkSession) -> None:
    memory, dead = sinks.memory(), sinks.memory()
    pipeline = a_step(picky, on_error="dead-letter")
    with Running(spark, observed(pipeline, memory, dead_letters=dead)) as running:
        until(lambda: total(memory) >= COUNT - len(BAD), "all good results")
        running.run.stop()
    good = [seq for seq in range(COUNT) if seq not in BAD]
    assert sorted(row["seq"] for row in memory.rows()) == good
    letters = sorted(dead.rows(), key=lambda row: json.loads(row["record"])["seq"])
    assert [json.loads(row["record"])["seq"] for row in letters] == BAD
    assert {row["step"] for row in letters} == {"a"}
    assert [row["error"] for row in letters] == [f"ValueError: no {seq}" for seq in BAD]
    homes = {row["seq"]: i for i, table in memory.batches.items() for row in table.to_pylist()}
    for row, seq in zip(letters, BAD, strict=True):
        assert row["batch"] in {homes[seq - 1], homes[seq + 1], homes[seq - 2], homes[seq + 2]}
    assert sum(measure.steps["a"].errors for measure in running.measures) == len(BAD)


def test_dead_letters_without_a_place_are_refused_before_anything_runs(
    spark: SparkSession,
) -> None:
    with pytest.raises(InputError, match="Step 'a' has on_error='dead-letter' and the flow has no"):
        observed(a_step(picky, on_error="dead-letter"), sinks.memory()).start(spark)


def test_dropped_records_are_counted_in_the_report(spark: SparkSession) -> None:
    memory = sinks.memory()
    with Running(spark, observed(a_step(picky, on_error="drop"), memory)) as running:
        until(lambda: total(memory) >= COUNT - len(BAD), "all good results")
        running.run.stop()
    assert sum(measure.steps["a"].errors for measure in running.measures) == len(BAD)


@pytest.mark.parametrize("several", [False, True])
def test_a_step_that_raises_ends_the_flow_in_one_sentence(
    spark: SparkSession, several: bool
) -> None:
    def pipeline(records: DataFrame) -> Any:
        made = a_step(picky)(records)
        return {"one": made, "two": made} if several else made

    sink = {"one": sinks.memory(), "two": sinks.memory()} if several else sinks.memory()
    with Running(spark, observed(pipeline, sink)) as running:
        assert running.run.wait(60)
        with pytest.raises(StepFailed) as failure:
            running.run.stop()
    message = str(failure.value)
    assert re.match(r"Step 'a' failed in batch \d+ on the record \{\"seq\": \d*50, ", message)
    assert "(ValueError: no " in message
    assert message.endswith("mend the step, or give it on_error='drop' or 'dead-letter'.")
    assert "\n" not in message
    assert spark.streams.active == []


# --- stopping, resuming, failing -------------------------------------------------------------


def test_stopping_finishes_the_batch_and_a_second_run_resumes(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "kept"
    load = even_trace(3000, 1500)
    parts: list[sinks.Memory] = []
    for enough in (500, 1500, None):
        memory = sinks.memory()
        before = sum(total(part) for part in parts)
        wanted = (enough or sequentially(3000).total()) - before
        flow = observed(three_steps, memory, source=load, checkpoint=checkpoint)
        with Running(spark, flow) as running:
            until(more_than(wanted - 1, memory), "results of this run")
            running.run.stop()
        parts.append(memory)
        logs = [_last(checkpoint / "checkpoint" / name) for name in ("offsets", "commits")]
        taken = json.loads(
            (checkpoint / "checkpoint/offsets" / str(logs[0])).read_text().splitlines()[-1]
        )["next"]
        so_far: Counter[tuple[int, int]] = Counter()
        for part in parts:
            so_far += pairs(part)
        assert logs[0] == logs[1] == max(memory.batches)
        read = {seq for seq in range(3000) if seq // 2 < taken[seq % 2]}
        assert so_far == Counter({p: n for p, n in sequentially(3000).items() if p[0] in read})
    assert so_far == sequentially(3000)
    ids = [i for part in parts for i in part.batches]
    assert sorted(ids) == list(range(len(ids)))


def _last(log: Path) -> int:
    return max(int(path.name) for path in log.iterdir() if path.name.isdigit())


def test_a_flow_stopped_before_its_first_record_ends_quietly(spark: SparkSession) -> None:
    late = even_trace(10, 1000)
    late = replace(late, due_us=late.due_us + 3_600_000_000)
    memory = sinks.memory()
    with Running(spark, observed(three_steps, memory, source=late)) as running:
        report = running.run.stop()
    assert memory.rows() == []
    assert report.data["records"] == 0
    assert report.data["fulfilled_share"] is None
    assert report.data["latency_ms"] is None
    assert spark.streams.active == []


def test_without_a_checkpoint_a_run_leaves_nothing(spark: SparkSession) -> None:
    memory = sinks.memory()
    with Running(spark, observed(three_steps, memory)) as running:
        directory = running.run._directory
        until(lambda: total(memory) > 0, "the first results")
        assert directory.exists()
        running.run.stop()
    assert not directory.exists()


@pytest.mark.parametrize("lines", ["line", "line\nand more"])
def test_a_sink_that_raises_ends_the_flow_in_one_sentence(spark: SparkSession, lines: str) -> None:
    def refuse(_frame: DataFrame, _batch_id: int) -> None:
        raise RuntimeError(lines)

    with Running(spark, observed(three_steps, refuse)) as running:
        assert running.run.wait(60)
        with pytest.raises(FlowFailed, match=r"The flow failed: .*line") as failure:
            running.run.stop()
    assert "\n" not in str(failure.value)
    assert "Traceback" not in str(failure.value)


def test_a_failure_inside_spark_is_named_by_its_cause(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        return records.select(F.raise_error(F.lit("the reactor is cold")).alias("x"))

    with Running(spark, observed(pipeline, sinks.memory())) as running:
        assert running.run.wait(60)
        with pytest.raises(FlowFailed, match="the reactor is cold") as failure:
            running.run.stop()
    assert "\n" not in str(failure.value)


def test_a_query_stopped_from_outside_is_said_to_be(spark: SparkSession) -> None:
    memory = sinks.memory()
    flow = observed(three_steps, memory, source=even_trace(60_000, 1000))
    with Running(spark, flow) as running:
        until(lambda: total(memory) > 0, "the first results")
        (query,) = spark.streams.active
        query.stop()
        assert running.run.wait(60)
        with pytest.raises(FlowFailed, match="The flow was stopped from outside"):
            running.run.stop()


def test_a_second_flow_of_the_same_name_is_refused_in_one_sentence(spark: SparkSession) -> None:
    flow = observed(three_steps, sinks.memory(), source=even_trace(60_000, 1000))
    with Running(spark, flow):
        with pytest.raises(FlowFailed, match="already active") as failure:
            observed(three_steps, sinks.memory()).start(spark)
        assert "\n" not in str(failure.value)
    assert spark.streams.active == []


def test_what_cannot_run_is_refused_before_anything_runs(spark: SparkSession) -> None:
    static = spark.range(3)
    with pytest.raises(InputError, match="must be a streaming DataFrame"):
        observed(three_steps, sinks.memory(), source=static).start(spark)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InputError, match="has no column 'when' to read arrival times from"):
        observed(lambda f: f, sinks.memory(), source=stream, arrived="when").start(spark)
    with pytest.raises(InputError, match="5 is not a sink"):
        observed(three_steps, 5)
    with pytest.raises(InputError, match="mode='force' is not known"):
        observed(three_steps, sinks.memory(), mode="force")
    with pytest.raises(TraceError, match="The pipeline returned NoneType"):
        observed(lambda _: None, sinks.memory()).start(spark)
    assert spark.streams.active == []


# --- what is measured ------------------------------------------------------------------------


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
        running.run.controller.plan = Plan(900.0, ())
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
        apart = replace(running.run.controller.plan, chains=(("a",), ("b",)))
        running.run.controller.plan = apart
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
