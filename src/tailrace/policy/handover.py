"""Adaptive output batching at its original place: the lifetimes of hand-overs to Python.

In real-time mode records reach a chain of Python steps in open batches, each with a lifetime, as
on the channels of Lohrmann 2016, section 4.5.2. Until the costs of a hand-over are known its
lifetime is approached by the published rule; from then on the model says what it does, so it is
set at once, to the longest that every constraint affords and that still saves something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.policy.batching import Channel, SequenceBound, Subtask, adjust_lifetimes
from tailrace.policy.decision import Alternative
from tailrace.policy.realtime import LONGEST_FLUSH_MS, SHORTEST_BATCH_MS, SHORTEST_FLUSH_MS
from tailrace.policy.realtime_feasibility import assess
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tailrace.goals import Constraint
    from tailrace.model.realtime import Boundary, FlowModel
    from tailrace.policy.decision import Impossible
    from tailrace.policy.realtime import ChainLoad, PathReading, RealTimeObservation

POLICY = "handover"

_LEAST_MARGIN = 0.15  # a mean of 10 ms is made of a few, and moved by each wake-up that comes late
_MOST_MARGIN = 0.25
_WORST_MARGIN = 0.03
_WORTH_RAISING = 0.10
_FLUSH_SHARE = 0.04
_MOST_SURPRISE = 0.5


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
        expected_ms = after.expected_ms(reading)
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
        and (expected_ms := observation.expected_ms(reading)) is not None
        and 0 < expected_ms < math.inf
    ]
    return max(found, default=None)


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


def _surprise_ms(observation: RealTimeObservation, reading: PathReading) -> float:
    """What was measured beyond the prediction, which is expected to stay.

    Up to half of the bound: above that it was a burst, which shorter lifetimes do not cure.
    """
    expected_ms = observation.expected_ms(reading)
    if expected_ms is None or reading.value_ms is None:
        return 0.0
    most_ms = _MOST_SURPRISE * reading.constraint.bound_ms
    return min(max(0.0, reading.value_ms - expected_ms), most_ms)


def _demand(observation: RealTimeObservation, reading: PathReading, surprise_ms: float) -> _Demand:
    """The longest lifetimes of one path that keep its aims."""
    goal, flow = reading.constraint, observation.flow(reading)
    assert flow is not None  # noqa: S101 - decide asks for models before it comes here
    boundary = observation.boundary(reading)
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
    if tightest.boundary is None and observation.boundary(tightest.reading) is not None:
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
