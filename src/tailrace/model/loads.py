"""How a workload falls on the stages of a plan: what every chain of every partition has to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.model.keys.keytypes import read_key
from tailrace.model.keys.routing import KeyHistogram, Shares, Workload, arrivals, shares
from tailrace.model.stages import stages_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.graph import Graph
    from tailrace.model.stages import Stage
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile, StepProfile

    Floats = NDArray[np.float64]

KEPT = 256
"""How many ways of laying a workload are kept."""

SOME_KEYS = 1_000
"""How many keys share the rest if they were not counted."""


@dataclass(frozen=True, slots=True, eq=False)
class StageLoad:
    """A stage under load.

    ``rates_per_s`` holds the records that enter each of its partitions, and ``busy`` the share of
    time that each step keeps one task busy, by partition; above 1 the step cannot keep up.
    """

    stage: Stage
    rates_per_s: Floats
    busy: dict[str, Floats]

    def chain_busy(self, chain: tuple[str, ...]) -> Floats:
        """The same for the steps of a chain together, which take turns."""
        together: Floats = np.sum([self.busy[name] for name in chain], axis=0)
        return together


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """A whole flow under load.

    ``entering`` are the rates of every step, by partition, and ``leaving_per_s`` is that of all
    sinks. ``call_ms`` is what an Arrow batch takes in each beside its records, and ``copies`` how
    many of its records come of one of the source.
    """

    rate_per_s: float
    cores: int
    stages: tuple[StageLoad, ...]
    entering: dict[str, Floats]
    leaving_per_s: float
    call_ms: dict[str, float]
    copies: dict[str, float]
    assumed_even: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[int]:
        """How many tasks each stage has."""
        return [load.stage.partitions for load in self.stages]

    def busiest(self) -> tuple[str, int, float]:
        """The step whose task saturates first, its partition, and how busy that is."""
        found = [
            (name, int(np.argmax(busy)), float(busy.max()))
            for load in self.stages
            for name, busy in load.busy.items()
        ]
        return max(found, key=lambda item: item[2])


class Router:
    """Lays the workload of one flow on the stages of any plan.

    What does not depend on the plan is found once, where keys fall once for each number of
    partitions, and rates once for plans that differ only in cores or waits, so that thousands of
    plans can be looked at in a second.
    """

    def __init__(self, profile: Profile) -> None:
        """For the flow of that profile."""
        self.profile = profile
        self.graph = profile.graph
        self._ratios = {
            (stream.origin, stream.target): profile.step(stream.origin).ratio
            for stream in self.graph.streams
            if stream.origin in self.graph.names
        }
        self._copies = _copies(profile, self.graph)
        self._keyed = frozenset(n for n in self.graph.names if self.graph.keyed_by(n))
        self._shares: dict[tuple[str, int], Shares | None] = {}
        self._laid: dict[tuple[object, ...], Loads] = {}

    def loads(self, plan: Plan, rate_per_s: float) -> Loads:
        """What a plan makes of a rate: rates by partition (Cooper 2020, section 4.8), and work."""
        cores = plan.cores or self.profile.cores
        follow = 0 if self._keyed <= plan.partitions.keys() else cores
        place = plan.chains, tuple(sorted(plan.partitions.items())), follow, rate_per_s
        if place not in self._laid:
            if len(self._laid) >= KEPT:
                self._laid.clear()
            self._laid[place] = self._lay(plan, rate_per_s, cores)
        return replace(self._laid[place], cores=cores)

    def _lay(self, plan: Plan, rate_per_s: float, cores: int) -> Loads:
        """The same, found anew: cores matter only to keyed steps without partitions."""
        profile, graph = self.profile, self.graph
        stages = stages_of(graph, plan, cores, profile.source_partitions)
        own = {s.chains[0][0]: s.partitions for s in stages if _moves(s, plan, graph)}
        routes = {
            (stream.origin, name): shares
            for name, partitions in own.items()
            if (shares := self.shares(name, partitions)) is not None
            for stream in graph.streams_to(name)
        }
        source = [rate_per_s / profile.source_partitions] * profile.source_partitions
        found = arrivals(graph, Workload(source, self._ratios, routes), own)
        entering = {name: found.per_partition(name) for name in graph.names}
        loads = tuple(
            StageLoad(
                stage,
                entering[stage.chains[0][0]],
                {
                    name: entering[name] * profile.step(name).service_ms / 1e3
                    for name in stage.steps
                },
            )
            for stage in stages
        )
        call_ms = {step.name: step.call_ms for step in profile.steps}
        leaving = sum(found.total(sink) for sink in graph.sinks)
        even = found.assumed_even
        return Loads(rate_per_s, cores, loads, entering, leaving, call_ms, self._copies, even)

    def shares(self, name: str, partitions: int) -> Shares | None:
        """How the keys of a step fall on partitions; None where they are not known."""
        place = name, partitions
        if place not in self._shares:
            histogram = histogram_of(self.profile.step(name))
            self._shares[place] = None if histogram is None else shares(histogram, partitions)
        return self._shares[place]


def _copies(profile: Profile, graph: Graph) -> dict[str, float]:
    """How many records of each step come of one of the source, or of the last one that merged."""
    found: dict[str, float] = {}
    for name in graph.names:
        origins = [s.origin for s in graph.streams_to(name)]
        before = [max(1.0, found[o] * profile.step(o).ratio) for o in origins if o in found]
        found[name] = max(before, default=1.0)
    return found


def _moves(stage: Stage, plan: Plan, graph: Graph) -> bool:
    """Whether records change partition on their way into a stage."""
    first = stage.chains[0][0]
    return stage.keyed or first in plan.partitions or len(graph.streams_to(first)) != 1


def histogram_of(step: StepProfile) -> KeyHistogram | None:
    """The keys of a step, with the crowd of those that were not counted one by one."""
    if not step.keyed_by or not step.keys:
        return None
    rest = max(0.0, 1.0 - sum(step.keys.values()))
    others = step.distinct - len(step.keys) if step.distinct else SOME_KEYS
    kinds = tuple(step.key_type.split(";"))
    kind = kinds if len(kinds) > 1 else step.key_type
    heavy = {read_key(text, kind): share for text, share in step.keys.items()}
    if rest < 1e-9 or others <= 0:
        return KeyHistogram(kind, heavy)
    return KeyHistogram(kind, heavy, rest, others)
