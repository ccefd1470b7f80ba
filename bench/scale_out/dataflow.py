"""A fluid model of a dataflow on machines: how the placement of instances affects throughput.

Records are not modelled individually; in each small step an amount of them flows. Every instance
has an unlimited queue, and its operator's input is divided equally among instances, so a slow
instance gets no help from the others. An instance works at its own speed at most, and the instances
on a machine share its cores fairly: none gets more than another that wants more. The model is
deterministic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STEP_S = 0.1
SAMPLE_S = 1.0

_RESIDENT, _MOVED, _NEW = range(3)
_ALL = (0, 2)
"""The axes of instance kinds and of machines."""


@dataclass(frozen=True, slots=True)
class FluidOperator:
    """An operator, described by one instance.

    Running alone it processes ``service_per_s`` and keeps the share ``core`` of a core busy; the
    rest of the time it waits, for example for an external service. It emits ``emits`` records for
    each one. ``offered_per_s`` is the input from outside, for all instances together.
    """

    name: str
    service_per_s: float
    core: float = 1.0
    emits: float = 1.0
    offered_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        sound = 0 < self.service_per_s < math.inf and 0 < self.core <= 1
        if not (sound and 0 <= self.emits < math.inf and 0 <= self.offered_per_s < math.inf):
            raise InputError(
                f"Operator '{self.name}' needs a service rate above 0, a share of a core above 0 "
                "and up to 1, and finite numbers of records that are not negative."
            )


@dataclass(frozen=True, slots=True)
class FluidFlow:
    """Operators, the share of output on each edge, and the cores of each machine.

    Sending a record to another machine costs the sender ``remote_ms`` of a core.
    """

    operators: tuple[FluidOperator, ...]
    edges: Mapping[tuple[str, str], float]
    cores: float = 1.0
    remote_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse edges without an end and impossible machines."""
        names = {operator.name for operator in self.operators}
        ends = {end for edge in self.edges for end in edge}
        if len(names) < len(self.operators) or not ends <= names:
            raise InputError(
                "The operators of a flow need unique names, and each edge must join two of them."
            )
        if not self.cores > 0 or not 0 <= self.remote_ms < math.inf:
            raise InputError(
                f"Machines with {self.cores} cores that take {self.remote_ms} ms to send a record "
                "are impossible: give more than 0 cores and a finite time."
            )


@dataclass(frozen=True, slots=True)
class Change:
    """A scaling operation that begins at ``at_s``, with its instances as (operator, from, to).

    A new instance has None as its origin, and gets no records before it runs. A moving instance
    takes its queue along and still gets records, which wait. Both run ``pause_s`` later.
    """

    at_s: float
    pause_s: float
    moves: Sequence[tuple[str, str | None, str]]


@dataclass(frozen=True, slots=True, eq=False)
class FluidRun:
    """The measurements, in samples of one second; ``times_s`` is when each begins.

    The rates have a row for each sample and a column for each operator, as does ``busy``, the share
    of time in which running instances had work. ``throughput_per_s`` is what the sinks process, and
    ``queued`` the records waiting at the end.
    """

    times_s: Floats
    input_per_s: Floats
    processed_per_s: Floats
    emitted_per_s: Floats
    busy: Floats
    throughput_per_s: Floats
    queued: Floats


def run(
    flow: FluidFlow,
    placement: Mapping[str, Sequence[str]],
    seconds: float,
    change: Change | None = None,
) -> FluidRun:
    """Run a flow from empty queues, given the instances on each machine by their operators.

    A record takes at least one time step, a tenth of a second, at each operator.
    """
    machines = _Machines(flow, placement, change)
    samples = round(seconds / SAMPLE_S)
    per_sample = round(SAMPLE_S / STEP_S)
    arrived = np.zeros((samples * per_sample, len(flow.operators)))
    processed, busy = np.zeros_like(arrived), np.zeros_like(arrived)
    emits = np.array([operator.emits for operator in flow.operators])
    offered = np.array([operator.offered_per_s for operator in flow.operators]) * STEP_S
    coming = offered
    for step in range(len(arrived)):
        if change is not None:
            machines.keep_time(change, step * STEP_S)
        arrived[step] = coming
        processed[step], busy[step] = machines.step(coming)
        coming = offered + (processed[step] * emits) @ machines.shares
    came, went, worked = (
        part.reshape(samples, per_sample, -1).sum(1) / SAMPLE_S
        for part in (arrived, processed, busy * STEP_S)
    )
    origins = {origin for origin, _ in flow.edges}
    sinks = [operator.name not in origins for operator in flow.operators]
    return FluidRun(
        np.arange(samples, dtype=np.float64) * np.float64(SAMPLE_S),
        came,
        went,
        went * emits,
        worked,
        went[:, sinks].sum(1),
        machines.queues.sum(_ALL),
    )


class _Machines:
    """Instances and their queues, by kind (resident, moved, new), operator and machine."""

    def __init__(
        self, flow: FluidFlow, placement: Mapping[str, Sequence[str]], change: Change | None
    ) -> None:
        moves = change.moves if change else ()
        self._flow = flow
        self._index = {operator.name: place for place, operator in enumerate(flow.operators)}
        names = dict.fromkeys((*placement, *(target for _, _, target in moves)))
        self._place = {name: place for place, name in enumerate(names)}
        used = {operator for here in placement.values() for operator in here}
        unknown = (used | {operator for operator, _, _ in moves}) - set(self._index)
        if unknown or used != set(self._index):
            raise InputError(
                "Every operator of the flow needs an instance on some machine, and no other can "
                f"have one: check {', '.join(sorted(unknown | used ^ set(self._index)))}."
            )
        shape = (3, len(self._index), len(names))
        self._count = np.zeros(shape)
        self.queues = np.zeros(shape)
        self.shares = np.zeros((len(self._index), len(self._index)))
        for (origin, target), share in flow.edges.items():
            self.shares[self._index[origin], self._index[target]] = share
        for name, here in placement.items():
            for operator in here:
                self._count[_RESIDENT, self._index[operator], self._place[name]] += 1
        self._begun = self._ended = False
        self._settle()

    def keep_time(self, change: Change, now_s: float) -> None:
        """Begin the change, and end its pause, when they are due."""
        rounding = STEP_S / 2
        if not self._begun and now_s > change.at_s - rounding:
            self._begun = True
            self._move(change.moves)
            self._settle()
        if self._begun and not self._ended and now_s > change.at_s + change.pause_s - rounding:
            self._ended = True
            self._settle()

    def _move(self, moves: Sequence[tuple[str, str | None, str]]) -> None:
        for operator, origin, target in moves:
            row, there = self._index[operator], self._place[target]
            if origin is None:
                self._count[_NEW, row, there] += 1
                continue
            here = _RESIDENT, row, self._place.get(origin, there)
            if origin not in self._place or self._count[here] < 1:
                raise InputError(
                    f"There is no instance of '{operator}' left on {origin} to move: "
                    "name each as often as it is placed there."
                )
            along = self.queues[here] / self._count[here]
            self.queues[here] -= along
            self._count[here] -= 1
            self.queues[_MOVED, row, there] += along
            self._count[_MOVED, row, there] += 1

    def _settle(self) -> None:
        """Update which instances run, their shares of the input, and their cost of a record."""
        running = np.array([True, self._ended, self._ended])
        addressed = np.array([True, True, self._ended])
        self._active = self._count * running[:, None, None]
        gets = self._count * addressed[:, None, None]
        total = gets.sum(_ALL, keepdims=True)
        self._part = gets / total
        operators = self._flow.operators
        service = np.array([1 / operator.service_per_s for operator in operators])
        core = np.array([operator.core for operator in operators])
        emits = np.array([operator.emits for operator in operators])
        away = 1 - self._part.sum(0)
        sending = emits[:, None] * (self.shares @ away) * self._flow.remote_ms / 1e3
        self._busy_s = service[:, None] + sending
        self._core_s = (core * service)[:, None] + sending

    def step(self, coming: Floats) -> tuple[Floats, Floats]:
        """Add the input of each operator; returns what is processed, and how busy instances are."""
        self.queues += self._part * coming[:, None]
        wanted_s = np.minimum(self.queues * self._busy_s, self._active * STEP_S)
        wanted = wanted_s / self._busy_s * self._core_s / STEP_S
        flat = (-1, wanted.shape[-1])
        granted = fair_shares(
            wanted.reshape(flat), self._active.reshape(flat), self._flow.cores
        ).reshape(wanted.shape)
        done = np.minimum(granted * STEP_S / self._core_s, self.queues)
        self.queues -= done
        running_s = np.maximum(self._active.sum(_ALL), 1.0) * STEP_S
        return done.sum(_ALL), wanted_s.sum(_ALL) / running_s


def fair_shares(wanted: Floats, counts: Floats, cores: float) -> Floats:
    """The cores that each group of instances (row) gets on each machine (column).

    Processor sharing: there is a level that no instance exceeds, and instances that want less get
    all they want. With groups sorted by what one instance wants, the level is the maximum of what
    would be left for each of the remaining instances if all earlier groups got what they want: this
    rises while groups want less than the level, and falls after that.
    """
    each = np.divide(wanted, counts, out=np.zeros_like(wanted), where=counts > 0)
    order = np.argsort(each, axis=0)
    in_order = np.take_along_axis(wanted, order, 0)
    members = np.take_along_axis(counts, order, 0)
    before = np.cumsum(in_order, axis=0) - in_order
    rest = np.cumsum(members[::-1], axis=0)[::-1]
    level: Floats = ((cores - before) / np.maximum(rest, 1.0)).max(axis=0)
    shares: Floats = np.minimum(wanted, counts * level)
    return shares
