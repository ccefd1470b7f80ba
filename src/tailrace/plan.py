"""Plan: one complete physical configuration of a flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.flow import Graph

Chains = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a flow runs: how often a batch is cut, which steps share a chain, on how many tasks.

    ``interval_ms`` of 0 means back to back. ``partitions`` holds the steps that have a number of
    partitions of their own; the others follow what flows into them.
    """

    interval_ms: float = 0.0
    chains: Chains = ()
    partitions: dict[str, int] = field(default_factory=dict)

    def chain_of(self, step: str) -> tuple[str, ...]:
        """The chain that a step runs in."""
        return next(chain for chain in self.chains if step in chain)

    def as_json(self) -> dict[str, object]:
        """The plan as plain data for reports and logs."""
        return {
            "interval_ms": round(self.interval_ms, 1),
            "chains": [list(chain) for chain in self.chains],
            "partitions": dict(self.partitions),
        }


def first_plan(graph: Graph, interval_ms: float, slots: int) -> Plan:
    """The plan that a flow starts with: chained as far as can be, a partition for every slot.

    Chained, because a chain saves a hand-over to Python for every step after its first; it is
    taken apart when measurement shows that one task cannot carry it. A step with a scale of its
    own gets as many partitions as there are slots, as far as its scale allows.
    """
    partitions = {
        step.name: min(max(slots, step.scale[0]), step.scale[1])
        for step in graph.steps
        if step.scale is not None
    }
    return Plan(interval_ms, graph.primary_chains(), partitions)
