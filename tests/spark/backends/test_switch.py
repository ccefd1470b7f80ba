"""Flows that choose their backend: at the start by their bounds, and again as they run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.plan import Backend
from tailrace.policy.backend import decide
from tailrace.policy.decision import known
from tailrace.spark import sinks
from tailrace.spark.pipeline.step import keyed_step
from tailrace.spark.sources import replay
from tests.spark.collected import Files, plan_on
from tests.spark.flows import COUNT, Running, a_step, observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.policy.decision import Decision, Observation
    from tailrace.spark.flow import Flow

pytestmark = pytest.mark.spark
by_value(__name__)

SOURCE = replay(even_trace(COUNT, 1000), partitions=1)


def chosen(spark: SparkSession, sink: object, bound: str, **how: Any) -> tuple[Backend, str]:
    """The backend that a flow with that bound begins with, and why."""
    how = {"source": SOURCE, "backend": "auto", **how}
    flow = observed(a_step(lambda row: row.seq), sink, **how).keep(mean=bound)
    with Running(spark, flow) as running:
        began = running.run.controller.plan.backend
        report = running.run.stop()
    (decision,) = report.data["decisions"]
    assert (decision["policy"], decision["applied"]) == ("backend", True)
    assert spark.streams.active == []
    return began, decision["reason"]


def test_a_bound_of_milliseconds_begins_in_real_time_mode(spark: SparkSession) -> None:
    backend, reason = chosen(spark, sinks.discard(), "10 ms")
    assert backend is Backend.REALTIME
    assert "10 ms" in reason
    assert "eal-time" in reason


def test_a_bound_of_half_a_second_begins_with_micro_batches(spark: SparkSession) -> None:
    backend, reason = chosen(spark, sinks.discard(), "500 ms")
    assert backend is Backend.MICROBATCH
    assert "500 ms" in reason


def test_what_prevents_real_time_mode_is_said(spark: SparkSession) -> None:
    backend, reason = chosen(spark, sinks.memory(), "10 ms")
    assert backend is Backend.MICROBATCH
    assert "the sink 'memory' takes whole batches" in reason


def test_a_plan_of_ones_own_leaves_nothing_to_choose(spark: SparkSession) -> None:
    flow = observed(a_step(lambda row: row.seq), sinks.discard(), source=SOURCE, backend="auto")
    with Running(spark, flow.keep(mean="500 ms"), plan=plan_on("realtime")) as running:
        assert running.run.controller.plan.backend is Backend.REALTIME
        report = running.run.stop()
    assert report.data["decisions"] == []


class Wish:
    """Stands in for the policy: takes whatever the test wants, with the offers as they are.

    Unless something stands against it, which it remembers.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.obstacles: tuple[str, ...] = ()

    def __call__(self, observation: Observation) -> Decision:
        self.obstacles = known(observation.backends).obstacles
        decision = decide(observation)
        if self.obstacles:
            return decision
        plan = replace(observation.plan, backend=Backend(self.backend))
        return replace(decision, plan=plan, reason=f"The test wants {self.backend}.")


def numbered(_key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield row.seq, row.key, state["n"]


def counting(records: DataFrame) -> DataFrame:
    count = keyed_step("count", numbered, "seq long, key string, n long", key="key")
    return records.transform(count)


def switched(sink: object, mode: str) -> Flow:
    load = replay(even_trace(5000, 500, keys=5), partitions=1)
    flow = observed(counting, sink, source=load, backend="auto", mode=mode, interval="300 ms")
    return flow.keep(mean="400 ms", every="300 ms")


@pytest.mark.parametrize("first", ["microbatch", "realtime"])
def test_a_run_changes_its_backend_and_goes_on_with_its_offsets_and_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    wish = Wish(first)
    monkeypatch.setattr("tailrace.policy.backend.decide", wish)
    files = Files(tmp_path / "out")
    order = [first, "realtime" if first == "microbatch" else "microbatch"]
    with Running(spark, switched(files.sink, "enforce")) as running:
        run = running.run

        def on(backend: str) -> Callable[[], bool]:
            return lambda: run.controller.plan.backend == backend

        for backend in order:
            wish.backend = backend
            until(on(backend), f"the run to be on {backend}")
            before = len(files.rows())
            until(files.hold(before + 1), f"results on {backend}")
        report = run.stop()
    seqs = Counter(row[0] for row in files.rows())
    assert seqs == Counter(range(len(seqs)))
    places = Counter((row[1], row[2]) for row in files.rows())
    assert places == Counter((f"k{seq % 5}", seq // 5 + 1) for seq in range(len(seqs)))
    assert report.data["records"] == len(seqs)
    said = [d for d in report.data["decisions"] if d["policy"] == "backend"]
    assert [decision["reason"] for decision in said] == [f"The test wants {b}." for b in order]
    assert all(decision["applied"] for decision in said)
    assert len(report.data["restarts_ms"]) >= 1
    assert spark.streams.active == []


def test_a_run_goes_on_where_the_other_backend_is_refused_and_asks_for_it_no_more(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish, refusals = Wish("microbatch"), list[str]()

    def refuse(_: SparkSession) -> None:
        refusals.append("The session answers too slowly.")
        raise EnvironmentUnfit(refusals[-1])

    monkeypatch.setattr("tailrace.policy.backend.decide", wish)
    monkeypatch.setattr("tailrace.spark.run.require_milliseconds", refuse)
    with Running(spark, switched(sinks.discard(), "enforce")) as running:
        history = running.run.controller.log.history
        wish.backend = "realtime"
        until(lambda: wish.obstacles == tuple(refusals) != (), "the next choice knows of it")
        seen = len(history)
        until(lambda: len(history) > seen + 3, "the run goes on")
        assert running.run.controller.plan.backend is Backend.MICROBATCH
        report = running.run.stop()
    assert len(refusals) == 1
    assert report.data["restarts_ms"] == []


def test_an_adviser_says_which_backend_it_would_take_and_stays(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = Wish("microbatch")
    monkeypatch.setattr("tailrace.policy.backend.decide", wish)
    with Running(spark, switched(sinks.discard(), "advise")) as running:
        decisions = running.run.controller.log.decisions
        wish.backend = "realtime"
        until(lambda: [d for d in decisions if not d.applied], "the advice")
        assert running.run.controller.plan.backend is Backend.MICROBATCH
        report = running.run.stop()
    assert report.data["restarts_ms"] == []
