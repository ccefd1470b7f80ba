"""Flows in real-time mode: the same results, measured as they run, and ended without a trace."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.control.actions import SetChains, SetLifetimes
from tailrace.errors import EnvironmentUnfit, InputError, StepFailed
from tailrace.profile.live import ChainReport
from tailrace.spark import sinks
from tailrace.spark.backends.realtime import has_lost_executor
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.pipeline.step import step
from tailrace.spark.settings import EXTENSION
from tailrace.spark.sources import replay
from tailrace.spark.worker.operator import FAILURE
from tests.spark.collected import BACKENDS, Files, plan_on
from tests.spark.flows import (
    APART,
    COUNT,
    PAIR,
    Running,
    a_step,
    observed,
    sequentially,
    three_steps,
    total,
)
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.plan import Chains

pytestmark = pytest.mark.spark
by_value(__name__)

ALL = sequentially().total()
LIVE = plan_on("realtime")
EAR = "tailrace-telemetry"


def threads(spark: SparkSession) -> set[str]:
    """The threads that are ours, in Python and in the JVM's tasks."""
    jvm: Any = spark.sparkContext._jvm
    running = jvm.java.lang.Thread.getAllStackTraces().keySet()
    # All at once: "Thread[name,5,group]", and since Java 19 "Thread[#12,name,5,group]".
    theirs = re.findall(r"Thread\[(?:#\d+,)?(.*?),\d+,", jvm.java.util.Objects.toString(running))
    assert theirs
    mine = [f"{thread.name} {thread.ident}" for thread in threading.enumerate()]
    return {name for name in (*mine, *theirs) if name.startswith("tailrace-")}


@pytest.fixture(autouse=True)
def _leaves_nothing(spark: SparkSession) -> Iterator[None]:
    """However a flow ended, none of its queries or threads is left."""
    before = threads(spark)
    yield
    until(lambda: threads(spark) <= before, "the end of every thread", 5)
    assert spark.streams.active == []


# --- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [(("a", "b", "c"),), (("a", "b"), ("c",)), APART], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_results_are_those_of_a_sequential_run_on_both_backends(
    spark: SparkSession, tmp_path: Path, backend: str, chains: Chains
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(three_steps, files.sink)
    with Running(spark, flow, plan=plan_on(backend, chains)) as running:
        until(files.hold(ALL), "all results")
        report = running.run.stop()
    assert files.counted() == sequentially()
    assert report.data["records"] == COUNT


def test_a_step_with_partitions_of_its_own_sits_behind_a_live_shuffle(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(step("a", lambda row: (row.seq, row.seq * 3), PAIR))
        return first.transform(step("b", lambda row: (row.seq, row.n + 1), PAIR, scale=(2, 2)))

    files = Files(tmp_path / "out")
    apart = plan_on("realtime", (("a",), ("b",)), {"b": 2})
    with Running(spark, observed(pipeline, files.sink), plan=apart) as running:
        until(files.hold(COUNT), "all results")
        report = running.run.stop()
    assert files.counted() == Counter((seq, seq * 3 + 1) for seq in range(COUNT))
    assert report.data["records"] == COUNT
    assert any("shuffle" in interval["breakdown_ms"] for interval in report.intervals)


@pytest.fixture
def taken(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Three of the four slots are held by others, until this file is there."""
    gate = tmp_path / "gate"

    def until_the_gate_opens(_: Any) -> None:
        while not gate.exists():
            threading.Event().wait(0.05)

    others = threading.Thread(
        target=lambda: spark.sparkContext.parallelize(range(3), 3).foreach(until_the_gate_opens)
    )
    others.start()
    try:
        tracker = spark.sparkContext.statusTracker()
        until(lambda: _running(tracker) == 3, "tasks that hold slots")
        yield gate
    finally:
        gate.touch()
        others.join()


def behind_a_shuffle(records: DataFrame) -> DataFrame:
    """All tasks must run at the same time."""
    return records.transform(step("a", lambda row: (row.seq, 1), PAIR, scale=(2, 2)))


def test_a_batch_that_finds_too_few_free_slots_waits_for_them(
    spark: SparkSession, taken: Path, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(behind_a_shuffle, files.sink)
    with Running(spark, flow, plan=plan_on("realtime", None, {"a": 2})) as running:
        backend: Any = running.run._backend
        until(lambda: backend._crowded_s, "a batch without slots")
        taken.touch()
        until(files.hold(COUNT), "all results")
        report = running.run.stop()
    assert any("Batches that had to wait for free slots: 0" in n for n in report.data["notes"])


def test_a_stop_while_a_batch_waits_for_slots_is_no_failure_and_leaves_it_to_the_next_start(
    spark: SparkSession, taken: Path, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(behind_a_shuffle, files.sink, checkpoint=tmp_path / "flow")
    plan = plan_on("realtime", None, {"a": 2})
    with Running(spark, flow, plan=plan) as running:
        backend: Any = running.run._backend
        until(lambda: backend._crowded_s, "a batch without slots")
        notes = running.run.stop().data["notes"]
    assert any(n.startswith("Batch 0 was given up, because executors or free") for n in notes)
    taken.touch()
    with Running(spark, flow, plan=plan):
        until(files.hold(COUNT), "all results")
    assert files.counted() == Counter((seq, 1) for seq in range(COUNT))


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("ExecutorLostFailure (executor 1 exited unrelated to the running tasks)", True),
        ("io.netty.channel.unix.Errors$NativeIoException: recvAddress(..) failed: reset", True),
        ("java.io.IOException: Connection from /127.0.0.1:4141 closed", True),
        ("java.io.IOException: Failed to connect to /127.0.0.1:4141", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("java.sql.SQLException: Connection is closed", False),
        ("ConnectionError: Failed to connect to 10.0.0.7:5432", False),
        (f'{FAILURE}{{"step": "a", "error": "OSError: Lost executor"}}', False),
    ],
)
def test_a_lost_executor_is_distinguished_from_what_a_step_or_a_sink_cannot_reach(
    said: str, lost: bool
) -> None:
    assert has_lost_executor(said) is lost


def _running(tracker: Any) -> int:
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


# --- measurement -----------------------------------------------------------------------------


def test_the_latency_is_measured_while_a_batch_runs_and_its_parts_add_up(
    spark: SparkSession,
) -> None:
    flow = observed(three_steps, sinks.discard(), source=even_trace(1500, 500), interval="500 ms")
    with Running(spark, flow, plan=plan_on("realtime", APART)) as running:
        history = running.run.controller.log.history
        until(lambda: len(history) >= 2, "two intervals, though the batch has not ended")
        checkpoint = running.run._directory / "checkpoint"
        assert BatchLog(checkpoint).committed == -1
        until(lambda: sum(record.records for record in history) >= 1000, "most of the records")
        report = running.run.stop()
    assert report.data["records"] == 1500
    assert report.data["batches"] == 1
    assert len(report.intervals) >= 3
    for interval in report.intervals:
        parts = interval["breakdown_ms"]
        assert sum(parts.values()) == pytest.approx(interval["mean_ms"], rel=0.01, abs=0.02)
        assert {"source_wait", "hand-over", "shuffle", "sink", "step:a", "step:c"} <= set(parts)
    assert report.data["latency_ms"]["p50_ms"] < 1000


def test_a_longer_lifetime_reaches_running_tasks_without_a_restart(spark: SparkSession) -> None:
    flow = observed(a_step(lambda row: row.seq), sinks.discard(), source=even_trace(60_000, 1000))
    heard: list[ChainReport] = []
    with Running(spark, flow, plan=LIVE) as running:
        server = running.run._backend._telemetry
        pass_on = server._heard

        def listen(said: Any) -> None:
            heard.extend([said] if isinstance(said, ChainReport) else [])
            pass_on(said)

        server._heard = listen

        def per_hand_over(last: int) -> float:
            some = heard[-last:]
            return sum(s.records for s in some) / max(1, sum(s.handovers for s in some))

        until(lambda: len(heard) >= 6 and per_hand_over(4) < 10, "small hand-overs")
        running.apply(SetLifetimes({"a": 100.0}))
        until(lambda: per_hand_over(4) > 20, "hand-overs of a tenth of a second")
        running.apply(SetLifetimes())
        until(lambda: per_hand_over(4) < 10, "small hand-overs again")
        report = running.run.stop()
    assert report.data["restarts_ms"] == []
    assert {s.batch for s in heard} == {0}


@pytest.mark.alone
def test_a_step_that_one_task_cannot_carry_gets_more_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A step waits 4 ms for each of 400 records a second: one task can take 250."""

    def waits(row: Any) -> int:
        time.sleep(0.004)
        return int(row.seq)

    files = Files(tmp_path / "out")
    flow = observed(
        lambda records: records.transform(step("wait", waits, "seq bigint", scale=(1, 3))),
        files.sink,
        source=replay(even_trace(24_000, 400), partitions=1),
        mode="enforce",
        backend="realtime",
        interval="1 s",
    ).keep(mean="50 ms", every="1 s")
    with Running(spark, flow) as running:
        controller = running.run.controller
        assert controller.plan.partitions == {"wait": 1}
        until(lambda: controller.plan.partitions["wait"] >= 2, "more tasks")
        until(lambda: any(v.fulfilled for v in controller.log.verdicts[-2:]), "the bound is kept")
        report = running.run.stop()
    assert 1 <= len(report.data["restarts_ms"]) <= 3
    (decision, *_) = [d for d in report.data["decisions"] if d["policy"] == "tasks"]
    assert "for wait" in decision["reason"]
    seen = sorted(row[0] for row in files.rows())
    assert seen == list(range(len(seen)))


def test_a_flow_that_is_not_measured_gives_the_same_results_in_real_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(three_steps, files.sink)
    with Running(spark, flow, plan=LIVE, measured=False) as running:
        until(files.hold(ALL), "all results")
        running.run.stop()
    assert files.counted() == sequentially()


# --- restarts and ends -----------------------------------------------------------------------


def test_a_change_of_chains_restarts_where_a_batch_ends_and_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(three_steps, files.sink, source=even_trace(3000, 1000))
    with Running(spark, flow, plan=LIVE) as running:
        backend = running.run._backend
        for times, chains in enumerate((APART, (("a", "b"), ("c",))), start=1):
            until(files.hold(len(files.rows()) + 1), "results under the plan")
            running.apply(SetChains(chains))
            until(lambda times=times: len(backend.restarts_ms) == times, "the restart")  # type: ignore[misc]
        until(files.hold(sequentially(3000).total()), "all results")
        report = running.run.stop()
    assert files.counted() == sequentially(3000)
    assert report.data["records"] == 3000
    assert report.data["batches"] == 3
    assert len(report.data["restarts_ms"]) == 2


def test_a_clean_stop_leaves_nothing_to_repeat_and_nothing_running(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    counts = []
    for least in (1, sequentially(2000).total()):
        flow = observed(
            three_steps, files.sink, source=even_trace(2000, 1000), checkpoint=tmp_path / "flow"
        )
        with Running(spark, flow, plan=LIVE) as running:
            until(files.hold(least), "results of this run")
            report = running.run.stop()
            assert spark.streams.active == []
            assert not [t for t in threading.enumerate() if t.name in {"tailrace-tested", EAR}]
        counts.append(report.data["records"])
        logs = [tmp_path / "flow/checkpoint" / name for name in ("offsets", "commits")]
        offsets, commits = [{p.name for p in log.iterdir() if p.name.isdigit()} for log in logs]
        assert offsets == commits
    assert files.counted() == sequentially(2000)
    assert counts[0] < sum(counts) == 2000


def test_a_flow_stopped_before_its_first_record_ends_quietly(spark: SparkSession) -> None:
    late = even_trace(10, 1000)
    late = replace(late, due_us=late.due_us + 3_600_000_000)
    flow = observed(three_steps, sinks.discard(), source=late)
    with Running(spark, flow, plan=LIVE) as running:
        report = running.run.stop()
    assert report.data["records"] == 0
    assert report.data["latency_ms"] is None


# --- records that fail -----------------------------------------------------------------------


def picky(row: Any) -> int:
    if row.seq % 100 == 50:
        raise ValueError(f"no {row.seq}")
    return int(row.seq)


BAD = list(range(50, COUNT, 100))


def test_a_step_that_raises_fails_the_flow_naming_step_and_record(spark: SparkSession) -> None:
    flow = observed(a_step(picky), sinks.discard())
    with Running(spark, flow, plan=LIVE) as running:
        assert running.run.wait(60)
        with pytest.raises(StepFailed, match=r"Step 'a' .*\"seq\": 50.*no 50") as failure:
            running.run.stop()
    assert "\n" not in str(failure.value)


def test_records_that_a_step_drops_are_counted_and_the_rest_flows_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    flow = observed(a_step(picky, on_error="drop"), files.sink)
    with Running(spark, flow, plan=LIVE) as running:
        until(files.hold(COUNT - len(BAD)), "all good records")
        running.run.stop()
    assert files.counted() == Counter((seq,) for seq in range(COUNT) if seq not in BAD)
    history = running.run.controller.log.history
    assert sum(record.steps["a"].errors for record in history if "a" in record.steps) == len(BAD)


def test_dead_letters_are_published_once_when_their_batch_is_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, dead = Files(tmp_path / "out"), sinks.memory()
    for least in (200, COUNT - len(BAD)):
        flow = observed(
            a_step(picky, on_error="dead-letter"),
            files.sink,
            dead_letters=dead,
            checkpoint=tmp_path / "flow",
            source=even_trace(COUNT, 500),
        )
        with Running(spark, flow, plan=LIVE) as running:
            until(files.hold(least), "good records")
            published = total(dead)
            running.run.stop()
        assert total(dead) > published
    assert files.counted() == Counter((seq,) for seq in range(COUNT) if seq not in BAD)
    expected = [("a", f'"seq": {seq}', f"ValueError: no {seq}") for seq in BAD]
    found = sorted(dead.rows(), key=lambda row: int(row["error"].split()[-1]))
    assert [(row["step"], row["error"]) for row in found] == [(s, e) for s, _, e in expected]
    assert all(part in row["record"] for row, (_, part, _) in zip(found, expected, strict=True))
    assert {row["batch_id"] for row in found} == {0, 1}
    assert list((tmp_path / "flow/letters").iterdir()) == []


# --- what cannot run -------------------------------------------------------------------------


def refused(spark: SparkSession, flow: Any, match: str, **how: Any) -> None:
    """The flow is refused in one sentence, before anything of it runs."""
    kind = how.pop("error", InputError)
    with pytest.raises(kind, match=match) as failure:
        flow.start(spark, **how)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("name", ["memory", "parquet", "console", "call"])
def test_a_sink_of_whole_batches_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    made = {
        "memory": sinks.memory(),
        "parquet": sinks.parquet(tmp_path / "out"),
        "console": sinks.console(),
        "call": sinks.call(lambda *_: None),
    }[name]
    flow = observed(three_steps, made, backend="realtime")
    refused(spark, flow, f"the sink '{name}' takes whole batches; use kafka, each or discard")


def test_a_source_that_cannot_be_read_live_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    flow = observed(
        lambda f: f, sinks.discard(), source=stream, arrived="timestamp", backend="realtime"
    )
    refused(spark, flow, "its source cannot be read in real-time mode; use Kafka or a load")


def test_two_outputs_are_refused(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        return {"one": records, "two": records.where("seq > 1")}

    both = {"one": sinks.discard(), "two": sinks.discard()}
    flow = observed(pipeline, both, backend="realtime")
    refused(spark, flow, "it forks, and in real-time mode Spark reads a source for one branch only")


def test_ways_that_part_and_come_together_are_refused(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        first = records.transform(step("a", lambda row: row.seq, "seq bigint"))
        odd = first.where("seq % 2 = 1").transform(step("b", lambda row: row.seq, "seq bigint"))
        return odd.union(first.where("seq % 2 = 0"))

    flow = observed(pipeline, sinks.discard(), backend="realtime")
    refused(spark, flow, "it forks, and in real-time mode")


def test_too_few_slots_are_refused_with_the_number_that_is_needed(spark: SparkSession) -> None:
    source = replay(even_trace(10, 1000), partitions=40)
    flow = observed(three_steps, sinks.discard(), source=source, backend="realtime")
    match = r"the flow holds 40 slots and the session has \d+: .*local\[40\]"
    refused(spark, flow, match, error=EnvironmentUnfit)


def test_the_tasks_behind_exchanges_of_sparks_own_are_counted(spark: SparkSession) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        marked = records.transform(step("a", lambda row: row.seq, "seq bigint"))
        return marked.repartition(20, "seq").dropDuplicates(["seq"])

    source = replay(even_trace(10, 1000), partitions=3)
    flow = observed(pipeline, sinks.discard(), source=source, backend="realtime")
    behind = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    refused(spark, flow, f"the flow holds {3 + 20 + behind} slots", error=EnvironmentUnfit)


def test_a_bound_behind_an_aggregation_is_refused_and_one_before_it_is_not(
    spark: SparkSession,
) -> None:
    def pipeline(records: DataFrame) -> DataFrame:
        marked = records.transform(step("a", lambda row: row.seq % 3, "seq bigint"))
        return marked.groupBy("seq").count()

    flow = observed(pipeline, sinks.discard(), backend="realtime").keep(mean="10 ms")
    refused(spark, flow, "there is an aggregation on the path, after which a record's arrival is")
    flow = observed(pipeline, sinks.discard(), backend="realtime")
    flow.keep(mean="10 ms", path=("source", "a"))
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        with Running(spark, flow, plan=LIVE) as running:
            # two read, and one is behind the exchange
            assert running.run._backend._other_tasks == 2 + 1
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_a_session_without_the_extension_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tailrace.spark.backends.realtime.EXTENSION", replace(EXTENSION, value="another.Extension")
    )
    flow = observed(three_steps, sinks.discard(), backend="realtime")
    refused(spark, flow, "the session was built without spark.sql.extensions")


def test_a_source_without_an_arrival_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    even_trace(10, 1000).save(tmp_path / "load.trace")

    def source(session: SparkSession) -> DataFrame:
        reader = session.readStream.format("tailrace-replay").option("partitions", "1")
        return reader.option("trace", str(tmp_path / "load.trace")).load()

    flow = observed(three_steps, sinks.discard(), source=source, backend="realtime")
    refused(spark, flow, "No column says when records arrived.*name one with Flow")
