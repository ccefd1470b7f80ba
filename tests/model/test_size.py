"""Sizing: the cheapest plan against brute force, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tailrace.constraint import Constraint
from tailrace.errors import InputError
from tailrace.model.loads import Router
from tailrace.model.outcome_microbatch import Cycle
from tailrace.model.predict import Predictor, predict
from tailrace.model.size import MARGIN, MOST_CORES, by_cores, every_plan, size, size_for
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.profile import Profile, StepProfile

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOW = Profile(
    "line",
    (StepProfile("parse", 0.02), StepProfile("score", 0.5, keyed_by=("k",), keys={"a": 0.1})),
    (("source", "parse"), ("parse", "score"), ("score", "sink")),
    1_000.0,
    Plan(0.0, (("parse",), ("score",)), {"score": 2}),
    cores=4,
    batch=BatchCosts(40.0, 0.005),
    hand_over=HandOverCosts(0.2, 0.002),
)


@pytest.mark.parametrize(
    ("goal", "rate"),
    [
        (Constraint(500.0), 1_000.0),
        (Constraint(500.0), 6_000.0),
        (Constraint(1_000.0, quantile=0.99), 3_000.0),
        (Constraint(20.0), 3_000.0),
    ],
)
def test_no_plan_that_keeps_the_bound_is_cheaper(goal: Constraint, rate: float) -> None:
    found = size_for(FLOW, goal, rate, 12)
    assert found.best is not None
    best = found.best.prediction
    assert best.statistic_ms(goal.quantile) <= goal.bound_ms * (1 - MARGIN)
    for plan in every_plan(FLOW, rate, 12):
        tried = predict(FLOW, plan, rate)
        if tried.works and tried.statistic_ms(goal.quantile) <= goal.bound_ms * (1 - MARGIN):
            assert best.cores <= tried.cores


def test_the_bound_chooses_the_backend_where_only_one_can_keep_it() -> None:
    tight = size(FLOW, mean="15 ms", most_cores=8).best
    assert tight is not None
    assert tight.plan.backend is Backend.REALTIME


def test_waits_are_as_long_as_the_bound_affords() -> None:
    best = size(FLOW, "500 /s", mean="800 ms").best
    assert best is not None
    plan = best.plan
    longer = (
        replace(plan, interval_ms=1.1 * plan.interval_ms)
        if plan.backend is Backend.MICROBATCH
        else replace(plan, lifetimes_ms={k: 1.1 * ms for k, ms in plan.lifetimes_ms.items()})
    )
    assert predict(FLOW, longer, 500).mean_ms > 800 * (1 - MARGIN)


def test_the_row_limit_keeps_every_batch_within_the_bound_and_lets_a_backlog_drain() -> None:
    best = size(FLOW, "500 /s", mean="800 ms").best
    assert best is not None
    plan, ask = best.plan, Predictor(FLOW)
    assert plan.row_limit == ask.row_limit(plan, 500.0, 800.0)
    router = Router(FLOW)
    cycle = Cycle(router.loads(plan, 500.0), BatchCosts(40.0, 0.005), plan.interval_ms)
    assert plan.row_limit is not None
    assert cycle.duration_ms(plan.row_limit) <= 800 < cycle.duration_ms(plan.row_limit + 1)
    assert ask(plan, 500.0).outcome.highest_per_s > 1.1 * 500


def test_no_row_limit_is_set_that_would_hold_records_back_for_good() -> None:
    found = size(FLOW, mean="15 ms", most_cores=8)
    assert found.best is not None
    assert found.best.plan.row_limit is None  # real-time mode has none
    assert Predictor(FLOW).row_limit(FLOW.plan, 1_000.0, 1.0) == 0  # nothing ends so soon


def test_runners_up_cost_no_less() -> None:
    found = size(FLOW, mean="500 ms")
    assert found.best is not None
    assert all(other.cost >= found.best.cost for other in found.others)
    assert found.others


def test_a_bound_that_no_plan_keeps_says_how_near_it_comes() -> None:
    found = size(FLOW, p99="1 ms")
    assert found.best is None
    assert "No plan on up to 16 cores" in found.reason
    assert "loosen the bound" in found.reason


def test_a_rate_that_no_plan_takes_names_the_obstacle() -> None:
    found = size(FLOW, "1 M/s", mean="1 s", most_cores=2)
    assert found.best is None
    assert "No plan on up to 2 cores takes 1 M/s" in found.reason


def test_another_planner_and_another_price_decide() -> None:
    def two(profile: Profile, rate_per_s: float, most_cores: int) -> Iterator[Plan]:  # noqa: ARG001
        for cores in (2, 8):
            yield Plan(0.0, profile.plan.chains, {"score": 8}, cores=cores)

    cheap = size(FLOW, mean="2 s", planners=[two]).best
    dear = size(FLOW, mean="2 s", planners=[two], price=lambda p: -by_cores(p)).best
    assert cheap is not None
    assert dear is not None
    assert (cheap.plan.cores, dear.plan.cores) == (2, 8)
    assert cheap.planner == "two"


@pytest.mark.parametrize("wrong", [{}, {"mean": "1 s", "p99": "2 s"}])
def test_exactly_one_bound_is_asked_about(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError):
        size(FLOW, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("cores", [0, -1, MOST_CORES + 1, 10**30])
def test_there_are_from_one_to_a_thousand_cores_to_size_for(cores: int) -> None:
    with pytest.raises(InputError, match="at least 1, and 1,000 at most"):
        size(FLOW, mean="1 s", most_cores=cores)


@pytest.mark.parametrize(("steps", "most"), [(1, 16), (2, 16), (3, 16), (2, 1_000), (20, 1_000)])
def test_the_plans_to_try_do_not_grow_with_a_power_of_the_steps(steps: int, most: int) -> None:
    keyed = tuple(StepProfile(f"s{n}", 0.5, keyed_by=("k",)) for n in range(steps))
    names = ["source", *(step.name for step in keyed), "sink"]
    flow = Profile("line", keyed, tuple(pairwise(names)), 1_000.0, Plan(), cores=4)
    plans = list(every_plan(flow, 1_000.0, most))
    assert len(plans) < 3_000
    same = [tuple(plan.partitions.values()) for plan in plans]
    assert {(1,) * steps, (8,) * steps} <= set(same)
    assert max(max(numbers) for numbers in same) > 0.75 * most / 1.25
