"""The early reaction to a rise: waits get shorter at once, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from tailrace.constraint import Constraint
from tailrace.graph import Graph
from tailrace.model.microbatch import BatchModel
from tailrace.plan import Backend, Plan
from tailrace.policy import batching, handover, rise
from tailrace.policy.decision import (
    ChainLoad,
    MicroBatchState,
    Observation,
    Reading,
    RealTimeState,
)
from tailrace.policy.rise import LIKELY, SURE, clear_rise, risen_rate

EMPTY = Graph((), ())
READING = Reading(Constraint(500.0))


def batches(rate: float, interval_ms: float) -> Observation:
    """A flow in micro-batches that may have a mean of half a second."""
    state = MicroBatchState(BatchModel(50.0, 0.1))
    plan = Plan(interval_ms, (("score",),))
    return Observation(EMPTY, plan, (READING,), rate, {}, 2, 9, microbatch=state)


def hand_overs(rate: float, lifetimes_ms: dict[str, float]) -> Observation:
    """A flow of two chains in real-time mode that may have a mean of 20 ms."""
    chains = tuple(
        ChainLoad(name, rate, fixed_ms=0.2, per_record_ms=0.002, steps_ms={name: 0.05})
        for name in ("parse", "score")
    )
    plan = Plan(60_000.0, backend=Backend.REALTIME, lifetimes_ms=lifetimes_ms)
    reading = Reading(Constraint(20.0), chains=("parse", "score"))
    state = RealTimeState(chains, gap_ms=0.0)
    return Observation(EMPTY, plan, (reading,), rate, {}, 4, 9, realtime=state)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 12_000), st.floats(0, 2_000))
def test_a_batch_interval_becomes_that_of_batching_or_stays(rate: float, now_ms: float) -> None:
    seen = batches(rate, now_ms)
    found, wanted = rise.decide(seen), batching.decide(seen)
    assert found.plan == replace(seen.plan, interval_ms=min(now_ms, wanted.plan.interval_ms))
    assert found.reason == wanted.reason


@settings(max_examples=60, deadline=None)
@given(st.floats(10, 15_000), st.floats(0, 30), st.floats(0, 30))
def test_no_lifetime_gets_longer_and_either_all_are_those_of_the_policy_or_none_changes(
    rate: float, parse_ms: float, score_ms: float
) -> None:
    now = {name: ms for name, ms in (("parse", parse_ms), ("score", score_ms)) if ms}
    seen = hand_overs(rate, now)
    found, wanted = rise.decide(seen).plan, handover.decide(seen).plan
    assert found in (seen.plan, replace(seen.plan, lifetimes_ms=wanted.lifetimes_ms))
    assert all(ms <= now.get(name, 0.0) for name, ms in found.lifetimes_ms.items())
    longer = any(ms > now.get(name, 0.0) for name, ms in wanted.lifetimes_ms.items())
    assert longer == (found != replace(seen.plan, lifetimes_ms=wanted.lifetimes_ms))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(2_000, 1.0), (9_000, 4.0)], 2_000),  # the shortest span that is clear is the newest
        ([(1_050, 1.0), (5_000, 4.0)], 1_250),  # a small rise shows only over a longer one
        ([(1_050, 1.0), (4_200, 4.0)], 1_000),
        ([(9_000, 0.0), (9_000, -1.0)], 1_000),  # a clock that was set back tells nothing
        ([], 1_000),
    ],
)
def test_a_risen_rate_is_the_first_count_that_chance_does_not_explain(
    counts: list[tuple[float, float]], expected: float
) -> None:
    assert risen_rate(1_000, 5.0, counts, 3.0) == expected


@pytest.mark.parametrize("lately_s", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("rate_per_s", [100.0, 400.0, 5_000.0])
def test_chance_is_taken_for_a_rise_as_seldom_as_its_deviations_say(
    rate_per_s: float, lately_s: float
) -> None:
    """Twice the tail of a normal distribution leaves room for the skew of Poisson counts."""
    rng, known_s, trials = np.random.default_rng(1), 5.0, 20_000
    known = rng.poisson(rate_per_s * known_s, trials) / known_s
    lately = rng.poisson(rate_per_s * lately_s, trials) / lately_s
    for deviations in (2.0, LIKELY, SURE):
        pairs = zip(known.tolist(), lately.tolist(), strict=True)
        found = sum(clear_rise(was, known_s, now, lately_s, deviations) for was, now in pairs)
        assert found <= 2 * ndtr(-deviations) * trials + 3
    risen = rng.poisson(1.5 * 5_000 * lately_s, 100) / lately_s
    assert all(clear_rise(5_000.0, known_s, now, lately_s, SURE) for now in risen.tolist())
