"""What a batch takes is the same for predictions, the simulator, batching and sizing.

And what a hand-over takes is the same for predictions and for the policies of real-time mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.constraint import Constraint
from tailrace.load import Trace
from tailrace.model.batch import ARROW_RECORDS, shared_line
from tailrace.model.outcome_microbatch import Cycle
from tailrace.model.plant import plant_of
from tailrace.model.predict import Predictor, predict
from tailrace.model.simulator import SimulatedBatch
from tailrace.model.sized import ENOUGH, SizedBatches, overheads_ms, unshared_ms
from tailrace.plan import Backend, Plan, chain_name
from tailrace.policy.decision import ChainLoad, Observation, Reading, RealTimeState
from tailrace.policy.realtime import expected_ms
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.profile import Profile, StepProfile

ROUNDED_MS = 0.002
"""A simulated batch has three times, in whole microseconds: each is off by half of one."""

RATE_PER_S = 1_000.0
"""Any rate works: how long a batch takes does not depend on how fast its records came."""


@dataclass(frozen=True)
class Case:
    """A flow, how it runs, and the records of a batch."""

    profile: Profile
    plan: Plan
    records: int

    @property
    def cycle(self) -> Cycle:
        """What predictions go by."""
        loads = Predictor(self.profile).loads(self.plan, RATE_PER_S)
        assert self.profile.batch is not None
        return Cycle(loads, self.profile.batch, self.plan.interval_ms)

    @property
    def predicted_ms(self) -> float:
        return self.cycle.duration_ms(self.records)

    @property
    def simulated_ms(self) -> float:
        plant = plant_of(self.profile, self.plan)
        keys = keys_in_turn(self.records, max(self.plan.partitions.values(), default=1))
        due_us = np.zeros(self.records, np.int64)
        names = tuple(str(number) for number in range(1_000))
        trace = Trace(due_us, keys, np.zeros(self.records, np.int32), names)
        records, rng = np.arange(self.records), np.random.default_rng(1)
        batch = SimulatedBatch(self.profile.graph, plant, trace, self.plan, records, rng)
        return batch.measure(0, 0).duration_ms


def keys_in_turn(records: int, partitions: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Keys that the simulator sends to partitions in turn."""
    found: dict[int, int] = {}
    for key in range(1_000):
        found.setdefault((key * 2_654_435_769 & 0xFFFFFFFF) >> 16 & 0xFFFF, key)
    by_place: dict[int, int] = {}
    for place, key in found.items():
        by_place.setdefault(place % partitions, key)
    return np.array([by_place[n % partitions] for n in range(records)], np.int32)


@st.composite
def costs(draw: st.DrawFn) -> BatchCosts:
    some = st.floats(0, 50)
    return BatchCosts(
        draw(st.floats(1, 200)),
        draw(st.floats(0, 0.05)),
        stage_ms=draw(some),
        task_ms=draw(st.floats(0, 5)),
        shuffle_ms=draw(st.sampled_from([0.0, 20.0])),
        noise=0.0,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A line of steps, whose last may be one of two side by side, on any chains and partitions.

    Ratios are whole and the records a multiple of every number of partitions, so that none has
    more of them than another and nothing is left to chance.
    """
    count = draw(st.integers(1, 4))
    names = [f"s{number}" for number in range(count)]
    forks = count > 2 and draw(st.booleans())
    streams = [("source", names[0]), *pairwise(names[:-1] if forks else names)]
    streams += [(names[-3], names[-1])] if forks else []
    ends = names[-2:] if forks else names[-1:]
    streams += [(name, "sink") for name in ends]
    keyed = draw(st.sets(st.sampled_from(names)))
    partitions = draw(st.sampled_from([1, 2, 3, 4, 6]))
    own = dict.fromkeys(keyed, partitions)
    for name in draw(st.sets(st.sampled_from(names))) - keyed:
        own[name] = draw(
            st.sampled_from([1, 2, 3, 4, 6]).filter(lambda n: n <= partitions or not keyed)
        )
    steps = tuple(
        StepProfile(
            name,
            draw(st.floats(0, 1.0)),
            call_ms=draw(st.sampled_from([0.0, 0.15, 2.0])),
            ratio=draw(st.sampled_from([1.0, 1.0, 2.0])),
            keyed_by=("key",) if name in keyed else (),
        )
        for name in names
    )
    apart = set(own) | ({*names[-2:]} if forks else set())
    chains: list[list[str]] = []
    for name in names:
        if not chains or name in apart or draw(st.booleans()):
            chains.append([name])
        else:
            chains[-1].append(name)
    cores = draw(st.integers(1, 7))
    plan = Plan(0.0, tuple(tuple(chain) for chain in chains), own, cores=cores)
    profile = Profile(
        "flow",
        steps,
        tuple(streams),
        RATE_PER_S,
        plan,
        cores=draw(st.integers(1, 7)),
        source_partitions=draw(st.sampled_from([1, 2, 3, 4, 6])),
        batch=draw(costs()),
    )
    return Case(profile, plan, 12 * draw(st.integers(1, 1_500)))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_batch_takes_as_long_in_the_simulator_as_is_predicted(case: Case) -> None:
    assert case.simulated_ms == pytest.approx(case.predicted_ms, rel=1e-9, abs=ROUNDED_MS)


@settings(max_examples=100, deadline=None)
@given(cases(), st.floats(0, 2))
def test_batching_goes_by_the_line_of_the_duration_that_is_predicted(
    case: Case, share: float
) -> None:
    batch = case.cycle.batch
    model = batch.line(case.records)
    for records in (case.records, 2 * case.records):
        assert model.duration_ms(records) == pytest.approx(batch.duration_ms(records), rel=1e-9)
    most = max(float(stage._work.records.max()) for stage in batch.stages) * 2 * case.records
    if most <= ARROW_RECORDS:
        anywhere = share * case.records
        assert model.duration_ms(anywhere) == pytest.approx(batch.duration_ms(anywhere), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_sizing_goes_by_the_duration_that_is_predicted_and_simulated(
    case: Case, few: int, more: int, asked: int
) -> None:
    """Seen on two numbers of slots that all stages use, a third is known.

    Records are few enough that each task gets one Arrow batch. Beyond that sizing takes calls to be
    what they are in the batches that it has seen.
    """
    assume(few != more)
    heads = [chain[0] for chain in case.plan.chains]

    def on(slots: int) -> Case:
        plan = replace(case.plan, partitions=dict.fromkeys(heads, slots), cores=slots)
        return replace(case, plan=plan, records=math.lcm(few, more, asked))

    assume(math.lcm(few, more, asked) * 2**4 <= ARROW_RECORDS)
    paid = case.profile.batch
    assume(paid is not None and paid.fixed_ms >= paid.task_ms * len(heads))  # no part below zero
    batch = on(1).cycle.batch
    busy_ms = batch.line(1.0).per_record_ms  # one task has all the work
    records = on(1).records
    seen = [
        (slots, unshared_ms(on(slots).cycle.batch.line(records), records, busy_ms, slots))
        for slots in (few, more)
        for _ in range(ENOUGH)
    ]
    batch_ms, task_ms = overheads_ms(seen)
    sized = SizedBatches(batch_ms, busy_ms, 5_000.0, task_ms=task_ms)
    found_ms = sized.on(asked).duration_ms(records)
    assert found_ms == pytest.approx(on(asked).predicted_ms, rel=1e-6, abs=1e-6)
    assert found_ms == pytest.approx(on(asked).simulated_ms, rel=1e-6, abs=ROUNDED_MS)


@given(st.floats(1, 300), st.floats(0, 0.05), st.floats(0, 2), st.floats(0, 5), st.integers(1, 16))
def test_the_line_of_sizing_by_hand(
    fixed_ms: float, record_ms: float, service_ms: float, task_ms: float, slots: int
) -> None:
    profile = Profile(
        "one",
        (StepProfile("work", service_ms, call_ms=0.5),),
        (("source", "work"), ("work", "sink")),
        RATE_PER_S,
        Plan(0.0, (("work",),), {"work": slots}),
        cores=slots,
        batch=BatchCosts(fixed_ms, record_ms, task_ms=task_ms, noise=0.0),
    )
    case = Case(profile, profile.plan, 48 * slots)
    line = shared_line(fixed_ms - task_ms + 0.5, task_ms, record_ms + service_ms, slots)
    assert line.duration_ms(48 * slots) == pytest.approx(case.predicted_ms)


def test_records_that_leave_by_chance_move_a_batch_by_no_more_than_chance() -> None:
    """Half of the records leave ``s0``: a coin for each, which a prediction takes at its mean.

    Of n coins the number deviates by ``sqrt(n)/2``, and the longest of the tasks behind them is
    longer by that many records at most, five times over; a record costs its service and the engine.
    """
    profile = Profile(
        "coins",
        (StepProfile("s0", 0.05, ratio=0.5), StepProfile("s1", 0.8)),
        (("source", "s0"), ("s0", "s1"), ("s1", "sink")),
        RATE_PER_S,
        Plan(0.0, (("s0",), ("s1",)), {"s1": 3}),
        cores=4,
        batch=BatchCosts(30.0, 0.01, noise=0.0),
    )
    for records in (60, 600, 6_000):
        case = Case(profile, profile.plan, records)
        by_chance_ms = 5 * math.sqrt(records / 3) / 2 * (0.8 + 0.01)
        assert abs(case.simulated_ms - case.predicted_ms) <= by_chance_ms


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.sampled_from([0.0, 0.15]), st.booleans(), st.floats(0, 20)),
        min_size=1,
        max_size=4,
    ),
    st.floats(0.05, 0.8),
    st.floats(1, 20),
)
def test_the_live_policies_expect_of_a_path_what_is_predicted(
    steps: list[tuple[float, float, bool, float]], load: float, flush_ms: float
) -> None:
    """One task for each chain, so that a path is the whole flow, and no gap.

    Before and after the path a record is on its way to the engine and through the exchanges, which
    live policies do not see apart: a prediction adds them.
    """
    engine = HandOverCosts(0.3, 0.002, source_ms=0.1, hop_ms=0.5, sink_ms=0.4, gap_ms=0.0)
    names = [f"s{number}" for number in range(len(steps))]
    chains: list[tuple[str, ...]] = []
    own: dict[str, int] = {}
    for name, (_, _, moves, _) in zip(names, steps, strict=True):
        if chains and not moves:
            chains[-1] = (*chains[-1], name)
        else:
            chains.append((name,))
            own |= {name: 1}
    lifetimes_ms = {chain_name(chain): steps[names.index(chain[0])][3] for chain in chains}
    plan = Plan(60_000.0, tuple(chains), own, Backend.REALTIME, lifetimes_ms, flush_ms)
    profile = Profile(
        "path",
        tuple(
            StepProfile(name, service_ms, call_ms=call_ms)
            for name, (service_ms, call_ms, _, _) in zip(names, steps, strict=True)
        ),
        tuple(pairwise(["source", *names, "sink"])),
        RATE_PER_S,
        plan,
        cores=len(chains),
        hand_over=engine,
    )
    handed = [
        ChainLoad(
            chain_name(chain),
            0.0,
            fixed_ms=engine.fixed_ms + math.fsum(profile.step(name).call_ms for name in chain),
            per_record_ms=engine.per_record_ms,
            steps_ms={name: profile.step(name).service_ms for name in chain},
        )
        for chain in chains
    ]
    models = [chain.model for chain in handed if chain.model is not None]
    rate = load * min(model.highest_rate_per_s for model in models)
    reading = Reading(
        Constraint(1_000.0),
        chains=tuple(chain.chain for chain in handed),
        hops=len(chains) - 1,
        sink_ms=engine.sink_ms,
    )
    running = tuple(replace(chain, rate_per_s=rate) for chain in handed)
    observation = Observation(
        profile.graph,
        plan,
        (reading,),
        rate,
        steps={},
        slots=len(chains),
        intervals_since_change=1,
        realtime=RealTimeState(running, gap_ms=0.0),
    )
    live_ms = expected_ms(observation, reading)
    assert live_ms is not None
    unseen_ms = engine.source_ms + (len(chains) - 1) * engine.hop_ms
    found = predict(profile, plan, rate)
    assert found.mean_ms == pytest.approx(live_ms + unseen_ms, rel=1e-9)
