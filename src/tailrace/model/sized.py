"""What batches would take on another number of executors.

A batch of n records on s slots takes ``D(n) = a + p*s + b*n/s`` (``batch.shared_line``): b is the
time that tasks are busy with a record, a what every batch pays, and p what it pays for each of its
tasks, to launch it or because tasks share a machine. Batches of about one size tell D, but not how
it splits into a part that shrinks with more slots and one that does not; the steps tell, for they
measure b. So ``a + p*s = D - b*n/s`` on the slots that there are, and other numbers of them tell a
from p.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from tailrace.model.batch import shared_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model.microbatch import BatchModel

LATELY = 7
"""Measurements whose median is taken for what a batch pays now. Each is a small difference of two
large times, so that one alone says little."""

ENOUGH = 4
"""Measurements on a number of tasks that make it count."""


@dataclass(frozen=True, slots=True)
class SizedBatches:
    """The batch model of a flow, asked about executors of ``cores`` each.

    ``batch_ms`` is what every batch pays and ``task_ms`` what it pays for each task, ``busy_ms``
    the time that tasks spend on a record, and ``widest`` the most tasks that share them. The
    latency is that of a constraint over ``every_ms`` (of a quantile, or the mean): ``fixed_ms``
    beside the batches, and what the model says back to back times ``ratio``, the fitting factor of
    Lohrmann 2016, eq. 4.5. Back to back, because whatever is left of the bound is spent on longer
    batches.
    """

    batch_ms: float
    busy_ms: float
    every_ms: float
    quantile: float | None = None
    cores: int = 1
    widest: int | None = None
    fixed_ms: float = 0.0
    ratio: float = 1.0
    task_ms: float = 0.0

    def on(self, size: int) -> BatchModel:
        """The batch model on ``size`` executors."""
        tasks = shared_by(size * self.cores, self.widest)
        return shared_line(self.batch_ms, self.task_ms, self.busy_ms, tasks)

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The constrained latency on ``size`` executors, back to back; 0 without records."""
        if rate_per_s <= 0:
            return 0.0
        floor_ms = self.on(size).floor_ms(rate_per_s, self.every_ms, self.quantile)
        return max(0.0, self.fixed_ms + self.ratio * floor_ms)

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """The share of time that the records would take on ``size`` executors."""
        return self.on(size).utilisation(rate_per_s)


@dataclass(frozen=True, slots=True)
class Strictest:
    """Several constraints as one: on any size and at any rate, that which uses most of its bound.

    Each is a model and a bound; latencies are given as if all of them had the bound ``bound_ms``.
    """

    constraints: tuple[tuple[SizedBatches, float], ...]
    bound_ms: float

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The largest share of a bound, times the common one."""
        each = ((model.latency_ms(size, rate_per_s), ms) for model, ms in self.constraints)
        return max(latency_ms * (self.bound_ms / ms) for latency_ms, ms in each)

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """The share of time that the records would take, whatever is to be kept."""
        model, _ = self.constraints[0]
        return model.utilisation(size, rate_per_s)


def shared_by(slots: int, widest: int | None) -> int:
    """How many tasks share the records: one per slot, up to the most that there may be."""
    return slots if widest is None else min(slots, widest)


def unshared_ms(batches: BatchModel, records: float, busy_ms: float, tasks: int) -> float:
    """The part of a batch that more tasks would not shrink: ``D - b*n/s``."""
    shared_ms = shared_line(0.0, 0.0, busy_ms, tasks).duration_ms(records)
    return max(0.0, batches.duration_ms(records) - shared_ms)


def overheads_ms(unshared: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """What every batch pays, and what for each task, from ``a + p*s`` on several numbers of tasks.

    ``unshared`` holds the tasks and the part that they do not shrink, the newest last. The slope is
    the median of those between any two numbers of tasks (Theil and Sen), never below 0, since
    measurements are few and stray; without two numbers it is 0.
    """
    by_tasks = defaultdict[int, list[float]](list)
    for tasks, value_ms in unshared:
        by_tasks[tasks].append(value_ms)
    known = sorted((tasks, median(ms)) for tasks, ms in by_tasks.items() if len(ms) >= ENOUGH)
    slopes = [(more - less) / (t - s) for (s, less), (t, more) in combinations(known, 2)]
    task_ms = max(0.0, median(slopes)) if slopes else 0.0
    lately_ms = median(value_ms - task_ms * tasks for tasks, value_ms in unshared[-LATELY:])
    return max(0.0, lately_ms), task_ms
