"""What a controller wants done: the difference between two plans, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.plan import Backend, Chains, Plan


@dataclass(frozen=True, slots=True)
class SetInterval:
    """Start a batch at this interval; in real-time mode, the length of a batch."""

    interval_ms: float

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, interval_ms=self.interval_ms)


@dataclass(frozen=True, slots=True)
class SetLifetimes:
    """How long the open batch of each chain may wait; a chain not named does not wait."""

    lifetimes_ms: Mapping[str, float] = field(default_factory=dict)

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, lifetimes_ms=dict(self.lifetimes_ms))


@dataclass(frozen=True, slots=True)
class SetFlush:
    """Flush the buffers of shuffles at this interval."""

    flush_ms: float

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, flush_ms=self.flush_ms)


@dataclass(frozen=True, slots=True)
class SetChains:
    """Run each of these groups of steps in one hand-over to Python."""

    chains: Chains

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, chains=self.chains)


@dataclass(frozen=True, slots=True)
class SetPartitions:
    """Give steps these numbers of partitions."""

    partitions: Mapping[str, int]

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, partitions=dict(self.partitions))


@dataclass(frozen=True, slots=True)
class SetExecutors:
    """Run on this number of executors."""

    executors: int

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, executors=self.executors)


@dataclass(frozen=True, slots=True)
class SwitchBackend:
    """Continue on another backend, which starts with a plan of its own."""

    backend: Backend


Change = SetInterval | SetLifetimes | SetFlush | SetChains | SetPartitions | SetExecutors
"""What a backend can be asked to do while it runs."""

Action = Change | SwitchBackend


def changes(before: Plan, after: Plan) -> tuple[Change, ...]:
    """The actions that turn one plan into another on the same backend, cheapest first.

    Applied in turn, with ``action.on(plan)``, they give ``after``.
    """
    found: list[Change] = []
    if after.interval_ms != before.interval_ms:
        found.append(SetInterval(after.interval_ms))
    if after.lifetimes_ms != before.lifetimes_ms:
        found.append(SetLifetimes(after.lifetimes_ms))
    if after.flush_ms != before.flush_ms:
        found.append(SetFlush(after.flush_ms))
    if after.chains != before.chains:
        found.append(SetChains(after.chains))
    if after.partitions != before.partitions:
        found.append(SetPartitions(after.partitions))
    if after.executors != before.executors and after.executors is not None:
        found.append(SetExecutors(after.executors))
    return tuple(found)
