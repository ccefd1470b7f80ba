"""The lifetimes of hand-overs: on simulated hand-overs, against brute force, and in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import Constraint, constraint
from tailrace.errors import ConstraintError
from tailrace.graph import Graph
from tailrace.model.realtime import Boundary, FlowModel, HandOver, HandOverModel
from tailrace.plan import Backend, Plan
from tailrace.policy.decision import (
    ChainLoad,
    Decision,
    Observation,
    Reading,
    RealTimeState,
    known,
)
from tailrace.policy.handover import decide, deviation, risen
from tailrace.policy.realtime_feasibility import assess
from tailrace.policy.scaling.rebalance import SequenceBound
from tests.model.lifetimes import longest_lifetime_ms
from tests.policy.published import Channel, adjust_lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FIXED_MS, PER_RECORD_MS = 0.2, 0.002


def chain(name: str = "score", rate: float = 2_000) -> ChainLoad:
    return ChainLoad(
        name,
        rate,
        fixed_ms=FIXED_MS,
        per_record_ms=PER_RECORD_MS,
        steps_ms={name: 0.05},
    )


def on(
    *chains: ChainLoad,
    goal: Constraint,
    value_ms: float | None = None,
    lifetimes_ms: tuple[float, ...] = (),
) -> Observation:
    """A flow of these chains in a row, without gaps, under one constraint."""
    names = tuple(chain.chain for chain in chains)
    reading = Reading(goal, value_ms, chains=names)
    return observed((reading,), chains, dict(zip(names, lifetimes_ms, strict=False)))


def observed(
    readings: tuple[Reading, ...],
    chains: tuple[ChainLoad, ...],
    lifetimes_ms: dict[str, float] | None = None,
) -> Observation:
    """A flow under these constraints, of batches of 5 s without gaps."""
    plan = Plan(5_000.0, backend=Backend.REALTIME, lifetimes_ms=lifetimes_ms or {})
    state = RealTimeState(chains, gap_ms=0.0)
    return Observation(Graph((), ()), plan, readings, 2_000, {}, 2, 9, realtime=state)


def but(observation: Observation, **hand_overs: Any) -> Observation:
    """The same, but for something of its hand-overs."""
    return replace(observation, realtime=replace(known(observation.realtime), **hand_overs))


def at_rate(observation: Observation, rate: float) -> Observation:
    """The same, with another rate of its only chain."""
    (only,) = known(observation.realtime).chains
    return but(observation, chains=(replace(only, rate_per_s=rate),))


def lifetimes(observation: Observation, plan: Plan | None = None) -> dict[str, float]:
    """How long the open batch of each chain waits under a plan, the one that is decided."""
    waits = (plan or decide(observation).plan).lifetimes_ms
    chains = known(observation.realtime).chains
    return {chain.chain: waits.get(chain.chain, 0.0) for chain in chains}


def after(observation: Observation, decision: Decision) -> Observation:
    """The observation once the decision was applied."""
    return replace(observation, plan=decision.plan)


def simulated(rate: float, lifetime_ms: float, seconds: float, seed: int) -> tuple[Floats, Floats]:
    """Latencies, and waits in the open batch, of a chain with the costs of :func:`chain`."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1_000 / rate, int(rate * seconds)))
    latencies, waits = np.empty(len(arrivals)), np.empty(len(arrivals))
    first, free_ms = 0, 0.0
    while first < len(arrivals):
        cut_ms = max(free_ms, arrivals[first] + lifetime_ms)
        end = min(int(np.searchsorted(arrivals, cut_ms, side="right")), first + 2_000)
        cut_ms = max(free_ms, arrivals[end - 1]) if end - first == 2_000 else cut_ms
        free_ms = cut_ms + FIXED_MS + (PER_RECORD_MS + 0.05) * (end - first)
        latencies[first:end] = free_ms - arrivals[first:end]
        waits[first:end] = cut_ms - arrivals[first:end]
        first = end
    return latencies, waits


# --- the lifetimes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "goal", [constraint("mean", "10 ms"), constraint("p99", "15 ms"), constraint("p50", "8 ms")]
)
@pytest.mark.parametrize("rate", [300, 2_000, 12_000])
def test_the_lifetime_is_the_longest_that_brute_force_over_a_simulation_finds(
    goal: Constraint, rate: float
) -> None:
    found = lifetimes(on(chain(rate=rate), goal=goal))["score"]
    kept = [
        lifetime_ms
        for lifetime_ms in np.arange(0, 24, 0.5)
        if statistic(simulated(rate, float(lifetime_ms), 4, 5)[0], goal) <= 0.85 * goal.bound_ms
    ]
    useful_ms = HandOverModel(FIXED_MS, PER_RECORD_MS + 0.05).useful_lifetime_ms(rate)
    assert found == pytest.approx(min(max(kept), useful_ms), rel=0.07, abs=0.6)


def statistic(latencies: Floats, goal: Constraint) -> float:
    if goal.quantile is None:
        return float(latencies.mean())
    return float(np.quantile(latencies, goal.quantile))


@pytest.mark.parametrize("goal", [constraint("mean", "10 ms"), constraint("p99", "20 ms")])
def test_on_a_simulated_hand_over_it_settles_in_two_intervals_and_keeps_the_bound(
    goal: Constraint,
) -> None:
    observation, seen, values = on(chain(), goal=goal), [], []
    for interval in range(8):
        lifetime_ms = lifetimes(observation, observation.plan)["score"]
        value_ms = statistic(simulated(2_000, lifetime_ms, 5, interval)[0], goal)
        reading = replace(observation.readings[0], value_ms=value_ms)
        observation = replace(observation, readings=(reading,))
        observation = after(observation, decide(observation))
        seen.append(lifetimes(observation, observation.plan)["score"])
        values.append(value_ms)
    assert max(values) <= goal.bound_ms
    assert len(set(seen[1:])) == 1
    assert values[-1] >= 0.8 * goal.bound_ms


def test_a_lifetime_falls_at_once_when_the_rate_makes_it_too_long() -> None:
    goal = constraint("mean", "10 ms")
    calm = on(chain(rate=300), goal=goal)
    calm = after(calm, decide(calm))
    busy = at_rate(calm, 17_000)
    decision = decide(busy)
    assert decision.predicted_ms is not None
    assert lifetimes(busy)["score"] < lifetimes(calm, calm.plan)["score"]
    assert decision.predicted_ms <= 0.93 * 10


def test_what_was_measured_beyond_the_prediction_is_kept_free() -> None:
    goal = constraint("mean", "10 ms")
    trusting = decide(on(chain(), goal=goal))
    settled = after(on(chain(), goal=goal), trusting)
    slower = replace(settled, readings=(replace(settled.readings[0], value_ms=9.2 + 3),))
    wary = decide(slower)
    spared_ms = trusting.plan.lifetimes_ms["score"] - wary.plan.lifetimes_ms["score"]
    assert spared_ms == pytest.approx(2 * 3, rel=0.4)
    burst = replace(settled, readings=(replace(settled.readings[0], value_ms=5_000.0),))
    assert lifetimes(burst)["score"] > 0


@pytest.mark.parametrize("surprise_ms", [0.0, 1.5])
def test_under_a_higher_rate_the_decision_is_the_one_of_an_interval_at_that_rate(
    surprise_ms: float,
) -> None:
    goal = Constraint(10.0)

    def flow_ms(rate: float) -> float:
        hand_over = HandOver(HandOverModel(FIXED_MS, PER_RECORD_MS + 0.05), rate, 12.0)
        return FlowModel((hand_over,)).statistic_ms(None, goal.every_ms)

    def measured(rate: float) -> Observation:
        value_ms = flow_ms(rate) + surprise_ms
        return on(chain(rate=rate), goal=goal, value_ms=value_ms, lifetimes_ms=(12.0,))

    hurried = risen(measured(1_000), {"score": 8_000})
    assert lifetimes(hurried) == pytest.approx(lifetimes(measured(8_000)))
    assert lifetimes(hurried)["score"] < 12.0
    hasty = replace(hurried.plan, lifetimes_ms={"score": 3.0})
    shorter = risen(measured(1_000), {}, hasty)
    assert lifetimes(shorter, shorter.plan)["score"] == 3.0


def test_while_a_rate_rises_the_whole_margin_is_kept_and_not_half_of_it() -> None:
    goal = constraint("mean", "10 ms")
    calm = on(chain(rate=2_000), goal=goal)
    calm = after(calm, decide(calm))
    eaten = at_rate(calm, 3_000)
    assert lifetimes(eaten) == lifetimes(calm, calm.plan)
    rising = decide(risen(calm, {"score": 3_000}))
    assert rising.plan.lifetimes_ms["score"] < calm.plan.lifetimes_ms["score"]
    assert rising.predicted_ms == pytest.approx(8.5, rel=0.01)


def test_it_rises_only_for_a_tenth_of_the_cores_and_never_while_a_bound_is_missed() -> None:
    goal = constraint("mean", "20 ms")
    most_ms = lifetimes(on(chain(), goal=goal))["score"]
    nearly = decide(on(chain(), goal=goal, lifetimes_ms=(0.9 * most_ms,)))
    assert nearly.plan.lifetimes_ms["score"] == 0.9 * most_ms
    assert "still keep" in nearly.reason
    missed = decide(on(chain(), goal=goal, value_ms=20.5, lifetimes_ms=(1.0,)))
    assert missed.plan.lifetimes_ms["score"] == 1.0
    assert missed.reason.endswith("stay, as the mean was 20.5 ms, above 20 ms.")
    assert lifetimes(on(chain(), goal=goal, lifetimes_ms=(1.0,)))["score"] == most_ms


def test_it_stops_where_a_longer_lifetime_saves_nothing_and_says_so() -> None:
    decision = decide(on(chain(), goal=constraint("mean", "500 ms")))
    model = HandOverModel(FIXED_MS, PER_RECORD_MS + 0.05)
    assert decision.plan.lifetimes_ms["score"] == pytest.approx(
        model.useful_lifetime_ms(2_000), abs=0.01
    )
    assert "longer would save less than 5 %" in decision.reason
    assert decision.predicted_ms is not None
    assert decision.predicted_ms < 100


def test_noise_widens_the_margin_up_to_a_quarter() -> None:
    goal = constraint("mean", "10 ms")
    quiet = on(chain(), goal=goal)
    predicted = [decide(replace(quiet, noise=noise)).predicted_ms for noise in (0.0, 0.1, 1.0)]
    assert predicted == pytest.approx([8.5, 8.0, 7.5], rel=0.01)


def test_chains_in_a_row_share_the_bound_and_the_lowest_of_two_constraints_wins() -> None:
    goal = constraint("mean", "20 ms")
    both = on(chain("parse"), chain("score"), goal=goal)
    shared = decide(both)
    assert shared.plan.lifetimes_ms["parse"] == shared.plan.lifetimes_ms["score"]
    assert shared.predicted_ms == pytest.approx(0.85 * 20, rel=0.01)
    inner = Reading(constraint("mean", "4 ms", path=("score",)), chains=("score",))
    tighter = decide(replace(both, readings=(*both.readings, inner)))
    assert tighter.plan.lifetimes_ms["parse"] == shared.plan.lifetimes_ms["parse"]
    assert tighter.plan.lifetimes_ms["score"] < 0.5 * shared.plan.lifetimes_ms["score"]
    assert tighter.constraint == inner.constraint
    assert [a.what for a in tighter.alternatives] == [
        "hand over at once",
        "stay at lifetimes of 0 ms",
        "mean <= 20 ms in every 5 s",
    ]


@settings(max_examples=20, deadline=None)
@given(
    st.floats(1, 300),
    st.one_of(st.none(), st.sampled_from([0.5, 0.95, 0.99])),
    st.floats(50, 15_000),
    st.floats(0, 100),
    st.floats(0, 60),
)
def test_a_decision_keeps_the_bound_or_says_that_it_cannot_be_kept(
    bound_ms: float, quantile: float | None, rate: float, lifetime_ms: float, gap_ms: float
) -> None:
    goal = Constraint(bound_ms, 5_000.0, quantile)
    seen = on(chain(rate=rate), goal=goal, lifetimes_ms=(lifetime_ms,))
    observation = but(seen, gap_ms=gap_ms)
    decision = decide(observation)
    hand_over = HandOver(HandOverModel(FIXED_MS, PER_RECORD_MS + 0.05), rate)
    chosen = FlowModel((replace(hand_over, lifetime_ms=lifetimes(observation)["score"]),))
    for boundary in (None, Boundary(gap_ms, decision.plan.interval_ms)):
        possible = FlowModel((hand_over,)).statistic_ms(quantile, 5_000.0, boundary) <= bound_ms
        assert possible == (chosen.statistic_ms(quantile, 5_000.0, boundary) <= bound_ms)
        assert possible or assess(observation)
    again = after(observation, decision)
    assert lifetimes(again) == lifetimes(observation)


# --- the published rule ---------------------------------------------------------------------


def test_the_jump_lands_where_the_published_rule_arrives_after_many_intervals() -> None:
    """With dense traffic: the same budget for waiting gives the same lifetime."""
    target_ms, lifetime_ms = 8.0, 0.0
    for interval in range(10):
        _, waits = simulated(12_000, lifetime_ms, 2, interval)
        channel = Channel("in", "a", "b", lifetime_ms, float(waits.mean()))
        (channel,) = adjust_lifetimes([SequenceBound(("in",), target_ms / 0.8)], [channel], [])
        lifetime_ms = channel.lifetime_ms
    model = HandOverModel(FIXED_MS, PER_RECORD_MS + 0.05)
    reached_ms = model.wait_ms(12_000, lifetime_ms)
    service_ms = model.latency(12_000, lifetime_ms).mean_ms - reached_ms
    jumped = longest_lifetime_ms(model, reached_ms + service_ms, 12_000)
    assert jumped == pytest.approx(lifetime_ms, rel=0.02)
    assert reached_ms == pytest.approx(target_ms, rel=0.03)


# --- batch boundaries, shuffles, and what cannot be kept ------------------------------------


def test_the_batch_is_as_long_as_recovery_allows_and_never_below_five_seconds() -> None:
    observation = on(chain(), goal=constraint("mean", "10 ms"))
    lengths = [
        decide(but(observation, recovery_ms=ms)).plan.interval_ms for ms in (1_000, 20_000, 60_000)
    ]
    assert lengths == [5_000, 20_000, 60_000]


def test_lifetimes_leave_room_for_a_gap_that_the_bound_can_take() -> None:
    goal = constraint("p99", "30 ms", every="5 s")
    smooth = on(chain(), goal=goal)
    rough = but(smooth, gap_ms=60.0)
    assert not assess(rough)
    assert 0 < lifetimes(rough)["score"] < lifetimes(smooth)["score"]


def test_a_quantile_that_no_window_with_a_gap_can_keep_is_named_with_its_share() -> None:
    goal = constraint("p99.9", "30 ms", every="5 s")
    observation = but(on(chain(), goal=goal), gap_ms=50.0)
    decision = decide(observation)
    (impossible,) = assess(observation)
    assert impossible.element == "gap"
    in_the_gap = 2_000 * 50 / 1_000
    drain_ms = FIXED_MS + in_the_gap * (PER_RECORD_MS + 0.05)
    assert impossible.best_ms == pytest.approx(0.9 * 50 + drain_ms, abs=0.5)
    assert "8% of windows of 5 s" in impossible.reason
    assert "0.01 of its records come in it and only 0.001 may be late" in impossible.reason
    assert "longer recovery than 1 min" in impossible.remedy
    assert decision.plan.interval_ms == 60_000
    assert decision.plan.lifetimes_ms["score"] > 15
    assert "not in windows with a batch boundary" in decision.reason


def test_a_path_inside_the_flow_does_not_meet_the_gap() -> None:
    goal = constraint("p99.9", "30 ms", path=("score", "sink"))
    assert not assess(but(on(chain(), goal=goal), gap_ms=500.0))


TRIVIAL = chain(rate=20)
DIRECT = Reading(constraint("mean", "4 ms"), chains=("score",))


@pytest.mark.parametrize(
    ("path", "load", "element", "remedy"),
    [
        (replace(DIRECT, sink_ms=6.0), TRIVIAL, "sink", "sink that shows its results sooner"),
        (replace(DIRECT, hops=12), TRIVIAL, "shuffle", "Take a shuffle out"),
        (replace(DIRECT, fixed_ms=6.0), TRIVIAL, "outside of chains", "outside of chains"),
        (
            DIRECT,
            replace(TRIVIAL, steps_ms={"fast": 0.5, "slow": 4.0}),
            "slow",
            "Make step 'slow' faster",
        ),
        (DIRECT, replace(TRIVIAL, fixed_ms=6.0), "hand-over", "fewer hand-overs"),
    ],
)
def test_a_bound_below_lifetime_zero_is_impossible_and_the_largest_part_is_named(
    path: Reading, load: ChainLoad, element: str, remedy: str
) -> None:
    observation = observed((path,), (load,))
    (impossible,) = assess(observation)
    assert impossible.element == element
    assert impossible.best_ms > 4
    assert remedy in impossible.remedy
    assert set(lifetimes(observation).values()) == {0.0}


def test_a_chain_that_cannot_keep_up_is_named_with_the_tasks_that_it_needs() -> None:
    observation = on(chain(rate=50_000), goal=constraint("mean", "1 s"))
    decision = decide(observation)
    (impossible,) = assess(observation)
    assert impossible.element == "score"
    assert math.isinf(impossible.best_ms)
    assert "3 tasks for each one it has" in impossible.remedy
    assert "backlog grows without end" in decision.reason


def test_the_sweep_of_the_shuffles_takes_four_percent_of_the_bound_in_whole_milliseconds() -> None:
    for bound, hops, expected in (("10 ms", 1, 1), ("500 ms", 2, 10), ("1 min", 1, 50)):
        observation = on(chain(), goal=constraint("mean", bound))
        path = replace(observation.readings[0], hops=hops)
        assert decide(replace(observation, readings=(path,))).plan.flush_ms == expected


def test_without_a_constraint_records_are_handed_over_at_once() -> None:
    observation = observed((), (chain(),), {"score": 9.0})
    decision = decide(observation)
    assert lifetimes(observation) == {"score": 0.0}
    assert decision.reason.startswith("No constraint covers a hand-over")


def test_without_records_the_lifetimes_stay() -> None:
    decision = decide(on(chain(rate=0), goal=constraint("mean", "10 ms"), lifetimes_ms=(9.0,)))
    assert decision.plan.lifetimes_ms == {"score": 9.0}
    assert decision.reason == "No records came, so the lifetimes stay as they are."


def test_a_path_over_a_chain_that_does_not_run_is_refused() -> None:
    reading = Reading(constraint("mean", "10 ms"), chains=("missing",))
    with pytest.raises(ConstraintError, match="no chain 'missing'"):
        decide(observed((reading,), (chain(),)))


def test_a_reason_is_one_sentence_with_the_numbers() -> None:
    decision = decide(on(chain(), goal=constraint("mean", "10 ms")))
    assert decision.reason == (
        "At 2 k/s a hand-over costs 0.2 ms + 52 us a record; lifetimes of "
        f"{decision.plan.lifetimes_ms['score']:.3g} ms keep the mean at 8.48 ms of 10 ms "
        "with 0.12 instead of 0.46 cores."
    )


def test_the_deviation_is_how_far_a_constraint_measured_from_its_prediction() -> None:
    goal = constraint("mean", "20 ms")
    said = decide(on(chain(), goal=goal))
    applied = after(on(chain(), goal=goal), said)
    assert said.predicted_ms is not None
    for longer in (0.9, 1.0, 1.3):
        (reading,) = applied.readings
        measured = replace(reading, value_ms=longer * said.predicted_ms)
        found = deviation(replace(applied, readings=(measured,)))
        assert found == pytest.approx(abs(longer - 1), abs=0.01)
    assert deviation(on(chain(), goal=goal)) is None
