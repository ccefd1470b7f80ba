"""Flows that share a session, and name their steps alike: each has what its own plan says."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.control.actions import SetPartitions
from tailrace.errors import EnvironmentUnfit, FlowFailed
from tailrace.profile.live import ChainReport
from tailrace.spark import sinks
from tailrace.spark.backends.slots import _claims_of
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tailrace.spark.sources import replay
from tests.spark.collected import plan_on
from tests.spark.flows import Running
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.graph import Graph
    from tailrace.plan import Plan

pytestmark = pytest.mark.spark
by_value(__name__)

LIFETIMES = "tailrace.handover.Lifetime"
FLUSHES = "tailrace.handover.FlushInterval"


def same_step(records: DataFrame) -> DataFrame:
    return records.transform(step("a", lambda row: row.seq, "seq bigint"))


def same_steps(records: DataFrame) -> DataFrame:
    """The second step is behind a shuffle."""
    return same_step(records).transform(step("b", lambda row: row.seq, "seq bigint", scale=(1, 1)))


class Heard(Running):
    """A flow in real-time mode that runs while the block does, and what its tasks say."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        pipeline: Callable[[DataFrame], DataFrame],
        plan: Callable[[Graph], Plan],
        rate_per_s: float,
    ) -> None:
        source = replay(even_trace(60_000, rate_per_s), partitions=1)
        flow = Flow(name, source, pipeline, sinks.discard(), mode="observe", warm_up=0)
        super().__init__(spark, flow, plan=plan)
        self.backend: Any = self.run._backend
        self.chain_reports: list[ChainReport] = []
        self._pass_on = self.backend._telemetry._heard
        self.backend._telemetry._heard = self._listen

    def _listen(self, said: Any) -> None:
        if isinstance(said, ChainReport) and said.records:
            self.chain_reports.append(said)
        self._pass_on(said)

    def per_hand_over(self, last: int = 4) -> float:
        some = self.chain_reports[-last:]
        return sum(s.records for s in some) / max(1, sum(s.handovers for s in some))

    def behind_the_shuffle_ms(self, batch: int, last: int = 4) -> float:
        """The age of records when the second step gets them, in a batch or a later one.

        The first ones that a batch gets have waited for it, and do not count.
        """
        ages = [s.read_ms for s in self.chain_reports if s.chain == "b" and s.batch >= batch]
        return fmean(ages[-last:]) if len(ages) >= 2 * last else 0.0

    def begin_another_batch(self) -> int:
        """End the batch at hand, so that other tasks start; the batch that follows."""
        ended = self.committed() + 1
        clock = self.run._job.jvm.tailrace.pacing.BatchClock
        query = str(self.backend._query.id)
        clock.end(query)
        until(lambda: self.committed() >= ended, "the end of the batch")
        clock.goOn(query)
        return self.committed() + 1

    def committed(self) -> int:
        return BatchLog(self.run._directory / "checkpoint").committed


def kept(spark: SparkSession, registry: str) -> set[str]:
    """The flows that a registry of the JVM knows."""
    jvm: Any = spark.sparkContext._jvm
    field = jvm.java.lang.Class.forName(registry).getDeclaredField("FLOWS")
    field.setAccessible(True)
    return set(field.get(None).keySet())


def test_flows_whose_steps_have_the_same_names_have_lifetimes_of_their_own(
    spark: SparkSession,
) -> None:
    def slow(graph: Graph) -> Plan:
        return replace(plan_on("realtime")(graph), lifetimes_ms={"a": 100.0})

    quick = plan_on("realtime")
    with ExitStack() as stack:
        patient = stack.enter_context(Heard(spark, "patient", same_step, slow, 1000))
        until(lambda: patient.per_hand_over() > 20, "hand-overs of a tenth of a second")
        hasty = stack.enter_context(Heard(spark, "hasty", same_step, quick, 1000))
        until(lambda: len(hasty.chain_reports) >= 6, "both flows")
        patient.chain_reports.clear()
        until(lambda: len(patient.chain_reports) >= 6, "both flows")
        assert patient.per_hand_over(6) > 4 * hasty.per_hand_over()
        hasty.run.stop()
        patient.chain_reports.clear()
        until(lambda: len(patient.chain_reports) >= 6, "the one that is left")
        assert patient.per_hand_over(6) > 4 * hasty.per_hand_over()


@pytest.mark.alone
def test_flows_of_one_session_have_flush_intervals_of_their_own(spark: SparkSession) -> None:
    chains, partitions = (("a",), ("b",)), {"b": 1}
    quick = plan_on("realtime", chains, partitions)

    def slow(graph: Graph) -> Plan:
        return replace(quick(graph), flush_ms=400.0)

    with ExitStack() as stack:
        patient = stack.enter_context(Heard(spark, "patient", same_steps, slow, 200))
        until(lambda: patient.chain_reports, "the first flow")
        hasty = stack.enter_context(Heard(spark, "hasty", same_steps, quick, 200))
        until(lambda: hasty.behind_the_shuffle_ms(0) > 0, "the second flow")
        batch = patient.begin_another_batch()  # its tasks start after those of the other
        until(lambda: patient.behind_the_shuffle_ms(batch) > 0, "its next batch")
        hasty_ms = hasty.behind_the_shuffle_ms(0)
        assert patient.behind_the_shuffle_ms(batch) > 4 * hasty_ms
        hasty.run.stop()
        batch = patient.begin_another_batch()  # and after the other has ended
        until(lambda: patient.behind_the_shuffle_ms(batch) > 0, "its next batch")
        assert patient.behind_the_shuffle_ms(batch) > 4 * hasty_ms


def test_nothing_of_a_flow_that_has_ended_is_left_in_the_jvm(spark: SparkSession) -> None:
    plan = plan_on("realtime")
    assert kept(spark, LIFETIMES) == kept(spark, FLUSHES) == set()
    with Heard(spark, "one", same_step, plan, 100) as one:
        with Heard(spark, "two", same_step, plan, 100) as two:
            both = {one.backend.flow_id, two.backend.flow_id}
            assert len(both) == 2
            assert kept(spark, LIFETIMES) == kept(spark, FLUSHES) == both
        assert kept(spark, LIFETIMES) == kept(spark, FLUSHES) == {one.backend.flow_id}
    assert kept(spark, LIFETIMES) == kept(spark, FLUSHES) == set()


def test_a_flow_that_does_not_start_leaves_nothing_in_the_jvm(spark: SparkSession) -> None:
    plan = plan_on("realtime")
    with Heard(spark, "one", same_step, plan, 100) as one:
        with pytest.raises(Exception, match="one"):  # Spark has a query of that name
            Heard(spark, "one", same_step, plan, 100)
        assert kept(spark, LIFETIMES) == kept(spark, FLUSHES) == {one.backend.flow_id}


# --- slots -----------------------------------------------------------------------------------


def holding(name: str, slots: int, backend: str = "realtime", **how: Any) -> Flow:
    """A flow that holds this many slots in real-time mode; its records go on for a minute."""
    source = replay(even_trace(6_000, 100), partitions=slots)
    sink = sinks.discard()
    return Flow(name, source, same_step, sink, mode="observe", backend=backend, **how)


def records(running: Running) -> int:
    return int(running.run.report().data["records"])


def refused(spark: SparkSession, flow: Flow, why: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=why):
        flow.start(spark)


@pytest.fixture
def slots(spark: SparkSession) -> Iterator[int]:
    """How many the session has; none of them is claimed, before and after."""
    there = spark.sparkContext.defaultParallelism
    claims = _claims_of(spark.sparkContext.applicationId or "")
    assert claims.room(None, there) == there
    yield there
    assert claims.room(None, there) == there


def test_a_flow_starts_only_while_there_are_slots_and_again_when_another_has_ended(
    spark: SparkSession, slots: int
) -> None:
    with ExitStack() as stack:
        first, *_ = [
            stack.enter_context(Running(spark, holding(f"f{number}", 1))) for number in range(slots)
        ]
        names = " and ".join(", ".join(f"'f{n}' (1)" for n in range(slots)).rsplit(", ", 1))
        why = (
            f"holds 1 slot and the session has {slots}, of which {slots} are held by {names}: stop "
            f"one of those, use fewer partitions, or a session with more slots (local[{slots + 1}]"
        )
        refused(spark, holding("more", 1), re.escape(why))
        refused(
            spark, holding("batches", 1, "microbatch"), re.escape("Micro-batches need a free slot")
        )
        first.run.stop()
        again = stack.enter_context(Running(spark, holding("more", 1)))
        until(lambda: records(again) > 0, "records of the flow that was refused before")


def test_the_last_slot_is_left_to_micro_batches(spark: SparkSession, slots: int) -> None:
    with Running(spark, holding("batches", 1, "microbatch")) as batches:
        why = f"of which 1 is left to the micro-batches of 'batches': .*local.{slots + 1}."
        refused(spark, holding("all", slots), why)
        with Running(spark, holding("most", slots - 1)) as most:
            until(lambda: records(most) > 0, "records in real-time mode")
            seen = len(batches.measures)
            until(lambda: len(batches.measures) > seen + 3, "batches beside them")
            refused(spark, holding("one", 1), "of which .* held by 'most'")
        batches.run.stop()
    with Running(spark, holding("all", slots)) as every:
        until(lambda: records(every) > 0, "records on every slot")


def test_a_flow_that_fails_leaves_its_slots_without_being_stopped(
    spark: SparkSession, slots: int
) -> None:
    with Running(spark, holding("ends", slots)) as ends:
        spark.streams.active[0].stop()
        assert ends.run.wait(60)
        with Running(spark, holding("next", slots)) as after:
            until(lambda: records(after) > 0, "records of the next flow")
            with pytest.raises(FlowFailed):
                ends.run.stop()
            refused(spark, holding("third", 1), "held by 'next'")


def test_a_flow_takes_the_slots_of_its_next_plan_before_it_stops_for_it(
    spark: SparkSession, slots: int
) -> None:
    def pipeline(frame: DataFrame) -> DataFrame:
        return frame.transform(step("a", lambda row: row.seq, "seq bigint", scale=(1, slots)))

    def wider(running: Running, tasks: int) -> str | None:
        action = SetPartitions({"a": tasks})
        why = running.run._backend.can(action)
        if why is None:
            running.apply(action)
        return why

    flow = holding("grows", 1)
    flow.pipeline = pipeline
    with Running(spark, flow) as grows, Running(spark, holding("other", slots - 3)) as other:
        backend = grows.run._backend
        until(lambda: records(grows) > 0, "records under the first plan")
        assert wider(grows, 2) is None
        until(lambda: backend.restarts_ms, "the restart")
        refused(spark, holding("more", 1), re.escape("'grows' (3)"))
        assert "held by 'other'" in (wider(grows, 3) or "")
        assert backend.plan.partitions == {"a": 2}
        other.run.stop()
        until(lambda: backend.job.room == slots, "room")
        assert wider(grows, 3) is None
        until(lambda: len(backend.restarts_ms) == 2, "the restart")
        grows.run.stop()
