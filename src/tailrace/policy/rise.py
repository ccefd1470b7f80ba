"""The early reaction: shorter waits at once when a rate rises, not only when the interval is over.

What a plan rests on may be a whole interval old. Until the next one is complete, a step in the load
would be answered by waits that are too long for it. Nothing else changes before that, and nothing
gets longer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.policy import batching, handover

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.policy.decision import Decision, Observation

LEAST_RISE = 0.1
"""Rates that rise by a smaller share are within the margins of every plan."""

LIKELY, SURE = 3.0, 5.0
"""How many deviations above the known rate one must be for what is free, and for what is dear.

A rate is looked at over three spans after every batch, a few times a second: chance exceeds three
deviations every few minutes, which makes batches a little shorter for a moment, and five in days.
"""


def decide(observation: Observation) -> Decision:
    """Shorten the batch interval, or the lifetimes of hand-overs, as far as a rise asks for it.

    The observation has the rates of the moment. The plan stays where any of its waits would get
    longer: that waits for the end of the interval.
    """
    now = observation.plan
    if observation.realtime is None:
        wanted = batching.decide(observation)
        plan = replace(now, interval_ms=min(now.interval_ms, wanted.plan.interval_ms))
        return replace(wanted, plan=plan)
    wanted = handover.decide(observation)
    lifetimes_ms = wanted.plan.lifetimes_ms
    shorter = all(ms <= now.lifetimes_ms.get(name, 0.0) for name, ms in lifetimes_ms.items())
    return replace(wanted, plan=replace(now, lifetimes_ms=lifetimes_ms) if shorter else now)


def clear_rise(
    known_per_s: float, known_s: float, lately_per_s: float, lately_s: float, deviations: float
) -> bool:
    """Whether a rate that was counted lately is clearly above the known one.

    Clearly: by more than a tenth, and by more than ``deviations`` standard deviations of the
    difference of two Poisson counts at one rate, counted over ``lately_s`` and over ``known_s``.
    """
    if known_per_s <= 0:
        return lately_per_s > 0
    chance = math.sqrt((1 / lately_s + 1 / known_s) / known_per_s)
    return lately_per_s > known_per_s * (1 + max(LEAST_RISE, deviations * chance))


def risen_rate(
    known_per_s: float,
    known_s: float,
    counts: Iterable[tuple[float, float]],
    deviations: float,
) -> float:
    """The rate of the first count, as records and seconds, that is a clear rise; else the known.

    A small rise takes longer to tell from chance than a large one: so there are several counts,
    the shortest first.
    """
    for records, seconds in counts:
        # A single batch, or a clock that was set back, gives no time to count over.
        if seconds > 0 and clear_rise(known_per_s, known_s, records / seconds, seconds, deviations):
            return records / seconds
    return known_per_s
