"""Adaptive output batching at its original place: the lifetimes of hand-overs to Python.

In real-time mode records reach a chain of Python steps in open batches, each with a lifetime, as
on the channels of Lohrmann 2016, section 4.5.2. Until the costs of a hand-over are known its
lifetime is approached by the published rule; from then on the model says what it does, so it is
set at once, to the longest that every constraint affords and that still saves something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tailrace.errors import ConstraintError
from tailrace.model.realtime import Boundary, FlowModel, HandOver, HandOverModel
from tailrace.plan import FLUSH_MS
from tailrace.policy.batching import Channel, SequenceBound, Subtask, adjust_lifetimes
from tailrace.policy.decision import Alternative, Impossible
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tailrace.goals import Constraint

POLICY = "handover"

SHORTEST_BATCH_MS = 5_000.0
"""Spark refuses shorter real-time batches unless told otherwise, and gaps would dominate."""

SHORTEST_FLUSH_MS = FLUSH_MS
LONGEST_FLUSH_MS = 50.0
"""How often the buffers of a shuffle are swept: from once a millisecond to Spark's default."""

HAND_OVER = "hand-over"
SHUFFLE = "shuffle"
GAP = "gap"
SINK_TIME = "sink"
OUTSIDE = "outside of chains"

_LEAST_MARGIN = 0.15  # a mean of 10 ms is made of a few, and moved by each wake-up that comes late
_MOST_MARGIN = 0.25
_WORST_MARGIN = 0.03
_WORTH_RAISING = 0.10
_FLUSH_SHARE = 0.04
_MOST_SURPRISE = 0.5


@dataclass(frozen=True, slots=True)
class ChainLoad:
    """The hand-over to one chain, as measured in the last interval.

    ``rate_per_s`` is that of its busiest task. ``wait_ms`` is the mean time in the open batch and
    ``records`` the mean size of a batch, None when none came. ``fixed_ms`` and ``per_record_ms``
    are the costs of handing over alone, None until they are known; ``steps_ms`` holds the time
    that each step of the chain takes for a record.
    """

    chain: str
    rate_per_s: float
    lifetime_ms: float
    wait_ms: float | None = None
    records: float | None = None
    fixed_ms: float | None = None
    per_record_ms: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def work_ms(self) -> float:
        """What the steps of the chain take for a record."""
        return math.fsum(self.steps_ms.values())

    @property
    def model(self) -> HandOverModel | None:
        """What keeps Python busy: handing over and the steps."""
        if self.fixed_ms is None or self.per_record_ms is None:
            return None
        return HandOverModel(self.fixed_ms, self.per_record_ms + self.work_ms)


@dataclass(frozen=True, slots=True)
class PathReading:
    """What a constraint measured last, None when no record came, and what lies on its path.

    ``chains`` are the ones whose hand-over counts, ``hops`` the shuffles between them,
    ``steps_ms`` the time in steps outside of chains, ``sink_ms`` the time after the last step, 0
    where the path ends before the sink.
    """

    constraint: Constraint
    value_ms: float | None
    chains: tuple[str, ...]
    hops: int = 0
    steps_ms: float = 0.0
    sink_ms: float = 0.0

    @property
    def violated(self) -> bool:
        """Whether the bound was missed."""
        return self.value_ms is not None and self.value_ms > self.constraint.bound_ms


@dataclass(frozen=True, slots=True)
class RealTimeObservation:
    """What the policy may look at: the constraints, the hand-overs, and what is set now.

    ``noise`` is the relative spread of measured over predicted latency between intervals.
    ``rising`` is set where rates are those of the moment and higher than those of the interval.
    ``recovery_ms`` is how long a crash may take to make good, which is one real-time batch.
    """

    readings: tuple[PathReading, ...]
    chains: tuple[ChainLoad, ...]
    flush_ms: float = SHORTEST_FLUSH_MS
    gap_ms: float = 50.0
    length_ms: float = SHORTEST_BATCH_MS
    noise: float = 0.0
    recovery_ms: float = 60_000.0
    rising: bool = False

    def chain(self, name: str) -> ChainLoad:
        """The chain of that name."""
        found = next((chain for chain in self.chains if chain.chain == name), None)
        if found is None:
            raise ConstraintError(f"There is no chain '{name}' to bound: name chains that run.")
        return found


@dataclass(frozen=True, slots=True)
class RealTimeDecision:
    """The waits for the next interval, why, and what is expected of them.

    ``flush_ms`` and ``length_ms`` take effect at the next real-time batch. ``predicted_ms`` is
    what ``constraint`` should measure away from batch boundaries.
    """

    lifetimes_ms: Mapping[str, float]
    flush_ms: float
    length_ms: float
    reason: str
    predicted_ms: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    constraint: Constraint | None = None
    impossible: tuple[Impossible, ...] = ()
    policy: str = POLICY


def decide(observation: RealTimeObservation) -> RealTimeDecision:
    """Set the longest lifetimes that every constraint affords, as far as they save something.

    Each constraint aims 15 to 25 % below its bound between batch boundaries, for noise, and 3 %
    below it in the worst window that holds one, if that can be had at all. Lifetimes fall at once
    when a prediction eats half of its margin, or any of it while a rate rises, for what the higher
    rate costs has not been measured yet; they rise when that spares a tenth of the cores and
    no bound is being missed.
    """
    length_ms = max(SHORTEST_BATCH_MS, observation.recovery_ms)
    now = {chain.chain: chain.lifetime_ms for chain in observation.chains}
    bounded = [reading for reading in observation.readings if reading.chains or reading.hops]
    if not bounded:
        reason = "No constraint covers a hand-over, so records go over whenever Python is free."
        at_once = dict.fromkeys(now, 0.0)
        return RealTimeDecision(at_once, observation.flush_ms, length_ms, reason)
    covered = [observation.chain(name) for reading in bounded for name in reading.chains]
    if covered and all(chain.rate_per_s <= 0 for chain in covered):
        reason = "No records came, so the lifetimes stay as they are."
        return RealTimeDecision(now, observation.flush_ms, length_ms, reason)
    if any(chain.model is None for chain in covered):
        return _as_published(observation, bounded, length_ms)
    return _by_model(observation, bounded, length_ms)


def risen(
    observation: RealTimeObservation,
    rates_per_s: Mapping[str, float],
    lifetimes_ms: Mapping[str, float] | None = None,
) -> RealTimeObservation:
    """What would have been observed at other rates, and under the lifetimes of the moment.

    What was measured beyond the prediction is taken along. Without lifetimes they stay.
    """
    surprises_ms = [_surprise_ms(observation, reading) for reading in observation.readings]
    chains = [
        replace(
            chain,
            rate_per_s=rates_per_s.get(chain.chain, chain.rate_per_s),
            lifetime_ms=(
                chain.lifetime_ms if lifetimes_ms is None else lifetimes_ms.get(chain.chain, 0.0)
            ),
        )
        for chain in observation.chains
    ]
    rising = observation.rising or bool(rates_per_s)
    after = replace(observation, chains=tuple(chains), rising=rising)
    readings = []
    for reading, surprise_ms in zip(observation.readings, surprises_ms, strict=True):
        expected_ms = _expected_ms(after, reading)
        if reading.value_ms is None or expected_ms is None or math.isinf(expected_ms):
            readings.append(reading)
        else:
            readings.append(replace(reading, value_ms=expected_ms + surprise_ms))
    return replace(after, readings=tuple(readings))


def deviation(observation: RealTimeObservation) -> float | None:
    """How far the constraints measured from what the model says of them, as a share; the worst.

    None where nothing was measured or the model has no answer.
    """
    found = [
        abs(reading.value_ms / expected_ms - 1)
        for reading in observation.readings
        if reading.value_ms is not None
        and (expected_ms := _expected_ms(observation, reading)) is not None
        and 0 < expected_ms < math.inf
    ]
    return max(found, default=None)


def assess(observation: RealTimeObservation) -> tuple[Impossible, ...]:
    """The constraints that even lifetime 0 cannot keep, with what dominates and a remedy.

    Those that hold between batch boundaries but not across one are named too, with the share of
    windows that this concerns.
    """
    known = (r for r in observation.readings if _flow(observation, r) is not None)
    judged = (_impossible(observation, reading) for reading in known)
    return tuple(impossible for impossible in judged if impossible is not None)


def _as_published(
    observation: RealTimeObservation, bounded: Sequence[PathReading], length_ms: float
) -> RealTimeDecision:
    """The published rule, which needs no costs (Lohrmann 2016, algorithm 3).

    A hand-over is a channel; what the steps of its chain take for a batch is the latency of the
    subtask behind it. The rule is about means. A quantile of a batch of lifetime T can wait for
    all of T where the mean waits for half, so it is given half of its bound.
    """
    channels = [_channel(chain) for chain in observation.chains]
    subtasks = [
        Subtask(chain.chain, chain.chain, chain.work_ms * (chain.records or 1.0))
        for chain in observation.chains
    ]
    sequences = [
        SequenceBound(
            tuple(name for chain in reading.chains for name in (_stream(chain), chain)),
            (reading.constraint.bound_ms * (0.5 if reading.constraint.quantile else 1.0))
            - reading.steps_ms
            - reading.sink_ms
            - reading.hops * observation.flush_ms / 2,
        )
        for reading in bounded
        if reading.chains
    ]
    adjusted = adjust_lifetimes(sequences, channels, subtasks)
    lifetimes = {channel.target: channel.lifetime_ms for channel in adjusted}
    unknown = next(c.chain for c in observation.chains if c.model is None)
    reason = (
        f"What a hand-over to chain '{unknown}' costs is not known yet, so lifetimes take a step "
        f"towards the budget of the bounds: {_show_lifetimes(lifetimes)}."
    )
    return RealTimeDecision(lifetimes, observation.flush_ms, length_ms, reason)


def _channel(chain: ChainLoad) -> Channel:
    return Channel(
        _stream(chain.chain), "feed", chain.chain, chain.lifetime_ms, batch_latency_ms=chain.wait_ms
    )


def _stream(chain: str) -> str:
    return f"->{chain}"


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one constraint asks for: lifetimes no longer than these, None when it is hopeless."""

    reading: PathReading
    flow: FlowModel
    margin: float
    surprise_ms: float
    boundary: Boundary | None
    """None where the constraint does not feel boundaries, or cannot be kept across one."""
    lifetimes_ms: Mapping[str, float] | None

    @property
    def wanted_ms(self) -> Mapping[str, float]:
        return self.lifetimes_ms or dict.fromkeys(self.reading.chains, 0.0)

    def predicted_ms(
        self, lifetimes_ms: Mapping[str, float], boundary: Boundary | None = None
    ) -> float:
        goal = self.reading.constraint
        flow = self.flow.with_lifetimes([lifetimes_ms[name] for name in self.reading.chains])
        return self.surprise_ms + flow.statistic_ms(goal.quantile, goal.every_ms, boundary)

    def strained(self, lifetimes_ms: Mapping[str, float], least: float) -> bool:
        """Whether lifetimes leave less than that of the margin, or a third across a boundary."""
        bound_ms = self.reading.constraint.bound_ms
        if self.predicted_ms(lifetimes_ms) > bound_ms * (1 - least * self.margin):
            return True
        limit_ms = bound_ms * (1 - _WORST_MARGIN / 3)
        across = self.boundary
        return across is not None and self.predicted_ms(lifetimes_ms, across) > limit_ms


def _by_model(
    observation: RealTimeObservation, bounded: Sequence[PathReading], length_ms: float
) -> RealTimeDecision:
    now = {chain.chain: chain.lifetime_ms for chain in observation.chains}
    flush_ms = _flush_ms(observation, bounded)
    surprises_ms = [_surprise_ms(observation, reading) for reading in bounded]
    observation = replace(observation, flush_ms=flush_ms, length_ms=length_ms)
    demands = [
        _demand(observation, reading, surprise_ms)
        for reading, surprise_ms in zip(bounded, surprises_ms, strict=True)
    ]
    demands.sort(key=lambda d: (min(d.wanted_ms.values(), default=math.inf), -_strain(d)))
    wanted = dict.fromkeys(now, 0.0)
    for name in now:
        wanted[name] = min((d.wanted_ms[name] for d in demands if name in d.wanted_ms), default=0.0)
    chosen = {name: math.floor(ms * 100) / 100 for name, ms in wanted.items()}
    violated = any(demand.reading.violated for demand in demands)
    least = 1.0 if observation.rising else 0.5
    if not any(demand.strained(now, least) for demand in demands):
        spared = 1 - _cores(observation, chosen) / max(_cores(observation, now), 1e-12)
        if violated or spared <= _WORTH_RAISING:
            chosen = now
    tightest = demands[0]
    return RealTimeDecision(
        chosen,
        flush_ms,
        length_ms,
        _reason(observation, tightest, chosen, now),
        tightest.predicted_ms(chosen),
        tuple(_alternatives(observation, demands, chosen, now)),
        tightest.reading.constraint,
        assess(observation),
    )


def _flush_ms(observation: RealTimeObservation, bounded: Iterable[PathReading]) -> float:
    """The sweep of the shuffles: the hops of a path together wait up to 4 % of its bound.

    A sweep costs next to nothing, so that it is not given more of what hand-overs could use.
    """
    shares = [r.constraint.bound_ms * _FLUSH_SHARE / r.hops for r in bounded if r.hops]
    if not shares:
        return observation.flush_ms
    return float(math.floor(min(max(min(shares), SHORTEST_FLUSH_MS), LONGEST_FLUSH_MS)))


def _flow(observation: RealTimeObservation, reading: PathReading) -> FlowModel | None:
    """The path of a constraint under the present waits; None when a cost is not known."""
    hand_overs = []
    for chain in (observation.chain(name) for name in reading.chains):
        model = chain.model
        if model is None:
            return None
        hand_overs.append(HandOver(model, chain.rate_per_s, chain.lifetime_ms))
    return FlowModel(
        tuple(hand_overs), reading.hops, observation.flush_ms, reading.steps_ms, reading.sink_ms
    )


def _surprise_ms(observation: RealTimeObservation, reading: PathReading) -> float:
    """What was measured beyond the prediction, which is expected to stay.

    Up to half of the bound: above that it was a burst, which shorter lifetimes do not cure.
    """
    expected_ms = _expected_ms(observation, reading)
    if expected_ms is None or reading.value_ms is None:
        return 0.0
    most_ms = _MOST_SURPRISE * reading.constraint.bound_ms
    return min(max(0.0, reading.value_ms - expected_ms), most_ms)


def _expected_ms(observation: RealTimeObservation, reading: PathReading) -> float | None:
    """What the constraint should measure under the present waits; None when costs are missing."""
    goal, flow = reading.constraint, _flow(observation, reading)
    if flow is None:
        return None
    return flow.statistic_ms(goal.quantile, goal.every_ms, _boundary(observation, reading))


def _demand(observation: RealTimeObservation, reading: PathReading, surprise_ms: float) -> _Demand:
    """The longest lifetimes of one path that keep its aims."""
    goal, flow = reading.constraint, _flow(observation, reading)
    assert flow is not None  # noqa: S101 - decide asks for models before it comes here
    boundary = _boundary(observation, reading)
    at_once = flow.with_lifetimes([0.0] * len(reading.chains))
    if at_once.statistic_ms(goal.quantile, goal.every_ms, boundary) > goal.bound_ms:
        boundary = None
    margin = min(max(2 * observation.noise, _LEAST_MARGIN), _MOST_MARGIN)
    aims = [(margin, None)] if boundary is None else [(margin, None), (_WORST_MARGIN, boundary)]
    found: list[tuple[float, ...]] = []
    for kept, across in aims:
        target_ms = goal.bound_ms * (1 - kept) - surprise_ms
        longest = flow.longest_lifetimes_ms(target_ms, goal.quantile, goal.every_ms, across)
        if longest is None:
            return _Demand(reading, flow, margin, surprise_ms, boundary, None)
        found.append(longest)
    lifetimes = {name: min(ms) for name, *ms in zip(reading.chains, *found, strict=True)}
    return _Demand(reading, flow, margin, surprise_ms, boundary, lifetimes)


def _boundary(observation: RealTimeObservation, reading: PathReading) -> Boundary | None:
    """Only records that come from the source meet a gap; the others are past it."""
    if not reading.constraint.from_source or observation.gap_ms <= 0:
        return None
    return Boundary(observation.gap_ms, observation.length_ms)


def _strain(demand: _Demand) -> float:
    """The predicted value over the bound at lifetime 0: which of two hopeless bounds is worse."""
    at_once = dict.fromkeys(demand.reading.chains, 0.0)
    return demand.predicted_ms(at_once) / demand.reading.constraint.bound_ms


def _cores(observation: RealTimeObservation, lifetimes_ms: Mapping[str, float]) -> float:
    """What all hand-overs with known costs keep busy under these lifetimes."""
    return math.fsum(
        chain.rate_per_s
        / 1_000.0
        * chain.model.cpu_per_record_ms(chain.rate_per_s, lifetimes_ms[chain.chain])
        for chain in observation.chains
        if chain.model is not None
    )


def _impossible(observation: RealTimeObservation, reading: PathReading) -> Impossible | None:
    goal = reading.constraint
    flow = _flow(replace(observation, flush_ms=SHORTEST_FLUSH_MS), reading)
    assert flow is not None  # noqa: S101 - assess leaves out paths without a model
    flow = flow.with_lifetimes([0.0] * len(reading.chains))
    best_ms = flow.statistic_ms(goal.quantile, goal.every_ms)
    if math.isinf(best_ms):
        return _overloaded(observation, reading)
    if best_ms > goal.bound_ms:
        return _too_slow(observation, reading, flow, best_ms)
    boundary = _boundary(observation, reading)
    if boundary is None:
        return None
    across_ms = flow.statistic_ms(goal.quantile, goal.every_ms, boundary)
    return _gap_too_long(goal, boundary, across_ms) if across_ms > goal.bound_ms else None


def _overloaded(observation: RealTimeObservation, reading: PathReading) -> Impossible:
    """A chain whose task cannot keep up at all."""
    found = [(chain, chain.model) for chain in map(observation.chain, reading.chains)]
    known = [(chain, model) for chain, model in found if model is not None]
    chain, model = max(known, key=lambda pair: pair[0].rate_per_s / pair[1].highest_rate_per_s)
    most = show_rate(model.highest_rate_per_s)
    element = max(chain.steps_ms, key=chain.steps_ms.__getitem__, default=HAND_OVER)
    if chain.work_ms < (chain.per_record_ms or 0.0):
        element = HAND_OVER
    blame = "handing over" if element == HAND_OVER else f"step '{element}'"
    tasks = math.ceil(chain.rate_per_s / model.highest_rate_per_s / 0.9)
    reason = (
        f"A task of chain '{chain.chain}' gets {show_rate(chain.rate_per_s)} and can take less "
        f"than {most}, mostly because of {blame}, so its backlog grows without end."
    )
    remedy = f"Give the chain {tasks} tasks for each one it has, or send less than {most} to it."
    return Impossible(reading.constraint, element, math.inf, reason, remedy)


_KINDS = {
    HAND_OVER: "hand-overs",
    SHUFFLE: "the shuffles",
    SINK_TIME: "the sink",
    OUTSIDE: "steps outside of chains",
}
_REMEDIES = {
    HAND_OVER: "Chain the steps so that there are fewer hand-overs",
    SHUFFLE: "Take a shuffle out of the path",
    SINK_TIME: "Use a sink that shows its results sooner",
    OUTSIDE: "Make the steps outside of chains faster",
}


def _too_slow(
    observation: RealTimeObservation, reading: PathReading, flow: FlowModel, best_ms: float
) -> Impossible:
    """Shipping at once is not enough: name the part that takes the most."""
    goal = reading.constraint
    parts = _parts(observation, reading, flow)
    element = max(parts, key=parts.__getitem__)
    best, bound = show_duration(best_ms), show_duration(goal.bound_ms)
    blame = _KINDS.get(element, f"step '{element}'")
    reason = (
        f"Even when records are handed over at once the {goal.statistic} is {best}, above "
        f"{bound}, and {show_duration(parts[element])} of that is for {blame}."
    )
    repair = _REMEDIES.get(element, f"Make step '{element}' faster or give it more tasks")
    return Impossible(goal, element, best_ms, reason, f"{repair}, or loosen the bound to {best}.")


def _parts(
    observation: RealTimeObservation, reading: PathReading, flow: FlowModel
) -> dict[str, float]:
    """Where the mean latency of a path goes; a chain's share is split by what keeps it busy."""
    parts = {
        HAND_OVER: 0.0,
        SHUFFLE: flow.hops * flow.flush_ms / 2,
        SINK_TIME: reading.sink_ms,
        OUTSIDE: reading.steps_ms,
    }
    for name, hand_over in zip(reading.chains, flow.hand_overs, strict=True):
        chain, spent_ms = observation.chain(name), hand_over.latency().mean_ms
        records = hand_over.model.records(hand_over.rate_per_s, hand_over.lifetime_ms)
        per_busy = spent_ms * records / hand_over.model.service_ms(records)
        for step, step_ms in chain.steps_ms.items():
            parts[step] = parts.get(step, 0.0) + step_ms * per_busy
        parts[HAND_OVER] += spent_ms - chain.work_ms * per_busy
    return parts


def _gap_too_long(goal: Constraint, boundary: Boundary, across_ms: float) -> Impossible:
    """The bound holds between batch boundaries, but not in a window that has one."""
    share = boundary.share_of_windows(goal.every_ms)
    gap, every = show_duration(boundary.gap_ms), show_duration(goal.every_ms)
    in_gap = boundary.gaps_in(goal.every_ms) * boundary.gap_ms / goal.every_ms
    beyond = (
        f", as {in_gap:.3g} of its records come in it and only {1 - goal.quantile:.3g} may be late"
        if goal.quantile is not None and in_gap > 1 - goal.quantile
        else ""
    )
    reason = (
        f"Nothing flows for {gap} between two real-time batches, so in the {share:.0%} of windows "
        f"of {every} that hold such a gap the {goal.statistic} is {show_duration(across_ms)}, "
        f"above {show_duration(goal.bound_ms)}{beyond}."
    )
    remedy = (
        f"Allow a longer recovery than {show_duration(boundary.length_ms)} to have fewer gaps, "
        f"a longer span than {every}, or a bound of {show_duration(across_ms)}."
    )
    return Impossible(goal, GAP, across_ms, reason, remedy)


def _reason(
    observation: RealTimeObservation,
    tightest: _Demand,
    chosen: Mapping[str, float],
    now: Mapping[str, float],
) -> str:
    goal, value_ms = tightest.reading.constraint, tightest.predicted_ms(chosen)
    bound, value = show_duration(goal.bound_ms), show_duration(value_ms)
    chains = [observation.chain(name) for name in tightest.reading.chains]
    busiest = max(chains, key=lambda c: c.rate_per_s, default=None)
    cost = "The path has no hand-over; "
    if busiest is not None and busiest.model is not None:
        cost = (
            f"At {show_rate(busiest.rate_per_s)} a hand-over costs "
            f"{show_duration(busiest.model.fixed_ms)} + "
            f"{show_duration(busiest.model.per_record_ms)} a record; "
        )
    across = ""
    if tightest.boundary is None and _boundary(observation, tightest.reading) is not None:
        length = show_duration(observation.length_ms)
        across = f", but not in windows with a batch boundary, which comes only every {length}"
    if math.isinf(value_ms):
        return f"{cost}that is more than a task can take, so its backlog grows without end."
    if value_ms > goal.bound_ms:
        return f"{cost}even handed over at once the {goal.statistic} is {value}, above {bound}."
    if not any(chosen[chain.chain] for chain in chains):
        return f"{cost}handed over at once the {goal.statistic} is {value} of {bound}{across}."
    lifetimes = _show_lifetimes({chain.chain: chosen[chain.chain] for chain in chains})
    if chosen == now and tightest.reading.violated and tightest.reading.value_ms is not None:
        measured = show_duration(tightest.reading.value_ms)
        return f"{cost}{lifetimes} stay, as the {goal.statistic} was {measured}, above {bound}."
    keep = "still keep" if chosen == now else "keep"
    at_once = _cores(observation, dict.fromkeys(chosen, 0.0))
    saved = f"{_cores(observation, chosen):.2g} instead of {at_once:.2g} cores"
    useful = tightest.flow.useful_lifetimes_ms()
    spent = all(chosen[c.chain] >= 0.99 * ms for c, ms in zip(chains, useful, strict=True))
    enough = ", and longer would save less than 5 %" if spent else ""
    return (
        f"{cost}{lifetimes} {keep} the {goal.statistic} at {value} of {bound} with {saved}"
        f"{enough}{across}."
    )


def _show_lifetimes(lifetimes_ms: Mapping[str, float]) -> str:
    if len(set(lifetimes_ms.values())) == 1:
        return f"lifetimes of {show_duration(next(iter(lifetimes_ms.values())))}"
    each = ", ".join(f"{show_duration(ms)} for {name}" for name, ms in lifetimes_ms.items())
    return f"lifetimes of {each}"


def _alternatives(
    observation: RealTimeObservation,
    demands: Sequence[_Demand],
    chosen: Mapping[str, float],
    now: Mapping[str, float],
) -> Iterator[Alternative]:
    tightest, at_once = demands[0], dict.fromkeys(chosen, 0.0)
    cores = _cores(observation, chosen)
    if any(chosen.values()):
        instead = f"{_cores(observation, at_once):.2g} cores instead of {cores:.2g}"
        why_not = f"It keeps {instead} busy."
        yield Alternative("hand over at once", tightest.predicted_ms(at_once), why_not)
    if chosen != now:
        shorter = _cores(observation, now) > cores
        why_not = "It pays for more hand-overs than needed." if shorter else "It risks the bound."
        yield Alternative(f"stay at {_show_lifetimes(now)}", tightest.predicted_ms(now), why_not)
    if len(demands) > 1:
        runner_up = demands[1]
        why_not = f"It alone would allow {_show_lifetimes(runner_up.wanted_ms)}."
        value_ms = runner_up.predicted_ms(chosen)
        yield Alternative(str(runner_up.reading.constraint), value_ms, why_not)
