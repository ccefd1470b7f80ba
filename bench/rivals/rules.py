"""The simplest scalers: rules with two thresholds, and constant sizes.

They are what De Matteis 2016 (section 7.2.5) compares with, and what most autoscalers still do: a
step up above one threshold, a step down below another, and no model of the effect of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.moves import ask, settling, stay, wait
from tailrace.units import show_duration

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Load, Move


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Th-Rule: units up by ``step`` above one utilisation, down below another.

    The utilisation is the offered one, ``rho = lambda*T/n``, so that an overload shows as more than
    1; or the measured one, while a backlog makes it higher. Published with 0.9 and 0.8, and also
    with 0.95 and 0.8 (De Matteis 2016, table 7.3); the step is not given there, but in its results
    sizes moved by 1.
    """

    upper: float = 0.9
    lower: float = 0.8
    step: int = 1
    name: str = "Th-Rule"

    def __post_init__(self) -> None:
        """Refuse thresholds in the wrong order."""
        _check(self.lower, self.upper, self.step)

    def decide(self, load: Load) -> Move:
        """A step up or down by the utilisation."""
        if settling(load):
            return wait(load)
        busy = max(load.busy, load.model.utilisation(load.size, load.rate_per_s))
        return _stepped(load, self, busy, f"The units are {busy:.0%} busy")


@dataclass(frozen=True, slots=True)
class LatencyRule:
    """Lat-Rule: units up by ``step`` if latency / bound is above one value, down if below another.

    Published with 1.2 and 0.8 for one machine, 1.1 and 0.8 for several (De Matteis 2016, table
    7.4). It waits until the bound is exceeded by a fifth, which is the point of the comparison. A
    step in which records waited and none was finished counts as infinite latency.
    """

    upper: float = 1.2
    lower: float = 0.8
    step: int = 1
    name: str = "Lat-Rule"

    def __post_init__(self) -> None:
        """Refuse thresholds in the wrong order."""
        _check(self.lower, self.upper, self.step)

    def decide(self, load: Load) -> Move:
        """A step up or down by the latency over its bound."""
        if settling(load):
            return wait(load)
        if load.latency_ms is None and not load.backlog:
            return stay(load, "No record arrived, so there is no latency.")
        if load.latency_ms is None:
            return _stepped(load, self, math.inf, "Records wait and none was finished")
        ratio = load.latency_ms / load.bound_ms
        said = f"The latency of {show_duration(load.latency_ms)} is {ratio:.0%} of its bound"
        return _stepped(load, self, ratio, said)


def _check(lower: float, upper: float, step: int) -> None:
    if not 0 <= lower <= upper or step < 1:
        raise InputError(
            f"A rule cannot go down below {lower}, up above {upper} and by {step} at a time: "
            "give 0 <= lower <= upper and a step of at least 1."
        )


def _stepped(load: Load, rule: ThresholdRule | LatencyRule, value: float, said: str) -> Move:
    if value > rule.upper:
        return ask(load, load.size + rule.step, f"{said}, above {rule.upper:.0%}.")
    if value < rule.lower:
        return ask(load, load.size - rule.step, f"{said}, below {rule.lower:.0%}.")
    return stay(load, f"{said}, between {rule.lower:.0%} and {rule.upper:.0%}.")


@dataclass(frozen=True, slots=True)
class Peak:
    """Always the maximum number of units: what users do who do not scale."""

    name: str = "peak"

    def decide(self, load: Load) -> Move:
        """The maximum."""
        return wait(load) if load.moving else ask(load, load.limits.most, "Always the maximum.")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant size; the best constant is what any scaler has to beat."""

    size: int
    name: str = "constant"

    def decide(self, load: Load) -> Move:
        """The same size for any load, within the limits."""
        return wait(load) if load.moving else ask(load, self.size, f"Always {self.size}.")
