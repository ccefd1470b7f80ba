"""Output batch lifetimes as they were published, for channels: what computed ones must come to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.policy.scaling.rebalance import SequenceBound


@dataclass(frozen=True, slots=True)
class Subtask:
    """One parallel instance of a task, with its mean latency in the last interval."""

    name: str
    task: str
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Channel:
    """One connection of a stream between two subtasks, and the output batch on it.

    ``lifetime_ms`` is how long a batch may stay open; 0 ships every item at once.
    ``batch_latency_ms`` is the mean time that items spent in an open batch, None when none came.
    A chained channel is a function call and holds no batch.
    """

    stream: str
    origin: str
    target: str
    lifetime_ms: float = 0.0
    batch_latency_ms: float | None = None
    chained: bool = False


def output_batch_targets(
    sequence: SequenceBound,
    channels: Sequence[Channel],
    subtasks: Sequence[Subtask],
    weight: float = 0.8,
) -> tuple[float | None, ...]:
    """How long items should spend in the output batch of each channel, on average.

    ``max(0, w*(bound - dsl - usl)/streams)``, where dsl and usl are the worst sums of subtask
    latencies after and before the channel (Lohrmann 2016, algorithms 1 to 3). ``weight`` is the
    share of the budget spent on batching; the rest is left to queues. None for a channel that is
    chained or not on the sequence.

    Where the published algorithms leave a sum undefined, as for a sequence that begins or ends
    with a stream, it is 0; subtasks outside the sequence do not count; a chained stream takes no
    share of the budget.
    """
    known = {channel.stream for channel in channels} | {subtask.task for subtask in subtasks}
    for element in sequence.elements:
        if element not in known:
            raise ConstraintError(
                f"There is no task or stream '{element}' to bound: name elements of the graph."
            )
    latencies = {s.name: s.latency_ms for s in subtasks if s.task in sequence.elements}
    streams = [
        found for name in sequence.elements if (found := [c for c in channels if c.stream == name])
    ]
    after = _worst_beyond(reversed(streams), latencies, downstream=True)
    before = _worst_beyond(streams, latencies, downstream=False)
    sharing = sum(1 for stream in streams if not all(c.chained for c in stream))
    return tuple(
        None
        if channel.chained or channel not in after
        else max(0.0, weight * (sequence.bound_ms - after[channel] - before[channel]) / sharing)
        for channel in channels
    )


def _worst_beyond(
    streams: Iterable[Sequence[Channel]], latencies: Mapping[str, float], *, downstream: bool
) -> dict[Channel, float]:
    """The worst sum of subtask latencies beyond each channel, from the far end inwards."""
    sums: dict[Channel, float] = {}
    reached: defaultdict[str, float] = defaultdict(float)
    for stream in streams:
        for channel in stream:
            near, far = channel.origin, channel.target
            if not downstream:
                near, far = far, near
            sums[channel] = reached[far] + latencies.get(far, 0.0)
            reached[near] = max(reached[near], sums[channel])
    return sums


def adjust_lifetimes(
    sequences: Sequence[SequenceBound],
    channels: Sequence[Channel],
    subtasks: Sequence[Subtask],
    weight: float = 0.8,
) -> tuple[Channel, ...]:
    """The channels with the lifetimes for the next interval (Lohrmann 2016, algorithm 3).

    ``lifetime = max(0, min(2*target, lifetime + target - measured))``. The mean delay in a batch
    of lifetime T lies between T/2 (dense traffic) and T (one item a batch), so twice the target
    is never too short, and stops the lifetime from running away where batches fill before they
    expire. Where several sequences share a channel, the lowest lifetime wins.
    """
    wanted: defaultdict[Channel, list[float]] = defaultdict(list)
    for sequence in sequences:
        targets = output_batch_targets(sequence, channels, subtasks, weight)
        for channel, target_ms in zip(channels, targets, strict=True):
            if target_ms is not None and channel.batch_latency_ms is not None:
                moved_ms = channel.lifetime_ms + target_ms - channel.batch_latency_ms
                wanted[channel].append(max(0.0, min(2 * target_ms, moved_ms)))
    return tuple(replace(c, lifetime_ms=min(wanted[c])) if c in wanted else c for c in channels)
