"""Effective throughput percentage: how much of the final throughput an operator holds back.

Xu 2021, chapter 2 (Stela). An operator is congested if it gets more records than it processes.
Speeding it up helps only the sinks that its records reach without passing another congested
operator; their share of the total throughput is its ETP. Only measured rates and the graph are
needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONGESTED_ABOVE = 1.2
"""The ratio of input to processing above which an operator counts as congested, as published."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The measurements of an operator, summed over its instances.

    ``input_per_s`` is the rate of its input, which for a source comes from outside.
    ``emitted_per_s`` is the rate of its output. It may have up to ``most`` instances. Each record
    that a sink processes counts ``weight`` times.

    ``able_per_s`` is the rate that it could process with more input, if known. Otherwise it is
    assumed to be at its limit, as in the original; then any operator whose projected input rises by
    more than the congestion threshold looks congested.
    """

    name: str
    input_per_s: float
    processed_per_s: float
    emitted_per_s: float
    instances: int = 1
    most: int | None = None
    weight: float = 1.0
    able_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible rates and numbers."""
        figures = (self.input_per_s, self.processed_per_s, self.emitted_per_s, self.weight)
        if not all(0 <= figure < math.inf for figure in figures):
            raise InputError(
                f"Operator '{self.name}' needs rates and a weight that are finite and not "
                "negative: measure them again."
            )
        if self.instances < 1 or (self.most is not None and self.most < self.instances):
            raise InputError(
                f"Operator '{self.name}' cannot run as {self.instances} of at most {self.most} "
                "instances: give at least 1, and no more than the maximum."
            )
        if self.able_per_s is not None and not self.processed_per_s <= self.able_per_s < math.inf:
            raise InputError(
                f"Operator '{self.name}' processes {self.processed_per_s:g} records/s, so it is "
                f"able to do more than {self.able_per_s:g}: give at least what it processes."
            )

    @property
    def congestion(self) -> float:
        """Input over processing, not over output: a filter is not congested.

        Infinite if there is input but nothing is processed, and 0 without input.
        """
        if self.processed_per_s > 0:
            return self.input_per_s / self.processed_per_s
        return math.inf if self.input_per_s > 0 else 0.0

    @property
    def has_room(self) -> bool:
        """Whether it may have another instance."""
        return self.most is None or self.instances < self.most


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Operators, in the order of their ids, and the share of the origin's output on each edge.

    A child that gets a copy of everything has a share of 1. One threshold decides which operators
    are congested.
    """

    operators: tuple[Operator, ...]
    edges: Mapping[tuple[str, str], float]
    congested_above: float = CONGESTED_ABOVE

    def __post_init__(self) -> None:
        """Refuse anything but an acyclic graph."""
        names = {operator.name for operator in self.operators}
        if not names or len(names) < len(self.operators):
            raise InputError("A dataflow needs operators with unique names.")
        for edge, share in self.edges.items():
            if not names.issuperset(edge):
                raise InputError(
                    f"The edge from '{edge[0]}' to '{edge[1]}' does not join two operators of the "
                    "dataflow: add the operator, or drop the edge."
                )
            if not 0 <= share < math.inf:
                raise InputError(
                    f"The edge from '{edge[0]}' to '{edge[1]}' cannot carry {share} of the "
                    "output: give a share that is not negative."
                )
        if not 1 <= self.congested_above < math.inf:
            raise InputError(
                f"A congestion threshold of {self.congested_above} would call operators congested "
                "that keep up: give at least 1."
            )
        try:
            self.order()
        except CycleError as error:
            raise InputError(
                f"The dataflow has a cycle ({' -> '.join(error.args[1])}): break it, since "
                "throughput at the sinks has no meaning there."
            ) from error

    def __getitem__(self, name: str) -> Operator:
        """The operator with this name."""
        return next(operator for operator in self.operators if operator.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names, in the order of their ids."""
        return tuple(operator.name for operator in self.operators)

    def children(self) -> dict[str, list[str]]:
        """The operators that each operator sends records to."""
        found: dict[str, list[str]] = {name: [] for name in self.names}
        for origin, target in self.edges:
            found[origin].append(target)
        return found

    def parents(self) -> dict[str, list[str]]:
        """The operators that each operator gets records from."""
        found: dict[str, list[str]] = {name: [] for name in self.names}
        for origin, target in self.edges:
            found[target].append(origin)
        return found

    def order(self) -> tuple[str, ...]:
        """The names, parents before children."""
        return tuple(TopologicalSorter(self.parents()).static_order())

    def sources(self) -> tuple[Operator, ...]:
        """The operators without parents."""
        parents = self.parents()
        return tuple(operator for operator in self.operators if not parents[operator.name])

    def sinks(self) -> tuple[Operator, ...]:
        """The operators without children."""
        children = self.children()
        return tuple(operator for operator in self.operators if not children[operator.name])

    def congested(self) -> tuple[Operator, ...]:
        """The operators whose input exceeds what they process by more than the threshold."""
        return tuple(o for o in self.operators if o.congestion > self.congested_above)

    @property
    def throughput_per_s(self) -> float:
        """The weighted sum of what the sinks process."""
        return math.fsum(sink.weight * sink.processed_per_s for sink in self.sinks())


def etp(dataflow: Dataflow) -> dict[str, float]:
    """The ETP of every operator: the share of throughput at its effectively reachable sinks.

    A sink is effectively reachable over a path on which no operator after the first is congested
    (Xu 2021, eq. 2.1). The published recursion (algorithm 2.1) sums over children and so counts a
    sink once for each path to it, which exceeds 100 % in a diamond. Here the set of sinks is
    collected for each operator, from the last to the first.
    """
    total = dataflow.throughput_per_s
    if total == 0:
        return dict.fromkeys(dataflow.names, 0.0)
    congested = {operator.name for operator in dataflow.congested()}
    children = dataflow.children()
    worth = {sink.name: sink.weight * sink.processed_per_s for sink in dataflow.sinks()}
    reached: dict[str, frozenset[str]] = {}
    for name in reversed(dataflow.order()):
        free = (reached[child] for child in children[name] if child not in congested)
        reached[name] = frozenset({name}) if name in worth else frozenset[str]().union(*free)
    return {
        name: math.fsum(worth[sink] for sink in reached[name]) / total for name in dataflow.names
    }


def projected(dataflow: Dataflow, more: Mapping[str, int]) -> Dataflow:
    """The projected rates with ``more`` instances of each operator.

    With another instance, an operator with k instances could process (k+1)/k as much as before (Xu
    2021, section 2.2.5), and emits in proportion: never more than its input supports, whereas in
    the original the output grows regardless of input. Additional output goes to the children. A
    source without a backlog sets its own pace, so its input rises too; a source with a backlog is
    limited by its input.
    """
    before = {operator.name: operator for operator in dataflow.operators}
    parents = dataflow.parents()
    after: dict[str, Operator] = {}
    for name in dataflow.order():
        operator, extra = before[name], more.get(name, 0)
        growth = (operator.instances + extra) / operator.instances
        able = operator.processed_per_s if operator.able_per_s is None else operator.able_per_s
        incoming = operator.input_per_s + math.fsum(
            dataflow.edges[parent, name]
            * (after[parent].emitted_per_s - before[parent].emitted_per_s)
            for parent in parents[name]
        )
        if not parents[name] and incoming <= operator.processed_per_s:
            incoming = max(incoming, operator.processed_per_s * growth)
        processed = max(operator.processed_per_s, min(able * growth, incoming))
        risen = processed / operator.processed_per_s if operator.processed_per_s > 0 else 1.0
        after[name] = replace(
            operator,
            input_per_s=incoming,
            processed_per_s=processed,
            emitted_per_s=operator.emitted_per_s * risen,
            instances=operator.instances + extra,
            able_per_s=able * growth,
        )
    return replace(dataflow, operators=tuple(after[name] for name in dataflow.names))
