"""Capacity: where a plan saturates and where a bound breaks, against a fine search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.constraint import Constraint
from tailrace.model.capacity import capacity, capacity_for
from tailrace.model.microbatch import BatchModel
from tailrace.model.predict import predict
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.profile import Profile, StepProfile

FLOW = Profile(
    "one",
    (StepProfile("work", 0.4),),
    (("source", "work"), ("work", "sink")),
    500.0,
    Plan(0.0, (("work",),)),
    cores=2,
    batch=BatchCosts(40.0, 0.1, noise=0.0),
    hand_over=HandOverCosts(0.2, 0.1),
)
LIVE = replace(FLOW.plan, backend=Backend.REALTIME, interval_ms=60_000.0)


def test_micro_batches_saturate_where_the_records_alone_take_all_of_the_time() -> None:
    assert capacity(FLOW).saturation_per_s == pytest.approx(1e3 / 0.5)


def test_hand_overs_saturate_where_full_ones_follow_each_other() -> None:
    assert capacity(FLOW, LIVE).saturation_per_s == pytest.approx(2_000 / (0.2 + 0.5 * 2_000) * 1e3)


@pytest.mark.parametrize("plan", [FLOW.plan, replace(FLOW.plan, interval_ms=300.0), LIVE])
@pytest.mark.parametrize("quantile", [None, 0.99])
def test_the_highest_rate_within_a_bound_is_what_a_fine_search_finds(
    plan: Plan, quantile: float | None
) -> None:
    goal = Constraint(450.0 if plan is not LIVE else 12.0, quantile=quantile)
    found = capacity_for(FLOW, plan, goal)
    assert found.bound_per_s is not None
    rates = np.linspace(1, found.saturation_per_s, 400)
    kept = [r for r in rates if predict(FLOW, plan, r).statistic_ms(quantile) <= goal.bound_ms]
    assert found.bound_per_s == pytest.approx(max(kept), abs=rates[1] - rates[0])


@given(st.floats(0.01, 5), st.floats(0, 0.5), st.integers(1, 8), st.floats(0.05, 0.95))
def test_what_saturates_a_plan_keeps_no_bound(
    service_ms: float, call_ms: float, cores: int, frequent: float
) -> None:
    """Nor does what rounding makes a hair less than that."""
    work = StepProfile("work", service_ms, call_ms=call_ms, keyed_by=("key",), keys={"a": frequent})
    flow = replace(FLOW, steps=(work,), cores=cores)
    highest = capacity(flow).saturation_per_s
    for rate in (highest, np.nextafter(highest, 0), np.nextafter(highest, np.inf)):
        assert math.isinf(predict(flow, flow.plan, rate).statistic_ms(None))
    below_ms = predict(flow, flow.plan, 0.99 * highest).statistic_ms(None)
    assert 500 < below_ms < math.inf


def test_for_the_mean_back_to_back_it_is_the_closed_form() -> None:
    found = capacity(FLOW, mean="450 ms", every="1 h")
    model = BatchModel(40.0, 0.5)
    assert found.bound_per_s == pytest.approx(model.highest_rate_per_s(450, 3.6e6, None), rel=0.01)


def test_a_bound_below_the_floor_is_kept_at_no_rate() -> None:
    assert capacity(FLOW, mean="50 ms").bound_per_s == 0.0


def test_a_plan_that_cannot_run_takes_nothing_and_says_why() -> None:
    wide = replace(LIVE, partitions={"work": 9})
    found = capacity(FLOW, wide)
    assert found.saturation_per_s == 0.0
    assert "slot" in found.reason


def test_what_saturates_is_named() -> None:
    for plan in (FLOW.plan, LIVE):
        assert "'work'" in capacity(FLOW, plan).reason
