from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tailrace.constraint import Constraint
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.plan import Backend, Plan
from tailrace.policy.decision import Decision, Observation, Reading, RealTimeState, StepLoad
from tailrace.policy.scaling.tasks import decide

FLOW: Graph = graph(
    (Step("parse", "x int"), Step("score", "x int", scale=(1, 6))),
    (Stream("source", "parse"), Stream("parse", "score"), Stream("score", "sink")),
)
PLAN = Plan(
    60_000.0, (("parse",), ("score",)), {"score": 2}, backend=Backend.REALTIME, lifetimes_ms={}
)


def load(service_ms: float, busy: float, tasks: int) -> StepLoad:
    return StepLoad(1_000, service_ms, busy, busy, tasks)


def seen(busy: float, tasks: int = 2, *, slots: int = 8, since: int = 10) -> Observation:
    steps = {"parse": load(0.1, 0.1, 1), "score": load(2.0, busy, tasks)}
    plan = replace(PLAN, partitions={"score": tasks})
    return Observation(FLOW, plan, (), 1_000, steps, slots, since, realtime=RealTimeState())


def decided(observation: Observation, *goals: Constraint, other_tasks: int = 1) -> Decision:
    """What is decided for these bounds, beside tasks that are no step's."""
    readings = tuple(Reading(goal) for goal in goals)
    beside = RealTimeState(other_tasks=other_tasks)
    return decide(replace(observation, readings=readings, realtime=beside))


def test_a_busy_step_gets_tasks_until_its_queue_keeps_the_bound() -> None:
    tight = decided(seen(0.9), Constraint(20.0)).plan.partitions["score"]
    loose = decided(seen(0.9), Constraint(200.0)).plan.partitions["score"]
    assert tight > loose >= 2


def test_a_bottleneck_at_least_doubles() -> None:
    assert decided(seen(1.2), Constraint(50.0)).plan.partitions["score"] == 5


@pytest.mark.parametrize(("quantile", "tasks"), [(None, 3), (0.5, 3), (0.95, 4), (0.99, 5)])
def test_a_quantile_asks_for_more_than_the_mean(quantile: float | None, tasks: int) -> None:
    """Of an exponential wait the quantile q is ``-ln(1 - q)`` times the mean, and never below it.

    By hand (Lohrmann 2016, section 4.6): 1.8 tasks are kept busy, for 2 ms a record; a fifth of
    what the bound leaves beside the 2 ms and the 0.1 ms of the other step is for waiting.
    """
    mean_ms = 40.0 / (1.0 if quantile is None else max(1.0, -math.log(1 - quantile)))
    assert tasks == math.ceil(1.8 + 2.0 * 1.8 / (0.2 * (mean_ms - 2.1)))
    decision = decided(seen(0.9), Constraint(40.0, quantile=quantile))
    assert decision.plan.partitions["score"] == tasks


def test_an_idle_step_gives_tasks_back_but_not_at_once() -> None:
    goal = Constraint(100.0)
    assert decided(seen(0.05, 4), goal).plan.partitions["score"] == 1
    hasty = decided(seen(0.05, 4, since=1), goal)
    assert hasty.plan.partitions["score"] == 4


@pytest.mark.parametrize("busy", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_what_was_decided_stays_as_it_is(busy: float, tasks: int) -> None:
    """One move is enough: at the same load the next decision changes nothing."""
    goal = Constraint(40.0)
    after = decided(seen(busy, tasks), goal).plan.partitions["score"]
    again = seen(busy * tasks / after, after)
    assert decided(again, goal).plan.partitions["score"] == after


def test_what_another_step_on_the_path_takes_is_not_left_to_the_queues() -> None:
    quick = seen(0.9)
    slow = replace(quick, steps={**quick.steps, "parse": load(15.0, 0.1, 1)})
    goal = Constraint(20.0)
    alone = Constraint(20.0, path=("score", "sink"))
    enough = decided(quick, goal).plan.partitions["score"]
    assert decided(slow, goal).plan.partitions["score"] > enough
    assert decided(slow, alone) == decided(quick, alone)


def test_tasks_of_spark_hold_slots_too() -> None:
    goal = Constraint(20.0)
    assert decided(seen(0.95, 2, slots=8), goal).plan.partitions["score"] > 2
    decision = decided(seen(0.95, 2, slots=8), goal, other_tasks=6)
    assert decision.plan.partitions["score"] == 2
    assert "and there are 8." in decision.reason


def test_tasks_beyond_the_slots_are_not_asked_for_but_named() -> None:
    decision = decided(seen(0.95, 2, slots=3), Constraint(20.0))
    assert decision.plan.partitions["score"] == 2
    assert "Start the session with at least" in decision.reason
    assert decision.alternatives


def test_without_a_bound_on_scaled_steps_nothing_changes() -> None:
    decision = decided(seen(0.9), Constraint(20.0, path=("parse",)))
    assert decision.plan == seen(0.9).plan
