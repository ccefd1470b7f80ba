"""What a controller wants done: the difference between two plans, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.plan import Backend, Chains, Plan


@dataclass(frozen=True, slots=True)
class SetInterval:
    """Cut a batch that often; in real-time mode, have batches last that long."""

    interval_ms: float

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, interval_ms=self.interval_ms)


@dataclass(frozen=True, slots=True)
class SetLifetimes:
    """Let the open batch of each chain wait that long; at once where it is not named."""

    lifetimes_ms: Mapping[str, float] = field(default_factory=dict)

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, lifetimes_ms=dict(self.lifetimes_ms))


@dataclass(frozen=True, slots=True)
class SetFlush:
    """Sweep the buffers of shuffles that often."""

    flush_ms: float

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, flush_ms=self.flush_ms)


@dataclass(frozen=True, slots=True)
class SetChains:
    """Run these steps together in one hand-over to Python each."""

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
    """Run on that many executors."""

    executors: int

    def on(self, plan: Plan) -> Plan:
        """The plan after it."""
        return replace(plan, executors=self.executors)


@dataclass(frozen=True, slots=True)
class SwitchBackend:
    """Go on with another backend, which begins with a plan of its own."""

    backend: Backend


Change = SetInterval | SetLifetimes | SetFlush | SetChains | SetPartitions | SetExecutors
"""What a backend can be asked for while it runs."""

Action = Change | SwitchBackend


def changes(before: Plan, after: Plan) -> tuple[Change, ...]:
    """What makes one plan of another on the same backend, in the order of price.

    Applied one after the other they give ``after``: ``action.on(plan)``.
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
