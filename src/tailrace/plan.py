"""Plan: one complete physical configuration of a flow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tailrace.errors import InputError

if TYPE_CHECKING:
    from tailrace.graph import Graph

Chains = tuple[tuple[str, ...], ...]


FLUSH_MS = 1.0
"""How often the buffers of a shuffle are flushed unless a bound allows a longer time."""


class Backend(StrEnum):
    """What runs a flow."""

    MICROBATCH = "microbatch"
    REALTIME = "realtime"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a flow runs: how often a batch is cut, which steps share a chain, on how many tasks.

    ``interval_ms`` of 0 means back to back. ``partitions`` holds the steps that have their own
    number of partitions; the others take over the partitions of their input. In real-time mode the
    interval is the length of a real-time batch, ``lifetimes_ms`` maps the name of a chain to how
    long its open batch may wait before it is handed over (at once if not set), and ``flush_ms`` is
    how often the buffers of a shuffle are flushed.

    ``cores`` is how many tasks run at once, ``executors`` the number of processes that run them,
    and ``row_limit`` the most records that a micro-batch takes; None means whatever Spark gives the
    flow.
    """

    interval_ms: float = 0.0
    chains: Chains = ()
    partitions: dict[str, int] = field(default_factory=dict)
    backend: Backend = Backend.MICROBATCH
    lifetimes_ms: dict[str, float] = field(default_factory=dict)
    flush_ms: float = FLUSH_MS
    cores: int | None = None
    row_limit: int | None = None
    executors: int | None = None

    def __post_init__(self) -> None:
        """Refuse a plan that cannot run."""
        waits = (self.interval_ms, self.flush_ms, *self.lifetimes_ms.values())
        if not all(0 <= wait < math.inf for wait in waits):
            raise InputError(f"A plan cannot wait as in {self}: give finite times from 0 ms up.")
        counts = {
            "cores": self.cores,
            "a row limit": self.row_limit,
            "executors": self.executors,
        }
        counts |= {f"partitions for step '{name}'": n for name, n in self.partitions.items()}
        for what, count in counts.items():
            if count is not None and count < 1:
                raise InputError(f"A plan with {count} as {what} cannot run: give at least 1.")

    def chain_of(self, step: str) -> tuple[str, ...]:
        """The chain that a step runs in."""
        return next(chain for chain in self.chains if step in chain)

    def as_json(self) -> dict[str, object]:
        """The plan as plain data for reports and logs."""
        shown: dict[str, object] = {
            "backend": str(self.backend),
            "interval_ms": round(self.interval_ms, 1),
            "chains": [list(chain) for chain in self.chains],
            "partitions": dict(self.partitions),
        }
        if self.backend is Backend.REALTIME:
            waits = {name: round(ms, 2) for name, ms in self.lifetimes_ms.items()}
            shown |= {"lifetimes_ms": waits, "flush_ms": self.flush_ms}
        if self.cores is not None:
            shown["cores"] = self.cores
        if self.row_limit is not None:
            shown["row_limit"] = self.row_limit
        if self.executors is not None:
            shown["executors"] = self.executors
        return shown


def chain_name(chain: tuple[str, ...]) -> str:
    """What a chain is called in plans, measurements and reports."""
    return "+".join(chain)


def first_plan(graph: Graph, interval_ms: float, slots: int) -> Plan:
    """The plan that a flow starts with: chained as far as possible, one partition per slot.

    Chaining saves a hand-over to Python for every step after the first of a chain; a chain is split
    when measurements show that it is too much for one task. A step with its own scale, or with
    state, gets as many partitions as there are slots, within the limits of its scale.
    """
    partitions = {}
    for step in graph.steps:
        if step.scale is not None or step.keyed_by:
            low, high = step.scale or (1, slots)
            partitions[step.name] = min(max(slots, low), high)
    return Plan(interval_ms, graph.primary_chains(), partitions)
