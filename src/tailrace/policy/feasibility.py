"""Honest impossibility: say early and plainly that a constraint cannot be kept, and why.

The published system goes on adapting when nothing helps any more; its predecessor at least
reports it to the user (HPDC'12, section 3.3). Here each constraint is held against the best that
any plan within reach could do, from one observation alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE
from tailrace.policy.batching import trusted_ratio
from tailrace.policy.decision import Impossible, known
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model.microbatch import BatchModel
    from tailrace.policy.decision import Observation, Reading, StepLoad

BATCH = "batch"

_MOSTLY_KEY = 0.8
_MOSTLY_SOURCE = 0.25


FAR = 2.0
"""How many times its bound a constraint must measure before a short run is held against it."""

STEADY = 0.9
"""A series comes down when its last value is below this share of the usual one before."""


def persists(values_ms: Sequence[float], floor_ms: float) -> bool:
    """Whether two values or more lie above a floor, and do not come down to it.

    Neither warm-up nor a backlog explains such a flow: cold code gets warm and a backlog gets
    shorter, batch by batch.
    """
    *earlier, last = values_ms or (0.0,)
    return bool(earlier) and min(values_ms) > floor_ms and last >= STEADY * median(earlier)


def assess(observation: Observation) -> tuple[Impossible, ...]:
    """The constraints that no plan within reach can keep, each with what dominates and a remedy.

    Within reach are every batch interval, and the partitions that the scale of a step and the
    slots still allow.
    """
    judged = (
        _from_source(observation, reading)
        if reading.constraint.from_source
        else _on_steps(observation, reading)
        for reading in observation.readings
    )
    return tuple(impossible for impossible in judged if impossible is not None)


def _from_source(observation: Observation, reading: Reading) -> Impossible | None:
    """Hold the latency back to back, with every step scaled as far as it goes, against the bound.

    ``fixed + e*floor``, for the mean over a long span ``1.5*a/(1 - rho)``. Back to back the
    records take the share rho of a batch, so what dominates is the batch itself when rho is below
    one half, or when the fixed cost misses the bound with no records at all; otherwise the work.
    """
    goal, rate = reading.constraint, observation.rate_per_s
    model = _within_reach(observation)
    ratio = trusted_ratio(observation)
    best_ms = reading.fixed_ms + ratio * model.floor_ms(rate, goal.every_ms, goal.quantile)
    late_ms = known(observation.microbatch).late_ms
    if late_ms >= goal.bound_ms:
        return _late(reading, late_ms, late_ms + best_ms)
    through = _through_per_s(observation, model)
    if through < rate and model.utilisation(rate) < 1:
        return _held_back(observation, reading, through)
    if best_ms <= goal.bound_ms:
        return None
    highest = _highest_per_s(model, reading, rate, ratio)
    if highest == 0 or model.utilisation(rate) < 0.5:
        return _batch_too_dear(reading, model, best_ms, highest)
    return _work_too_much(observation, reading, model, best_ms, highest)


def _late(reading: Reading, late_ms: float, best_ms: float) -> Impossible:
    goal, late = reading.constraint, show_duration(late_ms)
    reason = (
        f"Records are {late} old when they reach the source, so that no plan keeps the "
        f"{goal.statistic} within {show_duration(goal.bound_ms)}."
    )
    remedy = (
        f"Have them sent sooner, or loosen the bound to at least {show_duration(best_ms)}; if "
        "arrived=... names a time before they were sent, name another column."
    )
    return Impossible(goal, SOURCE, best_ms, reason, remedy)


def _through_per_s(observation: Observation, model: BatchModel) -> float:
    """How many records get through back to back, under the limit of the source."""
    most = known(observation.microbatch).most_records
    return math.inf if most is None else 1e3 * most / model.duration_ms(most)


def _held_back(observation: Observation, reading: Reading, through_per_s: float) -> Impossible:
    rate, through = show_rate(observation.rate_per_s), show_rate(through_per_s)
    most_records = known(observation.microbatch).most_records
    reason = (
        f"The source gives a batch at most {most_records:,} records, with which no "
        f"more than {through} get through, and {rate} come: they wait longer and longer."
    )
    remedy = (
        f"Raise the limit of the source (of Kafka maxOffsetsPerTrigger), or send at most {through}."
    )
    return Impossible(reading.constraint, SOURCE, math.inf, reason, remedy)


def _highest_per_s(model: BatchModel, reading: Reading, rate: float, ratio: float) -> float:
    """The highest rate that keeps the bound, for the remedy.

    While a backlog is worked off latencies exceed the model's, and that is no error of the model.
    So where the model alone says that the present rate is too high, it alone says what is not.
    """
    goal = reading.constraint
    room_ms = goal.bound_ms - reading.fixed_ms
    alone = model.highest_rate_per_s(room_ms, goal.every_ms, goal.quantile)
    if 0 < alone < rate:
        return alone
    return model.highest_rate_per_s(room_ms / ratio, goal.every_ms, goal.quantile)


def _batch_too_dear(
    reading: Reading, model: BatchModel, best_ms: float, highest_per_s: float
) -> Impossible:
    goal = reading.constraint
    best, bound = show_duration(best_ms), show_duration(goal.bound_ms)
    cost = f"A batch costs {show_duration(model.fixed_ms)} before its first record"
    reason = f"{cost}, so even back to back the {goal.statistic} is {best}, above {bound}."
    slower = f", send at most {show_rate(highest_per_s)}" if highest_per_s else ""
    remedy = f"Loosen the bound to at least {best}{slower}, or run the flow in real-time mode."
    if math.isinf(best_ms):
        reason = f"{cost}, above {bound}, and more records come than get through."
        remedy = "Send fewer records, or run the flow in real-time mode."
    return Impossible(goal, BATCH, best_ms, reason, remedy)


def _work_too_much(
    observation: Observation,
    reading: Reading,
    model: BatchModel,
    best_ms: float,
    highest_per_s: float,
) -> Impossible:
    goal, rate = reading.constraint, observation.rate_per_s
    busy = f"{model.utilisation(rate):.0%}"
    outcome = (
        "batches grow without end"
        if math.isinf(best_ms)
        else f"even back to back the {goal.statistic} is {show_duration(best_ms)}, "
        f"above {show_duration(goal.bound_ms)}"
    )
    slower = f"send at most {show_rate(highest_per_s)}"
    name = _dominant(observation)
    if name is None:
        reason = (
            f"At {show_rate(rate)} reading and Spark's own operators keep the flow {busy} busy, "
            f"so {outcome}."
        )
        remedy = f"Give the source more partitions and cores, or {slower}."
        return Impossible(goal, SOURCE, best_ms, reason, remedy)
    step = observation.steps[name]
    if step.hot_key is not None and _key_load(step) >= _MOSTLY_KEY * step.utilisation:
        reason = (
            f"Key '{step.hot_key}' has {step.hot_key_share:.0%} of the records of step '{name}' "
            f"and one partition must take them all, so at {show_rate(rate)} {outcome}."
        )
        remedy = f"More partitions cannot split one key: divide or pre-aggregate it, or {slower}."
        return Impossible(goal, f"key '{step.hot_key}' of step '{name}'", best_ms, reason, remedy)
    needed = math.ceil(_reachable(observation, name) * rate / highest_per_s)
    reason = (
        f"At {show_rate(rate)} the flow is {busy} busy, most of it in step '{name}', so {outcome}."
    )
    remedy = f"Give step '{name}' about {needed} partitions with a core each, or {slower}."
    return Impossible(goal, name, best_ms, reason, remedy)


def _on_steps(observation: Observation, reading: Reading) -> Impossible | None:
    """A path of steps alone: their own time misses the bound, with any batches."""
    goal, fixed_ms = reading.constraint, reading.fixed_ms
    path = observation.graph.path(goal.path)
    known = [name for name in path if name in observation.steps]
    if fixed_ms <= goal.bound_ms or not known:
        return None
    name = max(known, key=lambda name: observation.steps[name].service_ms)
    service = show_duration(observation.steps[name].service_ms)
    fixed, bound = show_duration(fixed_ms), show_duration(goal.bound_ms)
    reason = (
        f"The steps of the path take {fixed} by themselves, above {bound}, and step '{name}' is "
        f"the slowest with {service} a record."
    )
    remedy = f"Make step '{name}' faster, or loosen the bound to at least {fixed}."
    return Impossible(goal, name, fixed_ms, reason, remedy)


def _dominant(observation: Observation) -> str | None:
    """The step that takes most of the time of a batch, or None when the steps are not to blame."""
    loads = {name: _critical(observation, step) for name, step in observation.steps.items()}
    if sum(loads.values()) < _MOSTLY_SOURCE * _busy(observation):
        return None
    return max(loads, key=loads.__getitem__)


def _critical(observation: Observation, step: StepLoad) -> float:
    """The share of time that a batch spends on a step: its busiest partition, in every wave.

    Partitions beyond the slots run one after another.
    """
    return step.utilisation * math.ceil(step.partitions / observation.slots)


def _busy(observation: Observation) -> float:
    """The busy share of time that the records cause; above 1 it cannot be measured."""
    return min(1.0, known(observation.microbatch).model.utilisation(observation.rate_per_s))


def _key_load(step: StepLoad) -> float:
    """The utilisation that the hottest key alone gives to its partition."""
    return step.hot_key_share * step.mean_utilisation * step.partitions


def _reachable(observation: Observation, name: str) -> int:
    """The most partitions of a step that can run at once, within its scale and the slots."""
    scale, now = observation.graph.step(name).scale, observation.steps[name].partitions
    most = now if scale is None else max(now, scale[1])
    return min(most, observation.slots)


def _within_reach(observation: Observation) -> BatchModel:
    """The model with each step on as many partitions as it can have.

    A step's work then takes ``work/partitions``, but never less than its hottest key; the rest of
    the cost of a record stays.
    """
    model = known(observation.microbatch).model
    loads = {name: _critical(observation, step) for name, step in observation.steps.items()}
    total = max(sum(loads.values()), _busy(observation))
    if total == 0:
        return model
    spared = 0.0
    for name, step in observation.steps.items():
        if _reachable(observation, name) > step.partitions:
            work = step.mean_utilisation * step.partitions
            least = max(work / _reachable(observation, name), _key_load(step))
            spared += max(0.0, loads[name] - least)
    return replace(model, per_record_ms=model.per_record_ms * (1 - spared / total))
