"""Rankings of running instances for moving to a new machine: the rivals of ETP.

They move instances and create none (Xu 2021, section 2.3.3). Each ranks the movable instances, by
operator and machine; the lowest rank moves first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.scale_out.placement import link_loads
from tailrace.units import show_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.scale_out.etp import Dataflow
    from bench.scale_out.placement import Placement


@dataclass(frozen=True, slots=True)
class Rank:
    """The sort key of an instance, and the reason as half a sentence."""

    key: tuple[float, ...]
    said: str


Ranks = dict[tuple[str, str], Rank]
Ranking = Callable[["Dataflow", "Placement", str], Ranks]
"""Maps a dataflow, its placement and the machine to fill to the rank of every instance."""


def _wherever(placement: Placement, ranks: Mapping[str, Rank]) -> Ranks:
    """Ranks that do not depend on the machine."""
    return {
        (operator, machine): ranks[operator]
        for machine, here in placement.instances.items()
        for operator in here
    }


def _hops(ways: Mapping[str, Iterable[str]], starts: Iterable[str]) -> dict[str, int]:
    """The number of edges between each operator and the nearest start."""
    hops = dict.fromkeys(starts, 0)
    waiting = list(hops)
    for name in waiting:
        for further in ways[name]:
            if further not in hops:
                hops[further] = hops[name] + 1
                waiting.append(further)
    return hops


def _nearest_source(dataflow: Dataflow, placement: Placement, _machine: str) -> Ranks:
    hops = _hops(dataflow.children(), (source.name for source in dataflow.sources()))
    ranks = {name: Rank((far,), f"{far} hops from a source") for name, far in hops.items()}
    return _wherever(placement, ranks)


def _nearest_sink(dataflow: Dataflow, placement: Placement, _machine: str) -> Ranks:
    hops = _hops(dataflow.parents(), (sink.name for sink in dataflow.sinks()))
    ranks = {name: Rank((far,), f"{far} hops from a sink") for name, far in hops.items()}
    return _wherever(placement, ranks)


def _descendants(dataflow: Dataflow, placement: Placement, _machine: str) -> Ranks:
    children = dataflow.children()
    below = {name: len(_hops(children, (name,))) - 1 for name in dataflow.names}
    ranks = {name: Rank((-many,), f"{many} descendants") for name, many in below.items()}
    return _wherever(placement, ranks)


def _centrality(dataflow: Dataflow, placement: Placement, _machine: str) -> Ranks:
    children, parents = dataflow.children(), dataflow.parents()
    degrees = {name: len(children[name]) + len(parents[name]) for name in dataflow.names}
    ranks = {name: Rank((-many,), f"{many} edges") for name, many in degrees.items()}
    return _wherever(placement, ranks)


def _least_link_load(dataflow: Dataflow, placement: Placement, machine: str) -> Ranks:
    """Neighbours of instances on the new machine first, then those that send least."""
    children, parents = dataflow.children(), dataflow.parents()
    there = placement.instances[machine]
    ranks: Ranks = {}
    for (operator, origin), load in link_loads(dataflow, placement).items():
        near = sum(other in children[operator] or other in parents[operator] for other in there)
        said = f"{near} neighbours there, {show_rate(load)} over the network"
        ranks[operator, origin] = Rank((-near, load), said)
    return ranks


def _most_link_load(dataflow: Dataflow, placement: Placement, machine: str) -> Ranks:
    least = _least_link_load(dataflow, placement, machine)
    return {
        instance: Rank(tuple(-part for part in rank.key), rank.said)
        for instance, rank in least.items()
    }


RANKINGS: dict[str, Ranking] = {
    "nearest-source": _nearest_source,
    "nearest-sink": _nearest_sink,
    "descendants": _descendants,
    "centrality": _centrality,
    "least-link-load": _least_link_load,
    "most-link-load": _most_link_load,
}
