"""A profile: what was measured of a flow under one plan, as far as predictions need it.

It says what each step takes for a record and how records spread over keys, which hold under any
plan; and what the engine takes for a batch or for a hand-over to Python, which hold on the same
machine. A profile is recorded by a flow, read from the progress log of any query
(``tailrace.profile.progress``), or written by hand for a flow that does not exist yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.flow import Graph, Step, Stream, graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.plan import Backend, Plan


EXCHANGE = "exchange"
"""What stands on a stream whose records change partition."""


class Origin(StrEnum):
    """Where a profile comes from, which says how far to trust it."""

    FLOW = "flow"
    PROGRESS = "progress"
    HAND = "hand"


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What a step does with a record, whichever plan it runs under.

    A record keeps it busy for ``service_ms`` in the mean, with a coefficient of variation of
    ``cv``, and each Arrow batch that records come in for ``call_ms`` beside; ``cpu_share`` of that
    is spent computing, the rest waiting for somebody else. ``ratio`` is how many records leave for
    each one that enters. Where records are spread by key, ``keys`` holds the shares of the most
    frequent ones, and ``distinct`` says how many there are in all. A ``window`` of n records holds
    its results back until it is full.
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
        """Refuse what no step can do."""
        _check(f"step '{self.name}'", self, "service_ms", "cv", "call_ms", "ratio")
        shares = math.fsum(self.keys.values())
        if not 0 <= self.cpu_share <= 1 or self.window < 1 or self.distinct < 0:
            raise InputError(
                f"Step '{self.name}' of a profile has a CPU share from 0 to 1, a window of at "
                "least 1 record, and no less than 0 distinct keys."
            )
        if any(not 0 < share <= 1 for share in self.keys.values()) or shares > 1 + 1e-6:
            raise InputError(
                f"The keys of step '{self.name}' have shares that sum to {shares:.3g}: give each "
                "its share of the records, 1 at most in all."
            )


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """What the engine takes for a micro-batch, beside the steps.

    Every batch pays ``fixed_ms``, ``stage_ms`` more for each stage behind an exchange, and
    ``task_ms`` for each task of a stage beyond its first; every record ``per_record_ms`` for each
    stage that it passes. Earlier profiles have no ``task_ms`` but ``shuffle_ms``, for having an
    exchange at all. ``noise`` is the coefficient of variation of a batch's duration around that.
    A restart of the query, between two batches, takes ``restart_ms``.
    ``cpu_ms`` and ``cpu_record_ms`` are the CPU time of all processes for a batch and for a record,
    without the steps.
    """

    fixed_ms: float
    per_record_ms: float
    stage_ms: float = 15.0
    task_ms: float = 2.5
    shuffle_ms: float = 0.0
    noise: float = 0.1
    cpu_ms: float = 42.0
    cpu_record_ms: float = 0.0055
    restart_ms: float = 300.0

    def __post_init__(self) -> None:
        """Refuse costs that no batch can have."""
        _check("a batch", self, *(item.name for item in fields(self)))

    def stages_ms(self, tasks: Sequence[int]) -> float:
        """What stages with so many tasks each add to every batch."""
        shuffled_ms = self.shuffle_ms if len(tasks) > 1 else 0.0
        further = sum(n - 1 for n in tasks)
        return (len(tasks) - 1) * self.stage_ms + further * self.task_ms + shuffled_ms


@dataclass(frozen=True, slots=True)
class ExecutorCosts:
    """What it takes to have more executors.

    They come ``start_ms`` after they were asked for. Until then the engine takes ``slowdown`` times
    as long, where they start on machines that it shares.
    """

    start_ms: float
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        """Refuse costs that no start can have."""
        _check("an executor", self, *(item.name for item in fields(self)))


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
        _check("a hand-over", self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency that was measured, for holding a model against it."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    def __post_init__(self) -> None:
        """Refuse latencies that cannot be."""
        _check("the latency", self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a flow: its steps, what the engine takes, and how it ran when measured.

    ``rate_per_s`` is what reached the first steps, from ``source_partitions`` partitions, and
    ``cores`` how many tasks could run at once. ``batch`` and ``hand_over`` are None where the flow
    was never seen in that backend; predictions for it then rest on costs measured elsewhere, and
    say so. ``executors`` is None where none came while it was measured.
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
        _check(f"profile '{self.name}'", self, "rate_per_s", "seconds", "records")
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
        """What it was measured in."""
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
        """The step of that name."""
        found = next((step for step in self.steps if step.name == name), None)
        if found is None:
            raise InputError(
                f"Profile '{self.name}' has no step '{name}': it has "
                f"{', '.join(step.name for step in self.steps)}."
            )
        return found


def _check(what: str, costs: object, *names: str) -> None:
    """Every one of these numbers must be finite and not below zero."""
    for name in names:
        value = getattr(costs, name)
        if not 0 <= value < math.inf:
            raise InputError(
                f"The {name} of {what} cannot be {value}: give a finite number from 0 up."
            )
