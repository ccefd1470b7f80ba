"""How much a plan can take: the rate at which it saturates, and at which a bound breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.constraint import only_constraint
from tailrace.model.predict import LEAST_RATE_PER_S, Predictor
from tailrace.units import finite, show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

TO = 0.002
"""How finely the rate at which a bound breaks is looked for."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rates that a plan can take.

    ``saturation_per_s`` is where a backlog begins to grow without end; ``bound_per_s`` the highest
    at which the constraint is kept, 0 if none is, None without a constraint.
    """

    plan: Plan
    saturation_per_s: float
    bound_per_s: float | None
    constraint: Constraint | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        """The capacity as plain data."""
        bounded = self.constraint is not None
        return {
            "plan": self.plan.as_json(),
            "saturation_per_s": finite(self.saturation_per_s, 3),
            "bound_per_s": finite(self.bound_per_s, 3),
            "bound": str(self.constraint) if bounded else None,
            "reason": self.reason,
        }


def capacity(
    profile: Profile,
    plan: Plan | None = None,
    *,
    every: str | float = "5 s",
    **bound: str | float,
) -> Capacity:
    """What a plan can take before it saturates, and before it breaks a bound, as ``p99="1 s"``."""
    return capacity_for(profile, plan, only_constraint(bound, every))


def capacity_for(
    profile: Profile, plan: Plan | None = None, constraint: Constraint | None = None
) -> Capacity:
    """The same for a constraint.

    Latency does not fall as the rate grows, but for lifetimes that fill sooner; the highest rate
    below saturation that keeps the bound is found by bisection from there down.
    """
    predict = Predictor(profile)
    idle = predict(plan, LEAST_RATE_PER_S)
    saturation = idle.outcome.highest_per_s
    if idle.obstacle is not None and saturation == 0:
        return Capacity(idle.plan, 0.0, 0.0 if constraint else None, constraint, idle.obstacle)
    above = predict(plan, 1.001 * saturation) if math.isfinite(saturation) else None
    reason = above.obstacle if above is not None and above.obstacle else "Nothing saturates."
    if constraint is None:
        return Capacity(idle.plan, saturation, None, None, reason)
    found = _highest_within(predict, plan, constraint, saturation)
    shown = show_rate(found) if found else "no rate"
    bound = show_duration(constraint.bound_ms)
    said = f"The {constraint.statistic} stays within {bound} up to {shown}. {reason}"
    return Capacity(idle.plan, saturation, found, constraint, said)


def _highest_within(
    predict: Predictor, plan: Plan | None, constraint: Constraint, saturation_per_s: float
) -> float:
    def kept(rate_per_s: float) -> bool:
        value_ms = predict(plan, rate_per_s).statistic_ms(constraint.quantile)
        return value_ms <= constraint.bound_ms

    high = min(saturation_per_s, 1e9)
    low = high
    while not kept(low):
        low, high = low / 2, low
        if low < LEAST_RATE_PER_S:
            return 0.0
    while high - low > TO * low:
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low
