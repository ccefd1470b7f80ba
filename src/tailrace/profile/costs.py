"""What the engine takes for a batch and for a hand-over, and what is usual before it was measured.

The usual costs stand here and nowhere else: predictions, the choice of a backend, rehearsals and
the live loop all begin with them. Each says which file of ``bench/results`` it was measured in, all
on one machine with 2 cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def checked(what: str, costs: object, *names: str) -> None:
    """Refuse a number that is not finite, or below zero."""
    for name in names:
        value = getattr(costs, name)
        if not 0 <= value < math.inf:
            raise InputError(
                f"The {name} of {what} cannot be {value}: give a finite number from 0 up."
            )


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """What the engine takes for a micro-batch, beside the steps.

    Every batch pays ``fixed_ms``, ``stage_ms`` more for each stage behind an exchange, and
    ``task_ms`` for each task of a stage beyond its first; every record ``per_record_ms`` for each
    stage that it passes. Earlier profiles have no ``task_ms`` but ``shuffle_ms``, for having an
    exchange at all. ``noise`` is the coefficient of variation of a batch's duration around that.
    ``cpu_ms`` and ``cpu_record_ms`` are the CPU time of all processes for a batch and for a record,
    without the steps.
    """

    fixed_ms: float
    per_record_ms: float
    stage_ms: float = 15.0
    task_ms: float = 2.5
    shuffle_ms: float = 0.0
    noise: float = 0.1
    cpu_ms: float = 40.0
    cpu_record_ms: float = 0.007

    def __post_init__(self) -> None:
        """Refuse costs that no batch can have."""
        checked("a batch", self, *(item.name for item in fields(self)))

    def stages_ms(self, tasks: Sequence[int]) -> float:
        """What stages with so many tasks each add to every batch."""
        return math.fsum(self.launch_ms(number, n) for number, n in enumerate(tasks))

    def launch_ms(self, number: int, tasks: int) -> float:
        """What the stage of that number, from 0, adds to every batch beside its tasks' work."""
        exchange_ms = self.stage_ms if number else 0.0
        shuffled_ms = self.shuffle_ms if number == 1 else 0.0
        return exchange_ms + (tasks - 1) * self.task_ms + shuffled_ms


@dataclass(frozen=True, slots=True)
class HandOverCosts:
    """What the engine takes for records on their way through real-time mode, beside the steps.

    A hand-over to Python pays ``fixed_ms``, each of its records ``per_record_ms``. A record takes
    ``source_ms`` until the engine has read it, ``hop_ms`` for each exchange beside the wait for
    the sweep, and ``sink_ms`` after the last step. Nothing flows for ``gap_ms`` between batches.
    """

    fixed_ms: float
    per_record_ms: float
    source_ms: float = 0.1
    hop_ms: float = 0.5
    sink_ms: float = 0.3
    gap_ms: float = 60.0

    def __post_init__(self) -> None:
        """Refuse costs that no hand-over can have."""
        checked("a hand-over", self, *(item.name for item in fields(self)))


USUAL_BATCH: Final = BatchCosts(28.0, 0.005)
"""A batch that is one task of trivial work.

``batching.json``: back to back at 2,000 records/s there were 34.5 batches a second, 29 ms each, and
a mean latency of 42 ms, one and a half times 28. ``validate.json`` agrees: predicted with 28 ms,
flows that were only seen in real-time mode have a mean in micro-batches that is off by 3 % (median;
p90 12 %). The same with 20 ms is 6 % (21 %), with 40 ms 4 % (42 %). The CPU time, 40 ms a batch and
7 us a record, is the line through the five rows of ``batching.json``, 0.3 to 35 batches a second.
"""

USUAL_HAND_OVER: Final = HandOverCosts(0.3, 0.002)
"""A hand-over to a chain of trivial work.

``validate.json``: 0.30 ms in the run of trivial steps that stands in for a backend not seen yet.
``realtime.json``: at most 6.4 M records/s in full hand-overs of 2,000, one in 0.31 ms. What a
record costs is too small to be told apart in a running flow, and no benchmark measures it alone:
steps that take row by row come to 200,000 records/s, so that it is below 5 us. Gaps of 30 to
110 ms were seen between batches.
"""

USUAL_CALL_MS: Final = 0.15
"""What a call of a step takes by itself, give or take as much, until calls say something else."""

USUAL_TASK_MS: Final = 10.0
"""What the tasks of a batch take beside steps and records, as far as a fit has to be given one."""
