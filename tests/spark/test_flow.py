from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.control.actions import SetChains
from tailrace.errors import FlowFailed, InputError, StepFailed, TraceError
from tailrace.plan import Plan
from tailrace.policy import order
from tailrace.policy.decision import Decision, Observation
from tailrace.spark import sinks
from tailrace.spark.pipeline.compilation import Compilation
from tailrace.spark.pipeline.step import flat_step, step
from tailrace.spark.pipeline.trace import outputs_of
from tailrace.spark.sources import most_records, replay
from tests.spark.flows import (
    APART,
    COUNT,
    PAIR,
    Running,
    a_step,
    chained,
    more_than,
    observed,
    pairs,
    sequentially,
    three_steps,
    total,
)
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark
by_value(__name__)

# --- ends ------------------------------------------------------------------------------------


def test_a_query_that_is_no_longer_supervised_is_stopped(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on writing, and its checkpoint is removed under it when the run is stopped."""
    memory = sinks.memory()
    with Running(spark, observed(three_steps, memory)) as running:
        until(more_than(0, memory), "the first results")

        def lost() -> bool:
            raise ConnectionError("the cluster is gone")

        monkeypatch.setattr(running.run._backend, "_look", lost)
        until(lambda: running.run.wait(0), "the flow has ended")
        assert not [query for query in spark.streams.active if query.name == "tested"]
        with pytest.raises(FlowFailed, match="the cluster is gone"):
            running.run.stop()


def test_a_flow_rests_when_it_has_seen_that_nothing_comes_and_not_before(
    spark: SparkSession,
) -> None:
    memory = sinks.memory()
    flow = observed(three_steps, memory, interval="300 ms")
    with Running(spark, flow) as running:
        backend: Any = running.run._backend
        rested = set[bool]()

        def all_there() -> bool:
            before = total(memory)
            rested.update([backend._is_idle()] if before < sequentially().total() else [])
            return total(memory) >= sequentially().total()

        until(all_there, "all results")
        assert rested == {False}
        until(backend._is_idle, "it rests")
        running.apply(SetChains(APART))
        until(lambda: backend.restarts_ms, "the restart")
        until(backend._is_idle, "it rests again, though nothing came since its restart")


def test_an_address_is_no_place_for_a_checkpoint() -> None:
    with pytest.raises(InputError, match=r"^The checkpoint 's3://bucket/x' is an address: name a"):
        observed(three_steps, sinks.memory(), checkpoint="s3://bucket/x")


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
            running.apply(SetChains(chains))
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

    monkeypatch.setattr(order, "MICROBATCH", (cut_everything,))
    memory = sinks.memory()
    load = even_trace(2400, 1000)
    flow = observed(three_steps, memory, source=load, mode="enforce", interval="500 ms")
    with Running(spark, flow) as running:
        until(lambda: running.run._backend.restarts_ms, "the restart")
        until(lambda: total(memory) >= sequentially(2400).total(), "all results")
        report = running.run.stop()
    assert pairs(memory) == sequentially(2400)
    assert [decision["policy"] for decision in report.data["decisions"]] == ["test"]
    assert len(report.data["restarts_ms"]) == 1


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


def test_a_batch_that_fails_leaves_nothing_cached(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        first = records.transform(step("a", lambda row: (row.seq, row.seq * 2), PAIR))
        return {"all": first, "odd": first.where("seq % 2 = 1")}

    def fails(_frame: DataFrame, _batch: int) -> None:
        raise ValueError("no room")

    flow = observed(pipeline, {"all": sinks.memory(), "odd": sinks.call(fails)})
    with Running(spark, flow) as running:
        until(lambda: running.run.wait(0.1), "the failure")
        with pytest.raises(FlowFailed, match="no room"):
            running.run.stop()
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
        assert row["batch_id"] in {homes[seq - 1], homes[seq + 1], homes[seq - 2], homes[seq + 2]}
    assert sum(measure.steps["a"].errors for measure in running.measures) == len(BAD)


def test_dead_letters_without_a_place_are_refused_before_anything_runs(
    spark: SparkSession,
) -> None:
    with pytest.raises(
        InputError, match="Step 'a' has on_error='dead-letter', but the flow has no"
    ):
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
    assert message.endswith("fix the step, or give it on_error='drop' or 'dead-letter'.")
    assert "\n" not in message
    assert failure.value.report.failure == message
    assert failure.value.report.data["flow"] == running.run.flow.name
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
        with pytest.raises(FlowFailed, match=r"The flow failed \(.*line") as failure:
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
    with pytest.raises(InputError, match="A value of type int is not a sink"):
        observed(three_steps, 5)
    with pytest.raises(InputError, match="mode='force' is not known"):
        observed(three_steps, sinks.memory(), mode="force")
    with pytest.raises(TraceError, match="The pipeline returned NoneType"):
        observed(lambda _: None, sinks.memory()).start(spark)
    assert spark.streams.active == []


# --- what a source gives a batch -----------------------------------------------------------------


def test_what_a_source_gives_a_batch_at_most_is_read_from_its_options(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = replay(even_trace(10, 1000), most_records=7)
    frame = source.open(spark, tmp_path).frame
    assert most_records(frame) == most_records(frame.where("seq > 1").select("seq")) == 7
    plain = replay(even_trace(10, 1000)).open(spark, tmp_path).frame
    assert most_records(plain) is None
    assert most_records(frame.select("seq").union(frame.select("seq"))) is None
    rate = spark.readStream.format("rate").load()
    assert most_records(rate) is None


def test_a_flow_on_a_limited_source_leaves_nothing_behind(spark: SparkSession) -> None:
    """A bound of 10 s would allow batches of thousands of records, of which 300 are given."""
    source = replay(even_trace(36_000, 600), most_records=300)
    how: dict[str, Any] = {"interval": "1 s", "warm_up": 0, "source": source, "mode": "enforce"}
    flow = observed(a_step(lambda row: row.seq), sinks.discard(), **how)
    with Running(spark, flow.keep(mean="10 s", every="10 s")) as running:

        def with_room() -> bool:
            """Of five batches in a row: one that a busy machine makes late is full."""
            latest = running.measures[-5:]
            longest = [batch.plan.interval_ms == pytest.approx(400, rel=0.1) for batch in latest]
            return all(longest) and max(batch.records for batch in latest) < 300

        until(lambda: len(running.measures) > 5 and with_room(), "long batches with room to spare")
