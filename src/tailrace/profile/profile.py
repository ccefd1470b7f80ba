"""A profile: what predictions need to know about a flow, measured under one plan.

It holds the time that each step takes for a record and the distribution of records over keys, which
are the same under any plan; and the time that the engine takes for a batch or for a hand-over to
Python, which is the same on the same machine. A profile is recorded by a flow, read from the
progress log of any query (``tailrace.profile.progress``), or written by hand for a flow that does
not exist yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.profile.costs import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.plan import Backend, Plan
    from tailrace.profile.costs import BatchCosts, ExecutorCosts, HandOverCosts


EXCHANGE = "exchange"
"""The name for the operator on a stream whose records change partition."""


class Origin(StrEnum):
    """Where a profile comes from, and so how far to trust it."""

    FLOW = "flow"
    PROGRESS = "progress"
    HAND = "hand"


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What a step does with a record, under any plan.

    A record keeps it busy for a mean of ``service_ms``, with a coefficient of variation of ``cv``;
    each Arrow batch of records takes another ``call_ms``. ``cpu_share`` of that time is spent
    computing, the rest waiting, for example for a service. ``ratio`` is how many records leave for
    each one that enters. If records are partitioned by key, ``keys`` holds the shares of the most
    frequent ones, and ``distinct`` is the number of all keys. A ``window`` of n records holds its
    results back until it is full.
    """

    name: str
    service_ms: float
    cv: float = 0.0
    call_ms: float = 0.0
    cpu_share: float = 1.0
    ratio: float = 1.0
    keyed_by: tuple[str, ...] = ()
    key_type: str = "string"
    keys: Mapping[str, float] = field(default_factory=dict)
    distinct: int = 0
    window: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        checked(f"step '{self.name}'", self, "service_ms", "cv", "call_ms", "ratio")
        shares = math.fsum(self.keys.values())
        if not 0 <= self.cpu_share <= 1 or self.window < 1 or self.distinct < 0:
            raise InputError(
                f"Step '{self.name}' of a profile has a CPU share from 0 to 1, a window of at "
                "least 1 record, and no less than 0 distinct keys."
            )
        if any(not 0 < share <= 1 for share in self.keys.values()) or shares > 1 + 1e-6:
            raise InputError(
                f"The keys of step '{self.name}' have shares that sum to {shares:.3g}: give each "
                "its share of the records, at most 1 in total."
            )


@dataclass(frozen=True, slots=True)
class Latency:
    """The measured latency, to compare a model with."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    def __post_init__(self) -> None:
        """Refuse impossible latencies."""
        checked("the latency", self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known about a flow: its steps, what the engine takes, and how it ran when measured.

    ``rate_per_s`` is the rate into the first steps, from ``source_partitions`` partitions, and
    ``cores`` how many tasks could run at once. ``batch`` and ``hand_over`` are None if the flow
    never ran in that backend; predictions for it then rest on costs measured elsewhere, and say so.
    ``executors`` is None if none came while it was measured.
    """

    name: str
    steps: tuple[StepProfile, ...]
    streams: tuple[tuple[str, str], ...]
    rate_per_s: float
    plan: Plan
    cores: int
    source_partitions: int = 1
    seconds: float = 0.0
    records: int = 0
    latency: Latency | None = None
    batch: BatchCosts | None = None
    hand_over: HandOverCosts | None = None
    executors: ExecutorCosts | None = None
    origin: Origin = Origin.HAND

    def __post_init__(self) -> None:
        """Refuse a profile whose parts do not fit together."""
        checked(f"profile '{self.name}'", self, "rate_per_s", "seconds", "records")
        if self.cores < 1 or self.source_partitions < 1:
            raise InputError(
                f"Profile '{self.name}' needs at least 1 core and 1 source partition, and has "
                f"{self.cores} and {self.source_partitions}."
            )
        known = {step.name for step in self.steps}
        for name in (name for chain in self.plan.chains for name in chain):
            if name not in known:
                raise InputError(
                    f"The plan of profile '{self.name}' chains a step '{name}' that is not one of "
                    "its steps: add the step, or take it out of the chains."
                )

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile file."""
        from tailrace.profile.file import load  # noqa: PLC0415 - it builds on this module

        return load(Path(path))

    def save(self, path: str | Path) -> None:
        """Write the profile to a file."""
        from tailrace.profile.file import save  # noqa: PLC0415 - it builds on this module

        save(self, Path(path))

    @property
    def backend(self) -> Backend:
        """The backend that it was measured in."""
        return self.plan.backend

    @property
    def graph(self) -> Graph:
        """The steps and streams as a graph, with an exchange before every keyed step."""
        keyed = {step.name: step.keyed_by for step in self.steps}
        own = {name: (1, count) for name, count in self.plan.partitions.items()}
        return graph(
            tuple(
                Step(step.name, "", scale=own.get(step.name), keyed_by=step.keyed_by)
                for step in self.steps
            ),
            tuple(
                Stream(
                    origin, target, (EXCHANGE,) if keyed.get(target) else (), keyed.get(target, ())
                )
                for origin, target in self.streams
            ),
        )

    def step(self, name: str) -> StepProfile:
        """The step with this name."""
        found = next((step for step in self.steps if step.name == name), None)
        if found is None:
            raise InputError(
                f"Profile '{self.name}' has no step '{name}': it has "
                f"{', '.join(step.name for step in self.steps)}."
            )
        return found
