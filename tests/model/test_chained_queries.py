"""Queries in a row, and backlogs: against what follows from one query alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.chained_queries import chain_queries
from tailrace.model.predict import Predictor, predict
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.profile import Profile, StepProfile

FIRST = Profile(
    "orders",
    (StepProfile("parse", 0.05, ratio=0.5),),
    (("source", "parse"), ("parse", "sink")),
    1_000.0,
    Plan(200.0, (("parse",),)),
    cores=2,
    batch=BatchCosts(40.0, 0.01, noise=0.0),
    hand_over=HandOverCosts(0.2, 0.002),
)
SECOND = replace(
    FIRST,
    name="billing",
    steps=(StepProfile("bill", 0.2),),
    streams=(("source", "bill"), ("bill", "sink")),
    plan=Plan(0.0, (("bill",),)),
)


def test_each_query_gets_what_the_one_before_sends_and_latencies_add() -> None:
    found = chain_queries([FIRST, SECOND], rate_per_s=800.0)
    first, second = found.predictions
    assert [first.rate_per_s, second.rate_per_s] == pytest.approx([800.0, 400.0])
    assert found.mean_ms == pytest.approx(first.mean_ms + second.mean_ms)
    assert found.mean_ms == pytest.approx(
        predict(FIRST, rate=800.0).mean_ms + predict(SECOND, rate=400.0).mean_ms
    )
    assert max(first.p99_ms, second.p99_ms) < found.quantile_ms(0.99) < first.p99_ms + second.p99_ms
    assert found.as_json()["queries"][1]["rate_per_s"] == pytest.approx(400.0)


def test_the_sum_is_that_of_draws_from_both() -> None:
    found = chain_queries([FIRST, SECOND])
    rng = np.random.default_rng(5)
    levels = np.linspace(0.0005, 0.9995, 1_000)
    one, two = (np.array([p.quantile_ms(level) for level in levels]) for p in found.predictions)
    drawn = rng.choice(one, 200_000) + rng.choice(two, 200_000)
    for quantile in (0.5, 0.95, 0.99):
        assert found.quantile_ms(quantile) == pytest.approx(np.quantile(drawn, quantile), rel=0.02)


def test_plans_may_be_given_and_a_query_that_cannot_keep_up_is_told() -> None:
    live = Plan(60_000.0, (("bill",),), {}, Backend.REALTIME)
    found = chain_queries([FIRST, SECOND], [None, live])
    assert found.predictions[1].plan.backend is Backend.REALTIME
    slow = replace(SECOND, steps=(StepProfile("bill", 9.0),))
    stuck = chain_queries([FIRST, slow])
    assert not stuck.works
    assert stuck.as_json()["mean_ms"] is None


@pytest.mark.parametrize(
    ("profiles", "plans", "said"), [([], [], "no queries"), ([FIRST], [None, None], "2 plans")]
)
def test_what_cannot_be_in_a_row_is_said(
    profiles: list[Profile], plans: list[None], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        chain_queries(profiles, plans)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(100, 8_000),
    st.floats(0, 1_000),
    st.floats(0, 2e6),
    st.one_of(st.none(), st.integers(3_000, 50_000)),
)
def test_a_backlog_is_gone_when_following_every_batch_says_so(
    rate: float, interval: float, backlog: float, limit: int | None
) -> None:
    ask = Predictor(SECOND)
    plan = replace(SECOND.plan, interval_ms=interval, row_limit=limit)
    found = ask(plan, rate)
    drained_ms = ask.drain_ms(plan, rate, backlog)
    if not found.works:
        assert math.isinf(drained_ms)
        return
    cycle = ask._cycle(plan, rate)
    usual = rate / 1e3 * cycle.cycle_ms()
    waiting, now_ms = backlog, 0.0
    while waiting > 1.05 * usual + 1:
        taken = min(waiting, limit or math.inf)
        lasts_ms = max(interval, cycle.duration_ms(taken))
        waiting += rate / 1e3 * lasts_ms - taken
        now_ms += lasts_ms
    longest_ms = max(interval, cycle.duration_ms(min(backlog, limit or math.inf)))
    assert drained_ms == pytest.approx(now_ms, abs=2 * longest_ms + 1)


def test_in_real_time_mode_what_is_free_of_the_highest_rate_drains() -> None:
    plan = Plan(60_000.0, (("bill",),), {}, Backend.REALTIME)
    ask = Predictor(SECOND)
    free = ask(plan, 1_000.0).outcome.highest_per_s - 1_000.0
    assert ask.drain_ms(plan, 1_000.0, 50_000) == pytest.approx(50_000 / free * 1e3)


@pytest.mark.parametrize("backlog", [-1.0, math.inf, math.nan])
def test_a_backlog_is_a_number_from_0_up(backlog: float) -> None:
    with pytest.raises(InputError, match="backlog"):
        Predictor(SECOND).drain_ms(None, None, backlog)
