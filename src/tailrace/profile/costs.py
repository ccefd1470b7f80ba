"""What the engine takes for a batch and for a hand-over, and the usual costs before measurement.

The usual costs are defined only here: predictions, the choice of a backend, rehearsals and the live
loop all start from them. Each names the file in ``bench/results`` that it comes from, all measured
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
    """Refuse numbers that are infinite or below zero."""
    for name in names:
        value = getattr(costs, name)
        if not 0 <= value < math.inf:
            raise InputError(
                f"The {name} of {what} cannot be {value}: give a finite number from 0 up."
            )


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """What the engine takes for a micro-batch, besides the steps.

    Every batch costs ``fixed_ms``, another ``stage_ms`` for each stage behind an exchange, and
    ``task_ms`` for each task of a stage beyond its first; every record costs ``per_record_ms`` for
    each stage that it passes. Earlier profiles have no ``task_ms`` but ``shuffle_ms``, the cost of
    having an exchange at all. ``noise`` is the coefficient of variation of a batch's duration
    around this sum. ``cpu_ms`` and ``cpu_record_ms`` are the CPU time of all processes for a batch
    and for a record, without the steps. A restart of the query, between two batches, costs
    ``restart_ms``.
    """

    fixed_ms: float
    per_record_ms: float
    stage_ms: float = 15.0
    task_ms: float = 2.5
    shuffle_ms: float = 0.0
    noise: float = 0.1
    cpu_ms: float = 40.0
    cpu_record_ms: float = 0.007
    restart_ms: float = 300.0

    def __post_init__(self) -> None:
        """Refuse impossible costs."""
        checked("a batch", self, *(item.name for item in fields(self)))

    def stages_ms(self, tasks: Sequence[int]) -> float:
        """What stages with these numbers of tasks add to every batch."""
        return math.fsum(self.launch_ms(number, n) for number, n in enumerate(tasks))

    def launch_ms(self, number: int, tasks: int) -> float:
        """What the stage of that number, from 0, adds to every batch beside its tasks' work."""
        exchange_ms = self.stage_ms if number else 0.0
        shuffled_ms = self.shuffle_ms if number == 1 else 0.0
        return exchange_ms + (tasks - 1) * self.task_ms + shuffled_ms


@dataclass(frozen=True, slots=True)
class ExecutorCosts:
    """The cost of more executors.

    They come ``start_ms`` after they were asked for. Until then the engine takes ``slowdown`` times
    as long, if they start on machines that it shares.
    """

    start_ms: float
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible costs."""
        checked("an executor", self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True)
class HandOverCosts:
    """What the engine takes for records on their way through real-time mode, besides the steps.

    A hand-over to Python costs ``fixed_ms``, and each of its records ``per_record_ms``. A record
    takes ``source_ms`` until the engine has read it, ``hop_ms`` for each exchange, besides the wait
    for the flush of its buffers, and ``sink_ms`` after the last step. Nothing flows for ``gap_ms``
    between batches.
    """

    fixed_ms: float
    per_record_ms: float
    source_ms: float = 0.1
    hop_ms: float = 0.5
    sink_ms: float = 0.3
    gap_ms: float = 60.0

    def __post_init__(self) -> None:
        """Refuse impossible costs."""
        checked("a hand-over", self, *(item.name for item in fields(self)))


USUAL_BATCH: Final = BatchCosts(28.0, 0.005)
"""A batch of one task with trivial work.

``batching.json``: back to back at 2,000 records/s there were 34.5 batches per second, 29 ms each,
and a mean latency of 42 ms, one and a half times 28. ``validate.json`` agrees: with 28 ms,
predictions of the mean in micro-batches for flows that were only measured in real-time mode are off
by 3 % (median; p90 12 %). With 20 ms they are off by 6 % (21 %), with 40 ms by 4 % (42 %). The CPU
time, 40 ms per batch and 7 us per record, is the line through the five rows of ``batching.json``,
0.3 to 35 batches per second.
"""

USUAL_HAND_OVER: Final = HandOverCosts(0.3, 0.002)
"""A hand-over to a chain with trivial work.

``validate.json``: 0.30 ms in the run of trivial steps that is used for a backend not measured yet.
``realtime.json``: at most 6.4 M records/s in full hand-overs of 2,000, one in 0.31 ms. The cost of
a record is too small to be seen in a running flow, and no benchmark measures it alone: steps that
work row by row reach 200,000 records/s, so it is below 5 us. Gaps of 30 to 110 ms were measured
between batches.
"""

USUAL_CALL_MS: Final = 0.15
"""The prior for the fixed cost of a call, with a standard deviation of the same size."""

USUAL_TASK_MS: Final = 10.0
"""What the tasks of a batch take besides steps and records, where a fit needs a given value."""
