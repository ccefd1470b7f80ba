"""Batches in a simulation: micro-batches on a cluster, and hand-overs to Python.

Both collect records and process them together, in ``a + c*n`` for n records; they differ in when a
batch is cut and in how many may be in progress at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.simulation import kernels
from bench.simulation.chance import Purpose, checked_arrivals, seeded
from bench.simulation.pauses import merged
from bench.simulation.simulated import Batches, Simulated, StationUse, warm_up_records
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.model.microbatch import BatchModel
    from tailrace.model.realtime import HandOverModel

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageTasks:
    """The tasks of a stage in a micro-batch, one for each partition.

    Of a batch of n records, ``n * selectivity * shares[p]`` go to partition p, whose task takes
    ``task_ms`` plus ``per_record_ms`` for each of them.
    """

    shares: tuple[float, ...]
    per_record_ms: float
    task_ms: float = 0.0
    selectivity: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an impossible stage."""
        costs = (*self.shares, self.per_record_ms, self.task_ms, self.selectivity)
        if not self.shares or not all(0 <= cost < math.inf for cost in costs):
            raise InputError(
                f"The stage {self} is impossible: give it a partition and finite numbers from 0 up."
            )


def micro_batches(
    arrivals_ms: Floats,
    model: BatchModel,
    interval_ms: float,
    *,
    stages: Sequence[StageTasks] = (),
    slots: int = 1,
    most: int | None = None,
    noise: float = 0.0,
    poll_ms: float = 10.0,
    aligned: bool = False,
    pauses: Sequence[tuple[float, float]] = (),
    counts: Indices | None = None,
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """Records in micro-batches, one batch at a time, from time 0 on.

    A batch is cut one interval after the previous one (``aligned``: at the next multiple of the
    interval, like Spark's own trigger), but not before that one is done; interval 0 is back to
    back. It takes the records that have arrived, up to ``most``. If there are none, the query polls
    again an interval later, or after ``poll_ms`` if back to back. Nothing is cut during a pause.

    A batch of n records takes ``D(n) = a + c*n``, by the model, plus its stages in sequence: each
    takes as long as its tasks on the ``slots``, in order of partitions (adapted from Cooper 2020:
    the makespan accounts for skew). ``noise`` is the coefficient of variation of the total,
    lognormal. All records of a batch are done at its end. With ``counts`` an arrival stands for
    that many records, which ``most`` may split.
    """
    comes = checked_arrivals(arrivals_ms)
    costs = (interval_ms, noise, poll_ms)
    reached = np.cumsum(np.ones(len(comes), np.int64) if counts is None else _counts(counts, comes))
    limit = int(reached[-1]) if most is None else most
    if not all(0 <= cost < math.inf for cost in costs) or min(slots, limit) < 1:
        raise InputError(
            "An interval, noise and a poll must be finite numbers from 0 up, and slots and the "
            "most records of a batch at least 1."
        )
    room = len(comes) + int(reached[-1]) // limit + 1
    batches = Batches(np.empty(room), np.empty(room), np.empty(room, np.int64))
    number = kernels.micro_batches(
        comes,
        reached,
        (float(model.fixed_ms), float(model.per_record_ms)),
        np.array([s.task_ms for s in stages for _ in s.shares], np.float64),
        np.array(
            [s.per_record_ms * s.selectivity * p for s in stages for p in s.shares], np.float64
        ),
        np.cumsum([len(s.shares) for s in stages], dtype=np.int64),
        slots,
        (float(interval_ms), float(poll_ms), aligned),
        limit,
        float(noise),
        merged(pauses),
        seeded(seed, Purpose.NOISE),
        batches.cuts_ms,
        batches.ends_ms,
        batches.records,
    )
    batches = _trimmed(batches, number)
    if counts is None:
        rows = np.arange(len(comes))
        of = np.repeat(np.arange(number), batches.records)
        weights = None
    else:
        done = np.cumsum(batches.records)
        edges = np.union1d(reached[reached > 0], done)
        rows, of = np.searchsorted(reached, edges), np.searchsorted(done, edges)
        weights = np.diff(edges, prepend=0).astype(np.float64)
    return _batched("batch", comes[rows], batches, of, weights, warm_up=warm_up)


def _counts(counts: Indices, comes: Floats) -> Indices:
    given = np.asarray(counts, dtype=np.int64)
    if given.shape != comes.shape or given.min() < 0 or not given.sum():
        raise InputError(
            f"{len(comes)} arrivals cannot stand for {given.size} counts of records: give a count "
            "from 0 up for each, and at least one record."
        )
    return given


def hand_overs(
    arrivals_ms: Floats,
    model: HandOverModel,
    lifetime_ms: float,
    *,
    window: int = 1,
    noise: float = 0.0,
    pauses: Sequence[tuple[float, float]] = (),
    seed: int = 0,
    warm_up: float | None = None,
) -> Simulated:
    """Records handed over to Python in real-time mode, by one task.

    They collect in an open batch, which is sent when it is a lifetime old or full, but not while
    ``window`` hand-overs are in progress; the work on n records takes ``S(n) = a + c*n``, with
    lognormal noise of coefficient of variation ``noise``. Records that find the open batch full
    wait and enter the next. Nothing enters during a pause (see ``gaps``): earlier records are sent
    at its start, and records that arrive during it enter at its end.
    """
    comes = checked_arrivals(arrivals_ms)
    if not (0 <= lifetime_ms < math.inf and 0 <= noise < math.inf and window >= 1):
        raise InputError(
            f"A lifetime of {lifetime_ms} ms with noise {noise} and {window} hand-overs under way "
            "is impossible: give finite numbers from 0 up and at least 1 hand-over."
        )
    count = len(comes)
    batches = Batches(np.empty(count), np.empty(count), np.empty(count, np.int64))
    number = kernels.hand_overs(
        comes,
        (float(model.fixed_ms), float(model.per_record_ms)),
        float(lifetime_ms),
        model.most,
        window,
        float(noise),
        merged(pauses),
        seeded(seed, Purpose.NOISE),
        batches.cuts_ms,
        batches.ends_ms,
        batches.records,
    )
    batches = _trimmed(batches, number)
    of = np.repeat(np.arange(number), batches.records)
    return _batched("hand-over", comes, batches, of, None, warm_up=warm_up)


def _trimmed(batches: Batches, number: int) -> Batches:
    """Only the actual batches, without the unused rest of the arrays."""
    return Batches(
        batches.cuts_ms[:number].copy(),
        batches.ends_ms[:number].copy(),
        batches.records[:number].copy(),
    )


def _batched(
    name: str,
    comes: Floats,
    batches: Batches,
    of: Indices,
    weights: Floats | None,
    *,
    warm_up: float | None,
) -> Simulated:
    """The result for arrivals, where ``of`` is the batch of each."""
    begins, end_ms = batches.begins_ms, float(batches.ends_ms[-1])
    latencies = batches.ends_ms[of] - comes
    skipped = warm_up_records(latencies, warm_up)
    first, since_ms = int(of[skipped]), float(comes[skipped])
    heavy = (np.ones(len(comes)) if weights is None else weights)[skipped:]
    records = float(heavy.sum())
    wait_ms = float((begins[of] - comes)[skipped:] @ heavy) / records
    busy = (batches.ends_ms - begins)[first:]
    share = float(busy.sum()) / max(end_ms - float(begins[first]), 1e-300)
    use = StationUse(name, records, share, share, wait_ms, float(busy.mean()))
    throughput = records / max(end_ms - since_ms, 1e-300) * 1e3
    return Simulated(comes, latencies, (use,), throughput, skipped, weights, batches)
