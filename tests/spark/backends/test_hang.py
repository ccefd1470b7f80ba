"""Steps and sinks that hang: named while they do, given up in time, and repeated when mended."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tailrace.spark import sinks
from tailrace.spark.backends import base, realtime
from tailrace.spark.pipeline.step import keyed_step
from tailrace.spark.worker import watch
from tests.spark.collected import Files, plan_on
from tests.spark.flows import Running, a_step, more_than, observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.report.data import Report
    from tailrace.spark.flow import Flow

pytestmark = pytest.mark.spark
by_value(__name__)

COUNT = 900
AT = 300


class Hook:
    """A step that hangs at one record until it is mended, and says which process it hangs in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def step(self) -> Callable[[Any], int]:
        stuck, mended = self._directory / "stuck", self._directory / "mended"

        def hold_on(row: Any) -> int:
            if row.seq == AT and not mended.exists():
                stuck.write_text(str(os.getpid()))
                threading.Event().wait()
            return int(row.seq)

        return hold_on

    @property
    def caught(self) -> bool:
        return (self._directory / "stuck").exists()

    @property
    def worker(self) -> psutil.Process:
        return psutil.Process(int((self._directory / "stuck").read_text()))

    def mend(self) -> None:
        (self._directory / "mended").touch()


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


def hanging(hook: Hook, sink: object, checkpoint: Path, **how: Any) -> Flow:
    how = {"stall": "1 s", "stop_within": "500 ms", "source": even_trace(COUNT, 1500), **how}
    return observed(a_step(hook.step), sink, checkpoint=checkpoint, **how)


def named(report: Report) -> list[dict[str, Any]]:
    """The steps that hang in what was written to; a slow machine may find more that lasts long."""
    return [stall for stall in report.data["stalls"] if "in hold_on" in str(stall["stack"])]


def is_named(running: Running) -> Callable[[], bool]:
    return lambda: bool(named(running.run.report()))


def check_named(report: Report) -> None:
    """The report names the step, where it hangs and at which line, and what was given up."""
    (stall,) = named(report)
    assert (stall["step"], stall["phase"], stall["over"]) == ("a", "step", False)
    assert stall["partition"] in range(4)
    assert stall["seconds"] >= 1.0
    assert "in hold_on: threading.Event().wait()" in stall["stack"][-1]
    (given_up,) = [note for note in report.data["notes"] if "given up" in note]
    assert given_up.startswith(f"Batch {stall['batch']} was given up, because it did not end")
    assert "Step 'a' has hung in partition" in given_up


def test_a_step_that_hangs_is_named_given_up_and_its_batch_repeated_once_it_is_mended(
    spark: SparkSession, tmp_path: Path, hook: Hook
) -> None:
    sink = sinks.parquet(tmp_path / "out")
    with Running(spark, hanging(hook, sink, tmp_path / "flow")) as running:
        until(is_named(running), "the step is named while it hangs")
        worker = hook.worker
        assert worker.is_running()
        check_named(running.run.stop())
        assert spark.streams.active == []
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running()

    hook.mend()
    with Running(spark, hanging(hook, sink, tmp_path / "flow")) as running:

        def kept() -> list[int]:
            return sorted(row.seq for row in spark.read.parquet(str(tmp_path / "out")).collect())

        until(lambda: len(kept()) >= COUNT, "all results")
        report = running.run.stop()
    assert kept() == list(range(COUNT))
    assert named(report) == []


def test_a_step_that_hangs_in_real_time_is_named_and_given_up_alike(
    spark: SparkSession, tmp_path: Path, hook: Hook
) -> None:
    files = Files(tmp_path / "out")
    with Running(
        spark, hanging(hook, files.sink, tmp_path / "flow"), plan=plan_on("realtime")
    ) as running:
        until(is_named(running), "the step is named while it hangs")
        worker = hook.worker
        check_named(running.run.stop())
        assert spark.streams.active == []
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running()

    hook.mend()
    with Running(
        spark, hanging(hook, files.sink, tmp_path / "flow"), plan=plan_on("realtime")
    ) as running:
        until(lambda: len(files.counted()) >= COUNT, "all results")
        running.run.stop("1 min")
    assert set(files.counted()) == {(seq,) for seq in range(COUNT)}
    assert max(files.counted().values()) == 2  # what the batch wrote before it was given up


def test_stopping_can_be_hurried_while_it_waits(
    spark: SparkSession, tmp_path: Path, hook: Hook
) -> None:
    flow = hanging(hook, sinks.memory(), tmp_path / "flow")
    with Running(spark, flow) as running:
        until(lambda: hook.caught, "the step hangs")
        reports: list[Report] = []
        stopping = threading.Thread(target=lambda: reports.append(running.run.stop("1 h")))
        stopping.start()
        until(is_named(running), "the step is named while the run is being stopped")
        assert stopping.is_alive()
        running.run.hurry()
        stopping.join(60)
        assert not stopping.is_alive()
    check_named(reports[0])


def test_a_step_that_continues_is_reported_and_nothing_is_given_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"

    def hold_on(row: Any) -> int:
        while row.seq == AT and not mended.exists():
            threading.Event().wait(0.05)
        return int(row.seq)

    memory = sinks.memory()
    flow = observed(a_step(hold_on), memory, stall="1 s", source=even_trace(COUNT, 1500))
    with Running(spark, flow) as running:
        until(is_named(running), "the step is named while it hangs")
        mended.touch()
        until(more_than(COUNT - 1, memory), "all results")
        until(lambda: named(running.run.report())[0]["over"], "the step is said to go on")
        report = running.run.stop()
    (stall,) = named(report)
    assert (stall["step"], stall["over"]) == ("a", True)
    assert "in hold_on" in stall["stack"][-1]
    assert any(note.endswith("then went on.") for note in report.data["notes"])
    assert not any("given up" in note for note in report.data["notes"])
    assert Counter(row["seq"] for row in memory.rows()) == Counter(range(COUNT))


def test_a_sink_that_hangs_in_the_driver_is_named_and_publishes_nothing_afterwards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "INTERRUPT_S", 1.0)
    going, hung, other = threading.Event(), threading.Event(), sinks.memory()

    def stuck(_frame: DataFrame, _batch: int) -> None:
        hung.set()
        going.wait()

    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        return {"first": records.select("seq"), "second": records.select("seq")}

    flow = observed(
        pipeline,
        {"first": stuck, "second": other},
        checkpoint=tmp_path / "flow",
        stall="200 ms",
        stop_within="200 ms",
    )
    with Running(spark, flow) as running:
        try:
            until(hung.is_set, "the sink hangs")
            until(lambda: "in stuck" in str(running.run.report().data["stalls"]), "it is named")
            report = running.run.stop()
            left = [thread for thread in threading.enumerate() if "interrupt" in thread.name]
        finally:
            going.set()
        for thread in left:
            thread.join(60)
    stall = report.data["stalls"][-1]
    assert (stall["step"], stall["sink"], stall["over"]) == (None, "sink:first", False)
    assert any("in stuck: going.wait()" in line for line in stall["stack"])
    notes = " ".join(report.data["notes"])
    assert "Batch 0 was given up" in notes
    assert "something in the driver hangs: end this process" in notes
    assert other.rows() == []
    until(lambda: spark.streams.active == [], "the query is gone")


def test_silence_is_said_in_the_report(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors cannot reach the address that the driver gives them."""
    monkeypatch.setattr(realtime, "FIRST_WORD_S", 2.0)
    files = Files(tmp_path / "out")
    flow = observed(a_step(lambda row: row.seq), files.sink)
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        server: Any = running.run._backend._telemetry
        object.__setattr__(
            server.client, "token", "of another driver"
        )  # nothing is heard from now on
        until(lambda: running.run._backend._silent_s > 0, "the silence is noticed")  # type: ignore[union-attr]
        report = running.run.stop("1 min")
    (said,) = [note for note in report.data["notes"] if "Nothing was heard" in note]
    assert said.endswith("by UDP to 127.0.0.1, which every executor must be able to reach.")


def test_an_idle_source_is_not_silence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "SILENCE_S", 4 * watch.LOOK_S)
    files = Files(tmp_path / "out")
    flow = observed(a_step(lambda row: row.seq), files.sink)
    with Running(spark, flow, plan=plan_on("realtime")) as running:
        until(files.hold(COUNT), "all records have come")
        idle_from_s = time.monotonic()
        server: Any = running.run._backend._telemetry
        until(
            lambda: (server.heard_s or 0.0) > idle_from_s + 2 * realtime.SILENCE_S,
            "tasks are heard of though no records come",
        )
        report = running.run.stop()
    assert not any("Nothing was heard" in note for note in report.data["notes"])


def test_the_state_of_a_batch_that_was_given_up_counts_every_record_once(
    spark: SparkSession, tmp_path: Path, hook: Hook
) -> None:
    hold_on = hook.step

    def count(key: str, rows: list[Any], state: Any) -> Any:
        for row in rows:
            hold_on(row)
            state["n"] += 1
        yield key, state["n"]

    def pipeline(records: DataFrame) -> DataFrame:
        counted = keyed_step("a", count, "key string, n long", key="key", state={"n": 0})
        return records.transform(counted)

    def flow() -> Flow:
        return observed(
            pipeline,
            sinks.parquet(tmp_path / "out"),
            checkpoint=tmp_path / "flow",
            source=even_trace(COUNT, 1500, keys=3),
            stall="1 s",
            stop_within="500 ms",
        )

    with Running(spark, flow()) as running:
        until(is_named(running), "the step is named while it hangs")
        check_named(running.run.stop())
    hook.mend()
    with Running(spark, flow()) as running:

        def totals() -> dict[str, int]:
            rows = spark.read.parquet(str(tmp_path / "out")).groupBy("key").max("n").collect()
            return {row["key"]: row["max(n)"] for row in rows}

        until(lambda: sum(totals().values()) >= COUNT, "all records are counted")
        running.run.stop()
    assert totals() == {"k0": 300, "k1": 300, "k2": 300}
