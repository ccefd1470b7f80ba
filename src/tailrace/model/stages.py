"""Stages: the parts of a flow that run side by side, and how long their tasks take."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.graph import Graph
    from tailrace.plan import Plan

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """Chains that records pass without changing partition: one task for each partition."""

    chains: tuple[tuple[str, ...], ...]
    partitions: int
    keyed: bool

    @property
    def steps(self) -> tuple[str, ...]:
        """Its steps, in order."""
        return tuple(name for chain in self.chains for name in chain)


def stages_of(graph: Graph, plan: Plan, slots: int, source_partitions: int) -> list[Stage]:
    """The stages of a plan in the order in which records meet them.

    A chain opens a stage of its own where records change partition: it is keyed, has partitions
    of its own, or is not the only reader of a single input. Where ways part, each has the
    partitions that the records come in.
    """
    order = {name: number for number, name in enumerate(graph.names)}
    if sorted(name for chain in plan.chains for name in chain) != sorted(order):
        raise InputError(
            f"The chains {plan.chains} do not hold every step of the flow exactly once: "
            "start from first_plan."
        )
    stages: list[Stage] = []
    for chain in sorted(plan.chains, key=lambda chain: order[chain[0]]):
        keyed = bool(graph.keyed_by(chain[0]))
        inputs = graph.streams_to(chain[0])
        moves = keyed or chain[0] in plan.partitions or len(inputs) != 1
        origin = inputs[0].origin
        at = next((i for i, stage in enumerate(stages) if stage.chains[-1][-1] == origin), None)
        if at is None or moves or len(graph.streams_from(origin)) != 1:
            inherited = source_partitions if moves or at is None else stages[at].partitions
            follow = slots if keyed else inherited
            stages.append(Stage((chain,), plan.partitions.get(chain[0], follow), keyed))
        else:
            before = stages[at]
            stages[at] = Stage((*before.chains, chain), before.partitions, before.keyed)
    return stages


def schedule(
    task_ms: Floats, slots: int, joining: int = 0, joined_ms: float = 0.0
) -> tuple[Floats, float]:
    """When each task starts, taken in order by the slot that is free first, and the last end.

    ``joining`` more slots are free from ``joined_ms`` on.
    """
    if len(task_ms) <= slots:
        return np.zeros(len(task_ms)), float(task_ms.max())
    free = [0.0] * slots + [joined_ms] * joining
    heapq.heapify(free)
    starts_ms = np.zeros(len(task_ms))
    for number, duration_ms in enumerate(task_ms):
        starts_ms[number] = heapq.heappop(free)
        heapq.heappush(free, starts_ms[number] + float(duration_ms))
    return starts_ms, float((starts_ms + task_ms).max())


def makespan_ms(task_ms: Floats, slots: int) -> float:
    """The last end of :func:`schedule`, without the starts."""
    if len(task_ms) == 1:
        return float(task_ms[0])
    longest_ms = float(task_ms.max())
    if len(task_ms) <= slots:
        return longest_ms
    if float(task_ms.min()) == longest_ms:
        return longest_ms * -(-len(task_ms) // slots)
    free = [0.0] * slots
    for duration_ms in task_ms.tolist():
        heapq.heapreplace(free, free[0] + duration_ms)
    return max(free)
