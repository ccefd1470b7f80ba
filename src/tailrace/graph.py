"""The graph of a pipeline: its named steps and the streams between them.

A pipeline is an ordinary function over DataFrames; only the steps that matter have a name. What
Spark does between two of them (filters, joins, aggregations) is a property of the stream that
connects them. Constraints, chains and decisions all refer to this graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.constraint import SINK, SOURCE, is_sink
from tailrace.errors import ConstraintError, InputError, TraceError


class OnError(StrEnum):
    """What to do with a record on which a step raises."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Step:
    """A named operator.

    ``scale`` limits its number of partitions; without it, the step has the partitions of its input.
    A step that is ``keyed_by`` columns keeps state for every key, and has its own partitions; one
    that is ``timed`` also acts as time passes, without a record. ``formerly`` is the name of its
    state in checkpoints of earlier versions of the pipeline.
    """

    name: str
    schema: str
    chain: bool = True
    scale: tuple[int, int] | None = None
    on_error: OnError = OnError.FAIL
    keyed_by: tuple[str, ...] = ()
    timed: bool = False
    formerly: str | None = None

    def __post_init__(self) -> None:
        """Refuse names and numbers that cannot work."""
        if not self.name or self.name == SOURCE or is_sink(self.name):
            raise InputError(
                f"A step cannot be called {self.name!r}: give it a unique name, other than "
                f"'{SOURCE}' and '{SINK}'."
            )
        if self.scale is not None:
            low, high = self.scale
            if not 1 <= low <= high:
                raise InputError(
                    f"The scale {self.scale} of step '{self.name}' is not a range of partitions: "
                    "write (smallest, largest) with 1 <= smallest <= largest."
                )


@dataclass(frozen=True, slots=True)
class Stream:
    """What flows from one step to the next, with what Spark does on the way.

    ``native`` names Spark's own operators between the two, nearest to the origin first, and
    ``keyed_by`` the columns by which the last of them partitions records.
    """

    origin: str
    target: str
    native: tuple[str, ...] = ()
    keyed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps in the order in which records meet them, and the streams that connect them.

    The graph starts at ``source`` and ends at ``sink``, or at ``sink:<name>`` for each of several
    outputs.
    """

    steps: tuple[Step, ...]
    streams: tuple[Stream, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps, in order."""
        return tuple(step.name for step in self.steps)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The ends of the graph."""
        ends = (s.target for s in self.streams if is_sink(s.target))
        return tuple(dict.fromkeys(ends))

    def step(self, name: str) -> Step:
        """The step with this name."""
        return next(step for step in self.steps if step.name == name)

    def streams_from(self, name: str) -> tuple[Stream, ...]:
        """The streams that leave a step or the source."""
        return tuple(stream for stream in self.streams if stream.origin == name)

    def streams_to(self, name: str) -> tuple[Stream, ...]:
        """The streams that enter a step or a sink."""
        return tuple(stream for stream in self.streams if stream.target == name)

    def forks(self) -> frozenset[str]:
        """The steps, and perhaps the source, whose records are read more than once."""
        origins = [stream.origin for stream in self.streams]
        return frozenset(name for name in origins if origins.count(name) > 1)

    def keyed_by(self, name: str) -> tuple[str, ...]:
        """The columns by which the input of a step is partitioned, if it is."""
        return next((s.keyed_by for s in self.streams_to(name) if s.keyed_by), ())

    def primary_chains(self) -> tuple[tuple[str, ...], ...]:
        """The longest possible chains, with every step in exactly one of them.

        Two consecutive steps can share a chain when there is no Spark operator between them, the
        first has no other reader and the second no other input, both may be chained, and the second
        does not ask for its own partitions (Lohrmann 2016, section 4.7.2).
        """
        chains: list[list[str]] = []
        for step in self.steps:
            before = self._chainable_before(step)
            home = next((c for c in chains if before is not None and c[-1] == before), None)
            if home is None:
                chains.append([step.name])
            else:
                home.append(step.name)
        return tuple(tuple(chain) for chain in chains)

    def _chainable_before(self, step: Step) -> str | None:
        inputs = self.streams_to(step.name)
        if len(inputs) != 1 or inputs[0].native or not step.chain or step.scale is not None:
            return None
        origin = inputs[0].origin
        if origin == SOURCE or len(self.streams_from(origin)) != 1:
            return None
        return origin if self.step(origin).chain else None

    def path(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Every step from the first to the last of ``names``, including ``source`` and ``sink``.

        Names between the ends choose a branch. A broken or ambiguous path is refused, with the
        reason.
        """
        for name in names:
            if name not in (SOURCE, SINK, *self.names, *self.sinks):
                raise ConstraintError(
                    f"There is no step '{name}' on this flow: a path can name "
                    f"{', '.join((SOURCE, *self.names, *self.sinks))}."
                )
        if len(names) == 1 and names[0] not in self.names:
            raise ConstraintError(
                f"'{names[0]}' alone is a point, not a path: name where the path starts and ends."
            )
        if names == (SOURCE, SINK):
            return (SOURCE, *self.names, SINK)  # the whole flow, with all its branches
        whole = [names[0]]
        for target in names[1:]:
            found = self._ways(whole[-1], target)
            if not found:
                raise ConstraintError(
                    f"No stream leads from '{whole[-1]}' to '{target}': name the steps of a path "
                    "in the order in which records meet them."
                )
            if len(found) > 1:
                raise ConstraintError(
                    f"Several ways lead from '{whole[-1]}' to '{target}': name a step between "
                    "them, or the output, to choose one."
                )
            whole.extend(found.pop())
        return tuple(whole)

    def _ways(self, start: str, target: str) -> set[tuple[str, ...]]:
        """Every way from ``start`` (excluded) to ``target``; ``sink`` means any of the sinks.

        Two streams between the same steps, as in a self-join, are one way.
        """
        ways: set[tuple[str, ...]] = set()
        for stream in self.streams_from(start):
            here = stream.target
            if here == target or (target == SINK and is_sink(here)):
                ways.add((here,))
            else:
                ways.update((here, *rest) for rest in self._ways(here, target))
        return ways


def graph(steps: tuple[Step, ...], streams: tuple[Stream, ...]) -> Graph:
    """A graph, with its steps in the order in which records meet them.

    Refuses duplicate names, since they would be ambiguous.
    """
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(
                f"Two steps are called '{name}': give each step of a flow a unique name."
            )
    ordered: list[Step] = []
    waiting = list(steps)
    placed = {SOURCE}
    while waiting:
        ready = [
            step
            for step in waiting
            if all(s.origin in placed for s in streams if s.target == step.name)
        ]
        if not ready:
            circle = ", ".join(step.name for step in waiting)
            raise TraceError(
                f"The steps {circle} feed each other in a circle: a flow is a graph without cycles."
            )
        ordered.extend(ready)
        placed.update(step.name for step in ready)
        waiting = [step for step in waiting if step.name not in placed]
    return Graph(tuple(ordered), streams)
