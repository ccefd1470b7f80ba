"""Adaptive output batching: batch for as long as the latency constraints afford.

Lohrmann 2016, section 4.5.3, has channels that each hold an output batch with a lifetime, and
approaches the right lifetimes step by step. Spark batches at the source: the batch interval is the
lifetime of the output batch of the stream that leaves it. The model of a batch is known, so the
interval is computed instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.policy.decision import Alternative, Decision, known
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.constraint import Constraint
    from tailrace.model.microbatch import BatchModel
    from tailrace.policy.decision import Observation, Reading

POLICY = "batching"

_LEAST_MARGIN = 0.08
_MOST_MARGIN = 0.20
_WORST_MARGIN = 0.06
_UNSETTLED_MARGIN = 0.4
_LONG_MS = 1e9
_WORTH_RAISING = 1.08
_OF_LIMIT = 0.8
_LEAST_RATIO = 0.8
_MOST_RATIO = 2.0


def predicted_ms(observation: Observation, reading: Reading, interval_ms: float) -> float:
    """What a constraint from the source would measure under an interval, at the present rate.

    ``fixed + e*(wait(C) + D(lambda*C))``, with the fitting factor e of Lohrmann 2016, eq. 4.5.
    """
    goal = reading.constraint
    raw_ms = known(observation.microbatch).model.latency_ms(
        interval_ms, observation.rate_per_s, goal.every_ms, goal.quantile
    )
    return reading.fixed_ms + trusted_ratio(observation) * raw_ms


def trusted_ratio(observation: Observation) -> float:
    """The part of the fitting factor that is worth acting on.

    The model answers for the worst window, and a window that lies better measures up to a fifth
    less. So factors from 0.8 to 1 count as 1, and lower ones only by what is below: following
    them would chase the place of the window. Above 2 it is a burst, which must not explode.
    """
    ratio = known(observation.microbatch).latency_ratio
    if ratio >= 1:
        return min(ratio, _MOST_RATIO)
    return min(1.0, max(ratio, _LEAST_RATIO**2) / _LEAST_RATIO)


def saving(
    model: BatchModel, rate_per_s: float, interval_ms: float, elapsed_ms: float
) -> tuple[float, float]:
    """The batches that an interval avoids against back to back, and the fixed cost they spare.

    ``elapsed*(1/C(0) - 1/C(T))`` batches of ``a`` ms each. Nothing where batches cost nothing
    themselves, or grow without end.
    """
    shortest_ms = model.cycle_ms(0.0, rate_per_s)
    if shortest_ms == 0 or math.isinf(shortest_ms):
        return 0.0, 0.0
    avoided = elapsed_ms * (1 / shortest_ms - 1 / model.cycle_ms(interval_ms, rate_per_s))
    return avoided, avoided * model.fixed_ms


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one constraint asks of the interval: nothing above ``longest_ms``, None if hopeless."""

    reading: Reading
    margin: float
    longest_ms: float | None

    @property
    def wanted_ms(self) -> float:
        return self.longest_ms or 0.0


def first_interval_ms(constraints: Iterable[Constraint], adjustment_ms: float) -> float:
    """The interval to begin with, before anything was measured: a third of the tightest bound.

    A sixth of the bound then goes to waiting and the rest is left to costs that are not known yet,
    for a fraction of the batches that back to back would take. Never above a tenth of the
    adjustment interval, so that the first one sees enough batches to learn from.
    """
    bounds = [c.bound_ms / 3 for c in constraints if c.from_source]
    return _tenth(min(*bounds, adjustment_ms / 10)) if bounds else 0.0


def decide(observation: Observation) -> Decision:
    """Set the longest batch interval that every constraint from the source affords.

    Each constraint aims below its bound: by 8 to 20 % for noise over a long time, and by 6 % in
    the worst window of its span, which is already the least that chance can do; the tightest wins.
    Down, the interval goes at once, when a prediction eats too much of its margin. Up, it goes when
    the gain is above 8 %, no bound is being missed, and only so far that the bound would hold
    even if the whole latency grew in proportion, which a wrong split of the batch cost into fixed
    and per-record parts cannot exceed. Between the two it rests, so that it cannot oscillate; and
    while executors start it goes down only, far enough for batches that take longer than they
    should. Where the source limits the records of a batch, no more than four fifths of the
    limit come in an interval; and while it holds some back, batches run back to back.
    """
    demands = [_demand(observation, r) for r in observation.readings if r.constraint.from_source]
    if not demands:
        reason = "No constraint starts at the source, so batches run back to back."
        return Decision(POLICY, replace(observation.plan, interval_ms=0.0), reason)
    demands.sort(key=lambda d: (d.wanted_ms, -_strain(observation, d)))
    if observation.rate_per_s <= 0:
        reason = "No records came, so the batch interval stays as it is."
        return Decision(POLICY, observation.plan, reason)
    interval_ms = _within_limit_ms(observation, _next_interval_ms(observation, demands))
    return Decision(
        POLICY,
        replace(observation.plan, interval_ms=interval_ms),
        _reason(observation, demands[0], interval_ms),
        predicted_ms(observation, demands[0].reading, interval_ms),
        tuple(_alternatives(observation, demands, interval_ms)),
        demands[0].reading.constraint,
    )


def _strain(observation: Observation, demand: _Demand) -> float:
    """The predicted value over the bound, back to back: which of two hopeless bounds is worse."""
    bound_ms = demand.reading.constraint.bound_ms
    return predicted_ms(observation, demand.reading, 0.0) / bound_ms


def _demand(observation: Observation, reading: Reading) -> _Demand:
    """The longest interval under the target of one constraint, with the guard rails applied.

    Never above twice the batching budget, as in Lohrmann 2016, algorithm 3:
    ``T <= 2*(target - D)``, or ``T <= (target - a)/(1/2 + rho)``. Never above ``every``, so that
    each span of the constraint sees a batch.
    """
    model, rate = known(observation.microbatch).model, observation.rate_per_s
    goal = reading.constraint
    margin = _margin(observation, reading)
    targets = [
        ((goal.bound_ms * (1 - kept) - reading.fixed_ms) / trusted_ratio(observation), every_ms)
        for kept, _, every_ms in _aims(goal, margin)
    ]
    longest = [model.longest_interval_ms(t, rate, every, goal.quantile) for t, every in targets]
    if None in longest:
        return _Demand(reading, margin, None)
    budgets = [(t - model.fixed_ms) / (0.5 + model.utilisation(rate)) for t, _ in targets]
    found = min(*budgets, goal.every_ms, *(ms for ms in longest if ms is not None))
    return _Demand(reading, margin, max(0.0, found))


def _aims(goal: Constraint, margin: float) -> tuple[tuple[float, float, float], ...]:
    """What to keep free of the bound, what at the least, and over which span.

    Over a long time, and in the worst window of the constraint's own span.
    """
    return (margin, margin / 2, _LONG_MS), (_WORST_MARGIN, _WORST_MARGIN / 3, goal.every_ms)


def _strained(observation: Observation, demand: _Demand, interval_ms: float) -> bool:
    """Whether an interval leaves too little of a margin, over a long time or at worst."""
    goal = demand.reading.constraint
    return any(
        predicted_ms(
            observation,
            replace(demand.reading, constraint=replace(goal, every_ms=every_ms)),
            interval_ms,
        )
        > goal.bound_ms * (1 - least)
        for _, least, every_ms in _aims(goal, demand.margin)
    )


def _margin(observation: Observation, reading: Reading) -> float:
    """The share of the bound kept free for noise: two deviations of the statistic.

    A mean averages over the batches of a span, at least ``every/(2*bound)`` of them, since an
    interval is never longer than twice the bound; a quantile is made by one unlucky batch. While
    executors start, which takes the time of machines that batches share, it is two fifths, or half
    of what batches back to back would leave: these would take the time that a start needs.
    """
    goal = reading.constraint
    if known(observation.microbatch).unsettled:
        left = 1 - predicted_ms(observation, reading, 0.0) / goal.bound_ms
        return min(max(left / 2, _LEAST_MARGIN), _UNSETTLED_MARGIN)
    batches = 1.0 if goal.quantile is not None else goal.every_ms / (2 * goal.bound_ms)
    margin = 2 * observation.noise / math.sqrt(max(1.0, batches))
    return min(max(margin, _LEAST_MARGIN), _MOST_MARGIN)


def _next_interval_ms(observation: Observation, demands: Sequence[_Demand]) -> float:
    now_ms, wanted_ms = observation.plan.interval_ms, demands[0].wanted_ms
    if known(observation.microbatch).unsettled:
        return min(now_ms, _tenth(wanted_ms))
    predictions = [(d, predicted_ms(observation, d.reading, now_ms)) for d in demands]
    beyond_span = now_ms > min(d.reading.constraint.every_ms for d in demands)
    if beyond_span or any(_strained(observation, demand, now_ms) for demand in demands):
        return _tenth(wanted_ms)
    cycle_ms = known(observation.microbatch).model.cycle_ms(now_ms, observation.rate_per_s)
    too_little = wanted_ms <= _WORTH_RAISING * cycle_ms
    if too_little or cycle_ms == 0 or any(demand.reading.violated for demand in demands):
        return now_ms
    headroom = min(d.reading.constraint.bound_ms / value_ms for d, value_ms in predictions)
    return _tenth(min(wanted_ms, cycle_ms * headroom))


def _all_taken_ms(observation: Observation) -> float:
    """The longest interval in which no more records come than the source gives a batch."""
    seen = known(observation.microbatch)
    if seen.behind:
        return 0.0
    if seen.most_records is None:
        return math.inf
    return _tenth(_OF_LIMIT * seen.most_records / observation.rate_per_s * 1e3)


def _within_limit_ms(observation: Observation, wanted_ms: float) -> float:
    """What is wanted, as far as batches then take all that comes; as it is if that is about it."""
    longest_ms, now_ms = _all_taken_ms(observation), observation.plan.interval_ms
    if wanted_ms <= longest_ms:
        return wanted_ms
    about = longest_ms / _WORTH_RAISING <= now_ms <= longest_ms * _WORTH_RAISING
    return min(now_ms, wanted_ms) if about else longest_ms


def _tenth(interval_ms: float) -> float:
    """Round down to 0.1 ms, which is as exact as an interval can be."""
    return math.floor(interval_ms * 10) / 10


def _reason(observation: Observation, tightest: _Demand, interval_ms: float) -> str:
    model, rate = known(observation.microbatch).model, observation.rate_per_s
    goal = tightest.reading.constraint
    value_ms = predicted_ms(observation, tightest.reading, interval_ms)
    cost = (
        f"At {show_rate(rate)} a batch costs {show_duration(model.fixed_ms)} + "
        f"{show_duration(model.per_record_ms)} a record; "
    )
    bound, value = show_duration(goal.bound_ms), show_duration(value_ms)
    if math.isinf(value_ms):
        busy = f"{model.utilisation(rate):.0%}"
        return f"{cost}that is {busy} of the time, so batches grow even back to back."
    if value_ms > goal.bound_ms:
        return f"{cost}even back to back the {goal.statistic} is {value}, above {bound}."
    if interval_ms >= _all_taken_ms(observation) / _WORTH_RAISING:
        return _limited(observation, interval_ms)
    if interval_ms <= model.cycle_ms(0.0, rate):
        return f"{cost}back to back the {goal.statistic} is {value} of {bound}."
    between = f"{show_duration(interval_ms)} between batches"
    held = interval_ms == observation.plan.interval_ms
    if held and tightest.reading.violated and tightest.reading.value_ms is not None:
        measured = show_duration(tightest.reading.value_ms)
        return f"{cost}{between} stay, as the {goal.statistic} was {measured}, above {bound}."
    keep = "still keep" if held else "keep"
    unsettled = known(observation.microbatch).unsettled
    room = ", with room for executors that start" if unsettled else ""
    return f"{cost}{between} {keep} the {goal.statistic} at {value} of {bound}{room}."


def _limited(observation: Observation, interval_ms: float) -> str:
    """Why batches are no longer though the bound would allow it."""
    seen = known(observation.microbatch)
    said = f"The source gives a batch at most {seen.most_records:,} records"
    if seen.behind:
        return f"{said} and holds more back, so batches run back to back."
    rate, between = show_rate(observation.rate_per_s), show_duration(interval_ms)
    return f"{said}, so at {rate} {between} between batches take all that come."


def _alternatives(
    observation: Observation, demands: Sequence[_Demand], interval_ms: float
) -> Iterable[Alternative]:
    model, rate = known(observation.microbatch).model, observation.rate_per_s
    tightest, now_ms = demands[0].reading, observation.plan.interval_ms
    shortest_ms = model.cycle_ms(0.0, rate)
    if interval_ms > shortest_ms > 0:
        per_s, instead = 1_000 / shortest_ms, 1_000 / model.cycle_ms(interval_ms, rate)
        floor_ms = predicted_ms(observation, tightest, 0.0)
        why_not = f"It costs {per_s:.3g} batches a second instead of {instead:.3g}."
        yield Alternative("back to back", floor_ms, why_not)
    if now_ms != interval_ms:
        value_ms = predicted_ms(observation, tightest, now_ms)
        shorter = now_ms < interval_ms
        why_not = "It pays for more batches than needed." if shorter else "It risks the bound."
        yield Alternative(f"stay at {show_duration(now_ms)}", value_ms, why_not)
    if len(demands) > 1:
        runner_up = demands[1]
        value_ms = predicted_ms(observation, runner_up.reading, interval_ms)
        why_not = f"It alone would allow {show_duration(runner_up.wanted_ms)} between batches."
        yield Alternative(str(runner_up.reading.constraint), value_ms, why_not)
