"""Which backend: the cheapest of micro-batch and real-time that keeps every constraint.

Real-time mode has a latency of milliseconds, but holds a slot for each of its tasks all the time.
A micro-batch has a floor of 1.5 times its fixed cost, but leaves its slots to others between two
batches. So the bound decides, by prediction, and the reason gives both predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.model.batch import shared_line
from tailrace.model.realtime import Boundary, FlowModel, HandOver, HandOverModel
from tailrace.plan import Backend
from tailrace.policy.decision import NO_STREAKS, Alternative, Decision, Streaks, known
from tailrace.profile.costs import USUAL_BATCH, USUAL_HAND_OVER
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.model.microbatch import BatchModel
    from tailrace.policy.decision import Observation

POLICY = "backend"

MICROBATCH = Backend.MICROBATCH
REALTIME = Backend.REALTIME

MISSED_INTERVALS = 2
"""Intervals in a row in which micro-batch must be unable to keep a bound before real-time mode
takes over."""

CALM_INTERVALS = 3
"""Intervals in a row in which micro-batch would have to be well below every bound before it takes
over again."""

CALM_SHARE = 0.7
LEAST_SAVING = 0.25

_MARGIN = 0.08
_HOUR_MS = 3.6e6


@dataclass(frozen=True, slots=True)
class MicroBatchCosts:
    """What a micro-batch takes, in time (``model``) and in CPU over all processes.

    ``slots`` is how many of its tasks run at once.
    """

    model: BatchModel
    cpu_fixed_ms: float
    cpu_per_record_ms: float
    slots: int = 1
    measured: bool = True


@dataclass(frozen=True, slots=True)
class RealTimeCosts:
    """What real-time mode takes: its hand-overs in a row, each over ``tasks`` tasks.

    ``slots`` are the tasks of all stages, which run at the same time. The costs of a hand-over
    hold the steps of its chain.
    """

    hand_overs: tuple[HandOverModel, ...]
    gap_ms: float
    slots: int = 1
    tasks: int = 1
    hops: int = 0
    flush_ms: float = 1.0
    steps_ms: float = 0.0
    sink_ms: float = 0.0
    measured: bool = True


MICROBATCH_PRIOR = MicroBatchCosts(
    shared_line(USUAL_BATCH.fixed_ms, 0.0, USUAL_BATCH.per_record_ms, tasks=1),
    USUAL_BATCH.cpu_ms,
    USUAL_BATCH.cpu_record_ms,
    measured=False,
)
REALTIME_PRIOR = RealTimeCosts(
    (HandOverModel.of(USUAL_HAND_OVER.fixed_ms, USUAL_HAND_OVER.per_record_ms, work_ms=0.0),),
    USUAL_HAND_OVER.gap_ms,
    measured=False,
)
"""What is usual for trivial steps."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one backend would do: the constraint it strains most, and what it costs in an hour.

    ``wait_ms`` is the batch interval, or the longest lifetime of a hand-over. ``cpu_s`` is used,
    ``held_s`` is slots times the time they are held; ``core_s``, the larger, is what no other
    flow can use. ``kept_share`` is the share of windows that keep every bound, by prediction.
    """

    backend: Backend
    constraint: Constraint | None
    predicted_ms: float
    wait_ms: float
    cpu_s: float
    held_s: float
    slots: int
    kept_share: float
    measured: bool
    obstacle: str | None = None

    @property
    def core_s(self) -> float:
        """Core seconds an hour that are used, or held so that no other flow can use them."""
        return max(self.cpu_s, self.held_s)

    @property
    def strain(self) -> float:
        """The predicted value over the bound; infinite where the backend cannot run."""
        if self.obstacle is not None:
            return math.inf
        return self.predicted_ms / self.constraint.bound_ms if self.constraint else 0.0

    @property
    def kept(self) -> bool:
        """Whether every window keeps every bound."""
        return self.obstacle is None and self.kept_share == 1.0


def decide(observation: Observation) -> Decision:
    """The cheapest backend that keeps every constraint with margin.

    At the start the better offer wins. A running flow changes over only for a reason that lasts:
    to real-time when micro-batch cannot keep a bound for two intervals, back when it would stay
    below 70 % of every bound for three and save a quarter of the core seconds. If real-time
    cannot run any more, at once.
    """
    micro, real = offers(observation)
    if not _bounded(observation):
        return _unbounded(observation, micro, real)
    seen = known(observation.backends)
    present = observation.plan.backend if seen.running else None
    taken = best = _better(micro, real)
    streaks = NO_STREAKS
    if present is MICROBATCH:
        missed = seen.streaks.missed + 1 if micro.strain > 1 and best is real else 0
        taken = real if missed >= MISSED_INTERVALS else micro
        streaks = Streaks(missed=missed)
    elif present is REALTIME and real.strain < math.inf:
        eased = _microbatch(observation, CALM_SHARE)
        calls = eased.kept and eased.core_s <= (1 - LEAST_SAVING) * real.core_s
        calm = seen.streaks.calm + 1 if calls else 0
        taken = micro if calm >= CALM_INTERVALS else real
        streaks = Streaks(calm=calm)
    if taken.backend is not present:
        streaks = NO_STREAKS
    return _decision(observation, taken, real if taken is micro else micro, streaks)


def offers(observation: Observation) -> tuple[Offer, Offer]:
    """What micro-batch and real-time mode would do, in this order."""
    return _microbatch(observation, 1 - _MARGIN), _realtime(observation)


def _bounded(observation: Observation) -> tuple[Constraint, ...]:
    """The constraints that the backend changes: those that count from the source."""
    return tuple(goal for goal in observation.constraints if goal.from_source)


def _unbounded(observation: Observation, micro: Offer, real: Offer) -> Decision:
    """Without a bound from the source: what runs goes on, and a start is with micro-batches."""
    stays = known(observation.backends).running and observation.plan.backend is REALTIME
    taken = real if stays and real.obstacle is None else micro
    name = _name(taken)
    reason = f"No constraint counts from the source, so any backend will do, and {name} it is."
    plan = replace(observation.plan, backend=taken.backend)
    return Decision(POLICY, plan, reason, taken.predicted_ms, constraint=taken.constraint)


def _better(micro: Offer, real: Offer) -> Offer:
    """The cheaper one if both keep the bounds, or the one that comes nearer to it."""
    if micro.kept and real.kept:
        return micro if micro.core_s <= real.core_s else real
    if micro.kept_share != real.kept_share:
        return max(micro, real, key=lambda offer: offer.kept_share)
    return micro if micro.strain <= real.strain else real


def _microbatch(observation: Observation, share: float) -> Offer:
    """Micro-batch with the longest interval that stays below that share of every bound."""
    costs, rate = _microbatch_costs(observation), observation.rate_per_s
    model, goals = costs.model, _bounded(observation)
    intervals = [
        model.longest_interval_ms(goal.bound_ms * share, rate, goal.every_ms, goal.quantile)
        for goal in goals
    ]
    kept = None not in intervals
    spans = [goal.every_ms for goal in goals]
    found = [ms for ms in intervals if ms is not None]
    interval_ms = min([*spans, *found]) if kept and goals else 0.0
    values = [
        (model.latency_ms(interval_ms, rate, goal.every_ms, goal.quantile), goal) for goal in goals
    ]
    predicted_ms, tightest = max(
        values, key=lambda pair: pair[0] / pair[1].bound_ms, default=(0.0, None)
    )
    cycle_ms = max(model.cycle_ms(interval_ms, rate), 1e-9)
    records = rate * _HOUR_MS / 1_000.0
    batches = _HOUR_MS / cycle_ms
    busy = 1.0 if math.isinf(cycle_ms) else model.duration_ms(rate * cycle_ms / 1e3) / cycle_ms
    return Offer(
        MICROBATCH,
        tightest,
        predicted_ms,
        interval_ms,
        (batches * costs.cpu_fixed_ms + records * costs.cpu_per_record_ms) / 1_000.0,
        costs.slots * min(1.0, busy) * _HOUR_MS / 1_000.0,
        costs.slots,
        1.0 if kept else 0.0,
        costs.measured,
    )


def _realtime(observation: Observation) -> Offer:
    """Real-time mode with the longest lifetimes that stay below every bound, and are of use."""
    costs, seen = _realtime_costs(observation), known(observation.backends)
    per_task = observation.rate_per_s / costs.tasks
    flow = FlowModel(
        tuple(HandOver(model, per_task) for model in costs.hand_overs),
        costs.hops,
        costs.flush_ms,
        costs.steps_ms,
        costs.sink_ms,
    )
    boundary = Boundary(costs.gap_ms, seen.recovery_ms)
    lifetimes, kept_share = flow.useful_lifetimes_ms(), 1.0
    goals = _bounded(observation)
    for goal in goals:
        longest, share = _affordable(flow, goal, boundary)
        lifetimes = tuple(map(min, lifetimes, longest))
        kept_share = min(kept_share, share)
    flow = flow.with_lifetimes(lifetimes)
    values = [(flow.statistic_ms(g.quantile, g.every_ms), g) for g in goals]
    predicted_ms, tightest = max(
        values, key=lambda pair: pair[0] / pair[1].bound_ms, default=(0.0, None)
    )
    obstacles = [*seen.obstacles]
    if costs.slots > observation.slots:
        obstacles.append(f"It needs {costs.slots} slots and there are {observation.slots}.")
    return Offer(
        REALTIME,
        tightest,
        predicted_ms,
        max(lifetimes, default=0.0),
        flow.cores * costs.tasks * _HOUR_MS / 1_000.0,
        costs.slots * _HOUR_MS / 1_000.0,
        costs.slots,
        0.0 if obstacles else kept_share,
        costs.measured,
        obstacles[0] if obstacles else None,
    )


def _affordable(
    flow: FlowModel, goal: Constraint, boundary: Boundary
) -> tuple[tuple[float, ...], float]:
    """The lifetimes that a constraint affords, and the share of windows that then keep it.

    Between batch boundaries, and across them too if that can be.
    """
    target_ms = goal.bound_ms * (1 - _MARGIN)
    between, across = (
        flow.longest_lifetimes_ms(target_ms, goal.quantile, goal.every_ms, at)
        for at in (None, boundary)
    )
    if between is None:
        return (0.0,) * len(flow.hand_overs), 0.0
    if across is None:
        return between, 1 - boundary.share_of_windows(goal.every_ms)
    return tuple(map(min, between, across)), 1.0


def _microbatch_costs(observation: Observation) -> MicroBatchCosts:
    """What was measured, or the prior with the work of the steps that real-time mode showed."""
    seen = known(observation.backends)
    if seen.microbatch is not None:
        return seen.microbatch
    prior, tried = MICROBATCH_PRIOR, seen.realtime
    if tried is None:
        return prior
    trivial_ms = REALTIME_PRIOR.hand_overs[0].per_record_ms
    seen_ms = math.fsum(max(0.0, model.per_record_ms - trivial_ms) for model in tried.hand_overs)
    model = replace(
        prior.model, per_record_ms=prior.model.per_record_ms + seen_ms / max(1, tried.tasks)
    )
    cpu_ms = prior.cpu_per_record_ms + seen_ms
    return replace(prior, model=model, cpu_per_record_ms=cpu_ms, slots=max(1, tried.tasks))


def _realtime_costs(observation: Observation) -> RealTimeCosts:
    """What was measured, or the prior with the work of the steps that micro-batches showed."""
    seen = known(observation.backends)
    if seen.realtime is not None:
        return seen.realtime
    prior, tried = REALTIME_PRIOR, seen.microbatch
    if tried is None:
        return prior
    seen_ms = max(0.0, tried.cpu_per_record_ms - MICROBATCH_PRIOR.cpu_per_record_ms)
    (model,) = prior.hand_overs
    model = replace(model, per_record_ms=model.per_record_ms + seen_ms)
    return replace(prior, hand_overs=(model,), slots=tried.slots, tasks=tried.slots)


def _decision(observation: Observation, taken: Offer, other: Offer, streaks: Streaks) -> Decision:
    reason = f"At {show_rate(observation.rate_per_s)} {_says(taken)}; {_against(taken, other)}."
    waiting = streaks.missed or streaks.calm
    if waiting:
        needed = MISSED_INTERVALS if streaks.missed else CALM_INTERVALS
        reason = f"{reason[:-1]}, which it is given if that lasts: interval {waiting} of {needed}."
    why_not = f"{_against(taken, other)}."
    alternative = Alternative(
        _name(other),
        None if other.obstacle else other.predicted_ms,
        why_not[0].upper() + why_not[1:],
    )
    return Decision(
        POLICY,
        replace(observation.plan, backend=taken.backend),
        reason,
        taken.predicted_ms,
        (alternative,),
        taken.constraint,
        streaks,
    )


def _name(offer: Offer) -> str:
    return "micro-batch" if offer.backend is MICROBATCH else "real-time mode"


def _says(offer: Offer) -> str:
    """What the chosen backend does, with its numbers."""
    if offer.backend is MICROBATCH:
        pace = f"every {show_duration(offer.wait_ms)}" if offer.wait_ms else "back to back"
        return f"micro-batches {pace} {_value(offer, 'keep')} for {_cost(offer)}"
    pace = f"lifetimes up to {show_duration(offer.wait_ms)}" if offer.wait_ms else "lifetime 0"
    return f"real-time mode with {pace} {_value(offer, 'keeps')} for {_cost(offer)}"


def _value(offer: Offer, keeps: str) -> str:
    goal = offer.constraint
    if goal is None:
        return f"{keeps} up"
    if math.isinf(offer.predicted_ms):
        return "would fall behind without end"
    value, bound = show_duration(offer.predicted_ms), show_duration(goal.bound_ms)
    if offer.kept_share == 0:
        return f"would have a {goal.statistic} of {value} against {bound}"
    partly = "" if offer.kept_share == 1 else f" in {offer.kept_share:.0%} of windows"
    return f"{keeps} the {goal.statistic} at {value} of {bound}{partly}"


def _cost(offer: Offer) -> str:
    guessed = "" if offer.measured else ", by costs measured elsewhere"
    return f"{offer.core_s:,.0f} core seconds an hour ({offer.cpu_s:,.0f} used{guessed})"


def _against(taken: Offer, other: Offer) -> str:
    """Why not the other one, with its numbers."""
    name = _name(other)
    if other.obstacle is not None:
        return f"{name} cannot run: {other.obstacle.rstrip('.')}"
    if not other.kept_share:
        return f"{name} {_value(other, '')}"
    saved = 1 - taken.core_s / other.core_s if other.core_s else 0.0
    if saved > 0:
        return f"{name} {_value(other, 'would keep')} for {_cost(other)}, {saved:.0%} saved"
    return f"{name} {_value(other, 'would keep')} for {_cost(other)}"
