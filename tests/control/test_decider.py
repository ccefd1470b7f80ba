"""Decisions to plans: what is done, what is only advice, and in which order policies are asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE
from tailrace.control.actions import changes
from tailrace.control.decider import SAME_ADVICE, Decider
from tailrace.control.log import Log, Mode
from tailrace.graph import Step, Stream, graph
from tailrace.model.microbatch import BatchModel
from tailrace.plan import Plan
from tailrace.policy import order
from tailrace.policy.decision import Decision, MicroBatchState, Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FLOW = graph(
    (Step("a", "x int"), Step("b", "x int")),
    (Stream(SOURCE, "a"), Stream("a", "b"), Stream("b", SINK)),
)
PLAN = Plan(200.0, (("a", "b"),))
APART = (("a",), ("b",))


def decider(mode: Mode = Mode.ENFORCE) -> tuple[Decider, Log]:
    log = Log((), mode=mode)
    return Decider(FLOW, PLAN, log), log


def paced(interval_ms: float, policy: str = "batching") -> Decision:
    return Decision(policy, replace(PLAN, interval_ms=interval_ms), f"{interval_ms} ms.")


def wants(seen: list[Plan], **change: object) -> Callable[[Observation], Decision]:
    """A policy that notes the plan that it sees, and changes something of it."""

    def decide(observation: Observation) -> Decision:
        seen.append(observation.plan)
        plan: Plan = replace(observation.plan, **change)  # type: ignore[arg-type]
        return Decision(str(change), plan, "as written")

    return decide


OBSERVED = Observation(
    FLOW, PLAN, (), 1_000.0, {}, 2, 9, microbatch=MicroBatchState(BatchModel(50.0, 0.1))
)


def test_each_policy_sees_the_plan_that_the_one_before_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Plan] = []
    policies = (wants(seen, interval_ms=100.0), wants(seen, partitions={"a": 2}))
    monkeypatch.setattr(order, "MICROBATCH", policies)
    asked, log = decider()
    assert asked.ask(OBSERVED, 7)
    assert seen == [PLAN, replace(PLAN, interval_ms=100.0)]
    assert asked.plan == replace(PLAN, interval_ms=100.0, partitions={"a": 2})
    assert [(r.at_us, r.before, r.applied) for r in log.decisions] == [(7, p, True) for p in seen]


def test_a_change_of_chains_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []
    policies = (wants(seen, chains=APART), wants(seen, partitions={"a": 2}))
    monkeypatch.setattr(order, "MICROBATCH", policies)
    asked, _ = decider()
    asked.intervals_since_change = 5
    assert not asked.ask(OBSERVED, 7)
    assert (asked.plan, asked.intervals_since_change) == (replace(PLAN, chains=APART), 0)
    assert seen == [PLAN]


def test_a_new_interval_does_not_begin_the_count_of_intervals_anew() -> None:
    asked, _ = decider()
    asked.intervals_since_change = 5
    asked.act(paced(100.0), 7)
    assert asked.intervals_since_change == 5


def test_a_decision_that_changes_nothing_is_not_logged() -> None:
    asked, log = decider()
    asked.act(Decision("batching", PLAN, "It stays."), 7)
    assert log.decisions == []


@given(st.lists(st.floats(50, 400), min_size=1, max_size=12))
def test_advice_is_repeated_only_where_it_differs_and_the_plan_stays(wanted: list[float]) -> None:
    """By brute force: what is said is what is far enough from what was said last."""
    asked, log = decider(Mode.ADVISE)
    said: list[float] = []
    for interval_ms in wanted:
        asked.act(paced(interval_ms), 7)
        near = said and math.isclose(said[-1], interval_ms, rel_tol=SAME_ADVICE)
        said += [] if near or interval_ms == PLAN.interval_ms else [interval_ms]
    assert [record.after.interval_ms for record in log.decisions] == said
    assert asked.plan == PLAN


def test_what_cannot_be_done_is_undone_and_stands_as_advice_with_the_reason() -> None:
    asked, log = decider()
    asked.act(paced(100.0), 7)
    asked.take_back(*changes(asked.plan, PLAN), why="Its trigger is the user's own.")
    assert asked.plan == PLAN
    (record,) = log.decisions
    assert not record.applied
    assert record.reason == "100.0 ms. Not done: Its trigger is the user's own."
    asked.act(paced(101.0), 8)  # much the same, and it would not be done either
    assert len(log.decisions) == 1
