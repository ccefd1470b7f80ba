"""The choice of a backend: golden cases, the cheapest by brute force, and its hysteresis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.constraint import Constraint, constraint
from tailrace.graph import Graph
from tailrace.model.microbatch import BatchModel
from tailrace.model.realtime import HandOverModel
from tailrace.plan import Backend, Plan
from tailrace.policy.backend import (
    CALM_INTERVALS,
    MICROBATCH,
    REALTIME,
    MicroBatchCosts,
    Offer,
    RealTimeCosts,
    decide,
    offers,
)
from tailrace.policy.decision import (
    NO_STREAKS,
    BackendState,
    Decision,
    Observation,
    Reading,
    Streaks,
)

MICRO = MicroBatchCosts(BatchModel(40.0, 0.005), 42.0, 0.0055)
REAL = RealTimeCosts((HandOverModel(0.2, 0.002),), gap_ms=50.0)


def observed(*goals: Constraint, rate: float = 2_000, slots: int = 2, **costs: Any) -> Observation:
    """A flow that is about to start, with these costs and obstacles."""
    readings, backends = tuple(Reading(goal) for goal in goals), BackendState(running=False)
    seen = Observation(Graph((), ()), Plan(), readings, rate, {}, slots, 9, backends=backends)
    return but(seen, **costs)


def known(*goals: Constraint, rate: float = 2_000) -> Observation:
    return observed(*goals, rate=rate, microbatch=MICRO, realtime=REAL)


def but(observation: Observation, **backends: Any) -> Observation:
    """The same, but for something of its backends."""
    assert observation.backends is not None
    return replace(observation, backends=replace(observation.backends, **backends))


def on(observation: Observation, present: Backend, streaks: Streaks = NO_STREAKS) -> Observation:
    """The same, while a backend runs."""
    plan = replace(observation.plan, backend=present)
    return but(replace(observation, plan=plan), running=True, streaks=streaks)


@dataclass
class Choice:
    """A decision, and the offers that it was made from."""

    decision: Decision
    offers: tuple[Offer, Offer]

    @property
    def backend(self) -> Backend:
        return self.decision.plan.backend

    @property
    def reason(self) -> str:
        return self.decision.reason

    @property
    def taken(self) -> Offer:
        return next(offer for offer in self.offers if offer.backend is self.backend)


def choose(observation: Observation) -> Choice:
    decision = decide(observation)
    made = Choice(decision, offers(observation))
    assert decision.predicted_ms == made.taken.predicted_ms
    return made


# --- golden cases ---------------------------------------------------------------------------


def test_a_bound_of_ten_milliseconds_needs_real_time_mode() -> None:
    choice = choose(known(constraint("mean", "10 ms")))
    assert choice.backend == REALTIME
    assert choice.reason.endswith("; micro-batch would have a mean of 60.6 ms against 10 ms.")
    assert choice.taken.predicted_ms <= 9.2
    (other,) = choice.decision.alternatives
    assert other.what == "micro-batch"
    assert other.predicted_ms == pytest.approx(1.5 * 40 / (1 - 0.01), rel=1e-2)


def test_at_a_bound_of_half_a_second_micro_batches_keep_it_and_say_what_they_save() -> None:
    choice = choose(known(constraint("mean", "500 ms")))
    assert choice.backend == MICROBATCH
    assert choice.reason == (
        "At 2 k/s micro-batches every 800 ms keep the mean at 460 ms of 500 ms for 229 core "
        "seconds an hour (229 used); real-time mode would keep the mean at 459 ms of 500 ms for "
        "3,600 core seconds an hour (15 used), 94% saved."
    )


def test_the_prediction_of_micro_batch_uses_the_interval_that_its_cost_is_for() -> None:
    """229 core seconds: 4,500 batches of 42 ms, and 7.2 M records of 5.5 us."""
    taken = choose(known(constraint("mean", "500 ms"))).taken
    batches = 3.6e6 / taken.wait_ms
    assert taken.cpu_s == pytest.approx((batches * 42 + 7.2e6 * 0.0055) / 1_000)
    assert taken.held_s == pytest.approx(3_600 * MICRO.model.duration_ms(1_600) / 800, rel=0.01)


def test_a_backend_that_was_not_tried_is_judged_by_costs_measured_elsewhere() -> None:
    choice = choose(observed(constraint("mean", "10 ms")))
    assert choice.backend == REALTIME
    assert "by costs measured elsewhere" in choice.reason
    assert not any(offer.measured for offer in choice.offers)


def test_the_work_of_steps_seen_in_one_backend_counts_in_the_other() -> None:
    heavy = replace(MICRO, model=BatchModel(40.0, 0.3), cpu_per_record_ms=0.6, slots=2)
    goal = constraint("mean", "200 ms")
    _, real = offers(observed(goal, slots=4, microbatch=heavy))
    assert real.slots == 2
    assert real.cpu_s == pytest.approx(7.2e6 * 0.6 / 1_000, rel=0.1)
    slow = replace(REAL, hand_overs=(HandOverModel(0.2, 0.3),))
    micro, _ = offers(observed(goal, slots=4, realtime=slow))
    assert micro.cpu_s > 7.2e6 * 0.3 / 1_000


def test_where_real_time_mode_cannot_run_the_obstacle_is_said() -> None:
    goal, obstacle = constraint("mean", "10 ms"), "The sink 'parquet' has no real-time writer."
    choice = choose(but(known(goal), obstacles=(obstacle,)))
    assert choice.backend == MICROBATCH
    assert choice.reason.endswith(
        "real-time mode cannot run: The sink 'parquet' has no real-time writer."
    )
    assert choice.decision.alternatives[0].predicted_ms is None


def test_where_slots_are_lacking_real_time_mode_cannot_run() -> None:
    wide = but(known(constraint("mean", "10 ms")), realtime=replace(REAL, slots=3))
    choice = choose(wide)
    assert choice.backend == MICROBATCH
    assert "It needs 3 slots and there are 2" in choice.reason


def test_a_quantile_that_breaks_at_gaps_is_kept_by_real_time_in_the_other_windows() -> None:
    choice = choose(known(constraint("p99.9", "30 ms")))
    assert choice.backend == REALTIME
    assert choice.taken.kept_share == pytest.approx(1 - 5_050 / 60_050)
    assert "in 92% of windows" in choice.reason


def test_micro_batch_wins_where_gaps_break_what_it_keeps() -> None:
    rough = but(known(constraint("p99.9", "400 ms")), realtime=replace(REAL, gap_ms=900.0))
    assert choose(rough).backend == MICROBATCH


def test_without_a_bound_from_the_source_what_runs_goes_on() -> None:
    inner = constraint("mean", "5 ms", path=("parse",))
    assert choose(known(inner)).backend == MICROBATCH
    assert choose(on(known(inner), REALTIME)).backend == REALTIME


def test_a_rate_that_neither_can_take_is_said_of_both() -> None:
    choice = choose(known(constraint("mean", "500 ms"), rate=1e6))
    assert choice.reason.count("would fall behind without end") == 2


# --- the cheapest that keeps the bounds -----------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.floats(5, 2_000),
    st.one_of(st.none(), st.sampled_from([0.5, 0.9])),
    st.floats(10, 50_000),
    st.floats(5, 150),
)
@example(5.0, 0.5, 248.0, 5.0)  # a median where half of the records wait for all of a lifetime
def test_the_choice_keeps_the_bound_if_any_can_and_is_the_cheaper_of_two_that_do(
    bound_ms: float, quantile: float | None, rate: float, fixed_ms: float
) -> None:
    goal = Constraint(bound_ms, 5_000.0, quantile)
    micro = MicroBatchCosts(BatchModel(fixed_ms, 0.005), fixed_ms, 0.0055)
    choice = choose(observed(goal, rate=rate, microbatch=micro, realtime=REAL))
    floor_ms = micro.model.floor_ms(rate, 5_000.0, quantile)
    held, real = choice.offers
    assert held.kept == (floor_ms <= 0.92 * bound_ms)
    assert choice.taken.kept or not any(offer.kept for offer in choice.offers)
    if held.kept and real.kept:
        assert choice.taken.core_s == min(held.core_s, real.core_s)
    for offer in choice.offers:
        assert not offer.kept or offer.predicted_ms <= 0.93 * bound_ms


# --- hysteresis -------------------------------------------------------------------------------


def run(observations: list[Observation], present: Backend) -> list[Backend]:
    """The backends that a flow runs on, interval by interval."""
    streaks, seen = NO_STREAKS, []
    for observation in observations:
        decision = decide(on(observation, present, streaks))
        present, streaks = decision.plan.backend, decision.streaks
        seen.append(present)
    return seen


TIGHT, LOOSE, NEAR = (known(constraint("mean", f"{ms} ms")) for ms in (30, 500, 62))


def test_real_time_takes_over_when_micro_batch_missed_a_bound_twice_in_a_row() -> None:
    assert run([TIGHT, LOOSE, TIGHT, TIGHT], MICROBATCH) == [*[MICROBATCH] * 3, REALTIME]
    assert "interval 1 of 2" in choose(on(TIGHT, MICROBATCH)).reason


def test_micro_batch_takes_over_again_after_several_calm_intervals() -> None:
    assert run([LOOSE] * CALM_INTERVALS, REALTIME) == [
        *[REALTIME] * (CALM_INTERVALS - 1),
        MICROBATCH,
    ]
    broken = [*[LOOSE] * (CALM_INTERVALS - 1), TIGHT, LOOSE]
    assert set(run(broken, REALTIME)) == {REALTIME}


def test_between_the_two_thresholds_whatever_runs_stays() -> None:
    assert set(run([NEAR] * 8, MICROBATCH)) == {MICROBATCH}
    assert set(run([NEAR] * 8, REALTIME)) == {REALTIME}


def test_a_small_saving_is_not_worth_a_switch() -> None:
    near = known(constraint("mean", "95 ms"))
    eased, real = choose(near).offers
    assert 0.75 * real.core_s < choose(known(constraint("mean", "72 ms"))).offers[0].core_s
    assert eased.kept
    assert set(run([near] * 6, REALTIME)) == {REALTIME}


def test_real_time_mode_that_cannot_run_any_more_is_left_at_once() -> None:
    blocked = but(TIGHT, obstacles=("The source was changed to files.",))
    assert run([blocked], REALTIME) == [MICROBATCH]


def test_it_does_not_leave_for_a_backend_that_does_no_better() -> None:
    hopeless = replace(known(constraint("mean", "0.05 ms")), slots=0)
    assert set(run([hopeless] * 4, MICROBATCH)) == {MICROBATCH}
