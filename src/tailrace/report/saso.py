"""The quality of a scaler's run: stability, accuracy, settling time and overshoot (SASO).

The four properties of De Matteis 2016 (sections 5.4 and 7.2.3), with the cost of the run. A run is
a sequence of control steps, simulated or measured on Spark; any beginning of it can be summarised
too, so that the figures are available during the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.table import Table

from tailrace.errors import InputError
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.control import IntervalRecord

CHANGE = 0.1
"""The load counts as changed if the rate differs by more than this share from the last level."""


class Sized(Protocol):
    """One control step of an elastic run, simulated or measured."""

    @property
    def at_us(self) -> int:
        """When it ended."""

    @property
    def step_ms(self) -> float:
        """How long it was."""

    @property
    def size(self) -> int:
        """How many units were working at its end."""

    @property
    def held(self) -> int:
        """How many units were paid for."""

    @property
    def rate_per_s(self) -> float:
        """The arrival rate of records."""

    @property
    def latency_ms(self) -> float | None:
        """The constrained latency; None when no record was finished."""

    @property
    def violated(self) -> bool:
        """Whether it missed its goal, as ``policy.scaling.rehearsal`` judges latency or rate."""

    @property
    def least_size(self) -> int | None:
        """The fewest units that would have kept the bound; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class SizedStep:
    """A control step as data, for runs other than rehearsals.

    ``starting`` units are paid for but not working yet.
    """

    at_us: int
    step_ms: float
    size: int
    rate_per_s: float
    latency_ms: float | None
    violated: bool
    least_size: int | None = None
    starting: int = 0

    @property
    def held(self) -> int:
        """Units that are paid for."""
        return self.size + self.starting


@dataclass(frozen=True, slots=True)
class Saso:
    """The figures of one run.

    * Stability: ``reconfigurations``, the steps whose size differs from the step before.
    * Accuracy: ``violations``, the steps that missed their goal.
    * Settling time: ``settling_s``, from a change of the load to the last move before the next
      change, the mean over changes that were followed by a move; and ``amplitude``, the mean
      number of units changed by a reconfiguration, which is how the thesis measures settling (the
      larger, the sooner it has settled). Both are 0 if there were no moves.
    * Overshoot: units above the fewest that would have kept the bound, as mean and as maximum,
      over the steps where that is known; None if it never is. The thesis uses ``mean_size``.
    * Cost: ``core_seconds``, including units that were still starting.
    """

    steps: int
    reconfigurations: int
    violations: int
    settling_s: float
    amplitude: float
    overshoot_mean: float | None
    overshoot_max: int | None
    mean_size: float
    core_seconds: float

    @property
    def violation_share(self) -> float:
        """The share of steps that missed their goal."""
        return self.violations / self.steps

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        over = self.overshoot_mean
        return {
            "reconfigurations": self.reconfigurations,
            "violations": self.violations,
            "settling_s": round(self.settling_s, 1),
            "amplitude": round(self.amplitude, 2),
            "overshoot": None if over is None else round(over, 2),
            "overshoot_max": self.overshoot_max,
            "mean_executors": round(self.mean_size, 2),
            "core_seconds": round(self.core_seconds, 1),
        }


def saso(steps: Sequence[Sized], *, cores: int = 1, change: float = CHANGE) -> Saso:
    """Summarise a run, or its finished part; each unit has ``cores`` cores."""
    if not steps:
        raise InputError("There is no control step to summarise: wait until the first one is over.")
    moves = [abs(after.size - before.size) for before, after in pairwise(steps)]
    moves = [move for move in moves if move]
    over = [max(0, s.size - s.least_size) for s in steps if s.least_size is not None]
    settled = _settling_s(steps, change)
    return Saso(
        steps=len(steps),
        reconfigurations=len(moves),
        violations=sum(step.violated for step in steps),
        settling_s=float(np.mean(settled)) if settled else 0.0,
        amplitude=float(np.mean(moves)) if moves else 0.0,
        overshoot_mean=float(np.mean(over)) if over else None,
        overshoot_max=max(over) if over else None,
        mean_size=float(np.mean([step.size for step in steps])),
        core_seconds=sum(step.held * step.step_ms for step in steps) * cores / 1e3,
    )


def _settling_s(steps: Sequence[Sized], change: float) -> list[float]:
    """For each change of the load that is followed by moves, the time to the last of them.

    A change happens at the start of the first step whose rate differs by more than ``change`` from
    the rate of the last change, or of the first step.
    """
    settled: list[float] = []
    rate, changed_us, last_us = steps[0].rate_per_s, None, None
    for before, step in pairwise(steps):
        if abs(step.rate_per_s - rate) > change * rate:
            if changed_us is not None and last_us is not None:
                settled.append((last_us - changed_us) / 1e6)
            rate, changed_us, last_us = step.rate_per_s, step.at_us - step.step_ms * 1e3, None
        if step.size != before.size:
            last_us = step.at_us
    if changed_us is not None and last_us is not None:
        settled.append((last_us - changed_us) / 1e6)
    return settled


def sized_steps(history: Sequence[IntervalRecord], cores: int = 1) -> list[SizedStep]:
    """The intervals of a run as control steps; units are executors with ``cores`` cores each."""
    return [
        SizedStep(
            at_us=record.start_us + round(record.every_ms * 1e3),
            step_ms=record.every_ms,
            size=record.slots // cores,
            rate_per_s=record.rate_per_s,
            latency_ms=record.latency_ms.mean if record.records else None,
            violated=any(not verdict.fulfilled for verdict in record.verdicts),
            least_size=record.needed,
            starting=max(0, (record.plan.executors or 0) - record.slots // cores),
        )
        for record in history
    ]


def table(named: Mapping[str, Saso]) -> Table:
    """The figures of several runs side by side, one in a row.

    In its columns: reconfigurations; steps that missed the goal, and their share; the settling
    time; by how many units a move went; the overshoot in the mean and at most; the mean size; and
    core-seconds.
    """
    shown = Table(title="Stability, accuracy, settling, overshoot", title_justify="left", padding=0)
    shown.add_column("policy")
    columns = ("moves", "missed", "share", "settling", "by")
    for column in (*columns, "over", "most", "size", "core s"):
        shown.add_column(column, justify="right")
    for name, found in named.items():
        mean, most = found.overshoot_mean, found.overshoot_max
        shown.add_row(
            name,
            str(found.reconfigurations),
            str(found.violations),
            f"{found.violation_share:.1%}",
            show_duration(found.settling_s * 1e3) if found.settling_s else "-",
            f"{found.amplitude:.2f}" if found.reconfigurations else "-",
            "-" if mean is None else f"{mean:.2f}",
            "-" if most is None else str(most),
            f"{found.mean_size:.2f}",
            f"{found.core_seconds:,.0f}",
        )
    return shown
