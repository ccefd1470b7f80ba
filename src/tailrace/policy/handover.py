"""Adaptive output batching at its original place: the lifetimes of hand-overs to Python.

In real-time mode records reach a chain of Python steps in open batches, each with a lifetime, as
on the channels of Lohrmann 2016, section 4.5.2. There lifetimes are approached step by step. Here
the model says what a lifetime does, so it is set at once, to the longest that every constraint
affords and that still saves something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.policy.decision import Alternative, Decision, known
from tailrace.policy.realtime import (
    LONGEST_FLUSH_MS,
    SHORTEST_FLUSH_MS,
    batch_ms,
    boundary_of,
    bounded,
    expected_ms,
    flow_of,
)
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tailrace.model.realtime import Boundary, FlowModel
    from tailrace.plan import Plan
    from tailrace.policy.decision import Observation, Reading

POLICY = "handover"

_LEAST_MARGIN = 0.15  # a mean of 10 ms is made of a few, and moved by each wake-up that comes late
_MOST_MARGIN = 0.25
_WORST_MARGIN = 0.03
_WORTH_RAISING = 0.10
_FLUSH_SHARE = 0.04
_MOST_SURPRISE = 0.5


def decide(observation: Observation) -> Decision:
    """Set the longest lifetimes that every constraint affords, as far as they save something.

    Each constraint aims 15 to 25 % below its bound between batch boundaries, for noise, and 3 %
    below it in the worst window that holds one, if that can be had at all. Lifetimes fall at once
    when a prediction eats half of its margin, or any of it while a rate rises, for what the higher
    rate costs has not been measured yet; they rise when that spares a tenth of the cores and
    no bound is being missed.

    The plan has the length of a batch and the sweep of the shuffles too, which take effect at the
    next real-time batch. ``predicted_ms`` is what the constraint should measure away from batch
    boundaries.
    """
    hand_overs, readings = known(observation.realtime), bounded(observation)
    now = _lifetimes_ms(observation)
    if not readings:
        reason = "No constraint covers a hand-over, so records go over whenever Python is free."
        return _decision(observation, dict.fromkeys(now, 0.0), reason)
    covered = [hand_overs.chain(name) for reading in readings for name in reading.chains]
    if covered and all(chain.rate_per_s <= 0 for chain in covered):
        reason = "No records came, so the lifetimes stay as they are."
        return _decision(observation, now, reason)
    return _by_model(observation, readings)


def _lifetimes_ms(observation: Observation) -> dict[str, float]:
    """The present lifetime of every chain that runs."""
    lifetimes_ms = observation.plan.lifetimes_ms
    chains = known(observation.realtime).chains
    return {chain.chain: lifetimes_ms.get(chain.chain, 0.0) for chain in chains}


def _decision(observation: Observation, lifetimes_ms: Mapping[str, float], reason: str) -> Decision:
    """The plan with these lifetimes, and batches as long as recovery allows."""
    waits = {name: ms for name, ms in lifetimes_ms.items() if ms > 0}
    length_ms = batch_ms(observation)
    plan = replace(observation.plan, lifetimes_ms=waits, interval_ms=length_ms)
    return Decision(POLICY, plan, reason)


def risen(
    observation: Observation, rates_per_s: Mapping[str, float], plan: Plan | None = None
) -> Observation:
    """What would have been observed at other rates, and under the plan of the moment.

    What was measured beyond the prediction is taken along. Without a plan the present one stays.
    """
    surprises_ms = [_surprise_ms(observation, reading) for reading in observation.readings]
    before = known(observation.realtime)
    chains = tuple(
        replace(chain, rate_per_s=rates_per_s.get(chain.chain, chain.rate_per_s))
        for chain in before.chains
    )
    state = replace(before, chains=chains, rising=before.rising or bool(rates_per_s))
    after = replace(observation, plan=plan or observation.plan, realtime=state)
    readings = []
    for reading, surprise_ms in zip(observation.readings, surprises_ms, strict=True):
        value_ms = expected_ms(after, reading)
        if reading.value_ms is None or math.isinf(value_ms):
            readings.append(reading)
        else:
            readings.append(replace(reading, value_ms=value_ms + surprise_ms))
    return replace(after, readings=tuple(readings))


def deviation(observation: Observation) -> float | None:
    """How far the measured constraints are from their predictions, as a share; the worst.

    None where nothing was measured or the model has no answer.
    """
    found = [
        abs(reading.value_ms / value_ms - 1)
        for reading in observation.readings
        if reading.value_ms is not None
        and 0 < (value_ms := expected_ms(observation, reading)) < math.inf
    ]
    return max(found, default=None)


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one constraint asks for: lifetimes no longer than these, None when it is hopeless."""

    reading: Reading
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


def _by_model(observation: Observation, readings: Sequence[Reading]) -> Decision:
    now = _lifetimes_ms(observation)
    flush_ms = _flush_ms(observation, readings)
    surprises_ms = [_surprise_ms(observation, reading) for reading in readings]
    paced = replace(observation.plan, flush_ms=flush_ms, interval_ms=batch_ms(observation))
    observation = replace(observation, plan=paced)
    demands = [
        _demand(observation, reading, surprise_ms)
        for reading, surprise_ms in zip(readings, surprises_ms, strict=True)
    ]
    demands.sort(key=lambda d: (min(d.wanted_ms.values(), default=math.inf), -_strain(d)))
    wanted = dict.fromkeys(now, 0.0)
    for name in now:
        wanted[name] = min((d.wanted_ms[name] for d in demands if name in d.wanted_ms), default=0.0)
    chosen = {name: math.floor(ms * 100) / 100 for name, ms in wanted.items()}
    violated = any(demand.reading.violated for demand in demands)
    least = 1.0 if known(observation.realtime).rising else 0.5
    if not any(demand.strained(now, least) for demand in demands):
        spared = 1 - _cores(observation, chosen) / max(_cores(observation, now), 1e-12)
        if violated or spared <= _WORTH_RAISING:
            chosen = now
    tightest = demands[0]
    return replace(
        _decision(observation, chosen, _reason(observation, tightest, chosen, now)),
        predicted_ms=tightest.predicted_ms(chosen),
        alternatives=tuple(_alternatives(observation, demands, chosen, now)),
        constraint=tightest.reading.constraint,
    )


def _flush_ms(observation: Observation, readings: Iterable[Reading]) -> float:
    """The sweep of the shuffles: the hops of a path together wait up to 4 % of its bound.

    A sweep costs next to nothing, so that it is not given more of what hand-overs could use.
    """
    shares = [r.constraint.bound_ms * _FLUSH_SHARE / r.hops for r in readings if r.hops]
    if not shares:
        return observation.plan.flush_ms
    return float(math.floor(min(max(min(shares), SHORTEST_FLUSH_MS), LONGEST_FLUSH_MS)))


def _surprise_ms(observation: Observation, reading: Reading) -> float:
    """What was measured beyond the prediction, which is expected to stay.

    Up to half of the bound: above that it was a burst, which shorter lifetimes do not cure.
    """
    value_ms = expected_ms(observation, reading)
    if reading.value_ms is None:
        return 0.0
    most_ms = _MOST_SURPRISE * reading.constraint.bound_ms
    return min(max(0.0, reading.value_ms - value_ms), most_ms)


def _demand(observation: Observation, reading: Reading, surprise_ms: float) -> _Demand:
    """The longest lifetimes of one path that keep its aims."""
    goal, flow = reading.constraint, flow_of(observation, reading)
    boundary = boundary_of(observation, reading)
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


def _cores(observation: Observation, lifetimes_ms: Mapping[str, float]) -> float:
    """What all hand-overs keep busy under these lifetimes."""
    return math.fsum(
        chain.rate_per_s
        / 1_000.0
        * chain.model.cpu_per_record_ms(chain.rate_per_s, lifetimes_ms[chain.chain])
        for chain in known(observation.realtime).chains
    )


def _reason(
    observation: Observation,
    tightest: _Demand,
    chosen: Mapping[str, float],
    now: Mapping[str, float],
) -> str:
    goal, value_ms = tightest.reading.constraint, tightest.predicted_ms(chosen)
    bound, value = show_duration(goal.bound_ms), show_duration(value_ms)
    chains = [known(observation.realtime).chain(name) for name in tightest.reading.chains]
    busiest = max(chains, key=lambda c: c.rate_per_s, default=None)
    cost = "The path has no hand-over; "
    if busiest is not None:
        cost = (
            f"At {show_rate(busiest.rate_per_s)} a hand-over costs "
            f"{show_duration(busiest.model.fixed_ms)} + "
            f"{show_duration(busiest.model.per_record_ms)} a record; "
        )
    across = ""
    if tightest.boundary is None and boundary_of(observation, tightest.reading) is not None:
        length = show_duration(observation.plan.interval_ms)
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
    observation: Observation,
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
