"""Which instances run on which machine, and how much they send over the network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.scale_out.etp import Dataflow


@dataclass(frozen=True, slots=True)
class Placement:
    """Machines, in the order of their ids, each with the operators of its instances.

    Instances of an operator are identical, so their order on a machine does not matter.
    """

    instances: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Sort instances, so that equal placements compare equal."""
        if not self.instances:
            raise InputError("A placement without a machine runs nothing: name at least one.")
        in_order = {machine: tuple(sorted(here)) for machine, here in self.instances.items()}
        object.__setattr__(self, "instances", in_order)

    @classmethod
    def dealt(cls, operators: Iterable[str], machines: Sequence[str]) -> Placement:
        """One instance of each given operator, dealt to the machines in turn, as in Storm."""
        here: dict[str, tuple[str, ...]] = dict.fromkeys(machines, ())
        for operator, machine in zip(operators, cycle(machines), strict=False):
            here[machine] += (operator,)
        return cls(here)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines, in the order of their ids."""
        return tuple(self.instances)

    @property
    def per_machine(self) -> int:
        """N_instances: the average number of instances per machine, rounded down.

        Each new machine has this many slots (Xu 2021, section 2.2.2), and at least one.
        """
        return max(1, sum(map(len, self.instances.values())) // len(self.instances))

    def counts(self) -> Counter[str]:
        """How many instances each operator has."""
        return Counter(operator for here in self.instances.values() for operator in here)

    def joined(self, machines: Iterable[str]) -> Placement:
        """The same placement, with empty machines added."""
        return Placement({**self.instances, **dict.fromkeys(machines, ())})

    def moved(self, operator: str, origin: str | None, machine: str) -> Placement:
        """The same placement, with one instance moved from its origin, or new if it has none."""
        here = dict(self.instances)
        if origin is not None:
            rest = list(here[origin])
            rest.remove(operator)
            here[origin] = tuple(rest)
        here[machine] += (operator,)
        return Placement(here)


def link_loads(dataflow: Dataflow, placement: Placement) -> dict[tuple[str, str], float]:
    """Records/s that one instance of an operator on a machine exchanges with other machines.

    The records of an edge are divided equally among all pairs of instances at its two ends; pairs
    on the same machine do not use the network.
    """
    total = placement.counts()
    here = {machine: Counter(names) for machine, names in placement.instances.items()}
    loads = {(name, machine): 0.0 for machine, names in here.items() for name in names}
    for (origin, target), share in dataflow.edges.items():
        rate = share * dataflow[origin].emitted_per_s
        for end, other in ((origin, target), (target, origin)):
            for machine, names in here.items():
                if end in names:
                    away = 1 - names[other] / total[other]
                    loads[end, machine] += rate / total[end] * away
    return loads
