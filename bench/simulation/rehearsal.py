"""A rehearsal: a scaler controls a simulated operator under a load, and every step is recorded.

The rehearsed scaler is the same object that would run on Spark. It sees loads as it would there,
with a model learned from measurements, and its moves take as long as units take to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bench.simulation.elastic import learn
from tailrace.policy.scaling.calibration import Goal
from tailrace.policy.scaling.sizing import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bench.simulation.elastic import ElasticPlant, Estimate, Measured
    from tailrace.policy.scaling.sizing import Limits, Scaler

    Floats = NDArray[np.float64]

DONE_SHARE = 0.95
"""The share of a control step's input that must be done in it (De Matteis 2016, section 7.2.3)."""


class Judged(Protocol):
    """The figures that a control step is judged by; a load and a measured step both have them."""

    @property
    def step_ms(self) -> float:
        """How long the step is."""

    @property
    def rate_per_s(self) -> float:
        """The rate of arriving records."""

    @property
    def done_per_s(self) -> float:
        """The rate of finished records."""

    @property
    def latency_ms(self) -> float | None:
        """The latency of the finished records."""

    @property
    def backlog(self) -> float:
        """Records that arrived and are not done."""


def late(step: Judged, bound_ms: float) -> bool:
    """Whether the latency over a control step breaks its bound.

    If records wait and none was finished, the first has waited for the whole step.
    """
    if step.latency_ms is None:
        return step.backlog > 0 and step.step_ms > bound_ms
    return step.latency_ms > bound_ms


def behind(step: Judged, share: float = DONE_SHARE) -> bool:
    """Whether less than this share of a control step's input was finished in it."""
    return step.done_per_s < share * step.rate_per_s


@dataclass(frozen=True, slots=True)
class RehearsedStep:
    """One control step, and the scaler's decision at its end.

    ``size`` is the number of working units at the end of the step, ``wanted`` the number requested
    by then, including this move; ``held`` is the larger, since starting units are paid for too.
    ``least_size`` is the fewest units that keep the bound at this rate in steady state, by the true
    constants; None if none do.
    """

    at_us: int
    step_ms: float
    rate_per_s: float
    done_per_s: float
    size: int
    wanted: int
    latency_ms: float | None
    backlog: float
    violated: bool
    reason: str
    predicted_ms: float | None
    least_size: int | None

    @property
    def held(self) -> int:
        """Units that are paid for."""
        return max(self.size, self.wanted)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All steps of a scaler under a load."""

    name: str
    bound_ms: float
    steps: tuple[RehearsedStep, ...]


def rehearse(
    scaler: Scaler,
    plant: ElasticPlant,
    rates: Floats,
    limits: Limits,
    *,
    bound_ms: float,
    step_ms: float,
    rng: np.random.Generator,
    size: int | None = None,
    goal: Goal = Goal.LATENCY,
) -> Rehearsal:
    """Run a plant under a scaler, with a load given by the rate in each second.

    It starts with ``size`` units, or with the fewest that keep the bound at the first rate. The
    scaler is called at the end of each control step, also while units are starting, so that it
    misses no data; but then its decision is ignored: a move is always completed first. It is not
    called while nothing has been measured yet.
    """
    truth, least, most = plant.truth, limits.least, limits.most
    if size is None:
        size = truth.least_size(float(rates[0]), bound_ms, least, most) or most
    running = plant.start(rates, limits.within(size), step_ms, rng)
    known: Estimate | None = None
    steps = []
    for _ in range(running.steps):
        seen = running.step()
        known = learn(known, seen, plant.interval_ms)
        reason, predicted_ms = "Nothing has been measured yet.", None
        if known is not None:
            move = scaler.decide(_load(seen, known, limits, bound_ms))
            reason, predicted_ms = move.reason, move.predicted_ms
            if not running.moving:
                running.move(limits.within(move.size))
        steps.append(
            RehearsedStep(
                seen.at_us,
                seen.step_ms,
                seen.rate_per_s,
                seen.done_per_s,
                seen.size,
                running.wanted,
                seen.latency_ms,
                seen.backlog,
                late(seen, bound_ms) if goal is Goal.LATENCY else behind(seen),
                reason,
                predicted_ms,
                truth.least_size(seen.rate_per_s, bound_ms, least, most),
            )
        )
    return Rehearsal(scaler.name, bound_ms, tuple(steps))


def _load(seen: Measured, known: Estimate, limits: Limits, bound_ms: float) -> Load:
    return Load(
        at_us=seen.at_us,
        step_ms=seen.step_ms,
        size=seen.size,
        limits=limits,
        bound_ms=bound_ms,
        rate_per_s=seen.rate_per_s,
        done_per_s=seen.done_per_s,
        service_ms=known.service_ms if seen.service_ms is None else seen.service_ms,
        busy=seen.busy,
        latency_ms=seen.latency_ms,
        backlog=seen.backlog,
        model=known,
        blocked=seen.blocked,
        wanted=seen.wanted,
        since_move=seen.since_move,
    )


def compare(
    scalers: Mapping[str, Callable[[], Scaler]],
    plant: ElasticPlant,
    rates: Floats,
    limits: Limits,
    *,
    bound_ms: float,
    step_ms: float,
    seed: int,
    size: int | None = None,
    goal: Goal = Goal.LATENCY,
) -> dict[str, Rehearsal]:
    """Rehearse new scalers, each under the same load with the same random numbers."""
    return {
        name: rehearse(
            fresh(),
            plant,
            rates,
            limits,
            bound_ms=bound_ms,
            step_ms=step_ms,
            rng=np.random.default_rng(seed),
            size=size,
            goal=goal,
        )
        for name, fresh in scalers.items()
    }
