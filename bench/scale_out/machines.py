"""Which operators get the slots of new machines, and which machines to give back.

Xu 2021, chapter 2 (Stela): the user says how many machines to add or remove. The slots of new
machines go, one by one, to the congested operator with the highest effective throughput percentage
(ETP); the machine to remove is the one whose instances have the lowest. All other instances stay
where they are. A plan only describes what to do, with the reason for each step; it is applied as a
whole or not at all.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bench.scale_out.etp import etp, projected
from bench.scale_out.placement import Placement
from bench.scale_out.rankings import RANKINGS
from tailrace.errors import InputError
from tailrace.units import show_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.scale_out.etp import Dataflow, Operator

ETP = "etp"
ROUND_ROBIN = "round-robin"
STRATEGIES = (ETP, *RANKINGS, ROUND_ROBIN)


@dataclass(frozen=True, slots=True)
class Assignment:
    """An instance of an operator and the machine that it will run on.

    It moves from ``origin``, or is new if that is None. ``etp`` and ``congestion`` are those of the
    operator, as measured or projected at the time of the decision.
    """

    operator: str
    machine: str
    origin: str | None
    etp: float
    congestion: float
    reason: str

    def __str__(self) -> str:
        """The assignment in one line."""
        what = f"a new {self.operator}" if self.origin is None else self.operator
        way = f"on {self.machine}" if self.origin in {None, self.machine} else f"to {self.machine}"
        seen = f"ETP {self.etp:.0%}, input {self.congestion:.2f} of processing"
        return f"{what} {way}: {self.reason} ({seen})"


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What a scaling operation will do; nothing has changed yet.

    ``idle`` slots of new machines are left empty, because every operator that would gain has its
    maximum number of instances. ``expected_per_s`` is the throughput projected from
    ``throughput_per_s``; None if the strategy makes no projection.
    """

    strategy: str
    before: Placement
    after: Placement
    assignments: tuple[Assignment, ...]
    throughput_per_s: float
    expected_per_s: float | None = None
    idle: int = 0

    def preview(self) -> tuple[str, ...]:
        """The plan as readable lines."""
        lines = [str(assignment) for assignment in self.assignments]
        gone = [name for name in self.before.machines if name not in self.after.machines]
        if gone:
            lines.append(f"machines to give back: {', '.join(gone)}")
        if self.idle:
            lines.append(f"{self.idle} slots stay empty: who would gain is at the maximum")
        if self.expected_per_s is not None:
            now, then = show_rate(self.throughput_per_s), show_rate(self.expected_per_s)
            lines.append(f"throughput: {now} now, {then} expected")
        return tuple(lines)

    def apply(self, placement: Placement) -> Placement:
        """The new placement, if the given one is the one that the plan was made for."""
        if placement != self.before:
            raise InputError(
                "The instances are no longer placed as they were when this plan was made: "
                "make a new plan for the current placement."
            )
        return self.after

    def abort(self) -> Placement:
        """The placement to go back to if something fails before the plan is fully applied."""
        return self.before


def scale_out(
    dataflow: Dataflow, placement: Placement, new_machines: Sequence[str], strategy: str = ETP
) -> ScalePlan:
    """Fill new machines with instances.

    ``"etp"`` creates N_instances new ones per machine (Xu 2021, algorithm 2.2) and moves none. The
    others create none: ``"round-robin"`` redistributes all instances, as Storm's rebalance does,
    and the rankings move as many as give each machine an equal number (section 2.3.3).
    """
    _check(dataflow, placement)
    known = set(new_machines) & set(placement.machines)
    if known or not new_machines or len(set(new_machines)) < len(new_machines):
        raise InputError(
            f"Machines {', '.join(new_machines) or '(none)'} cannot join: name at least one that "
            "is not there yet, and each once."
        )
    if strategy == ETP:
        return _created(dataflow, placement, new_machines)
    if strategy == ROUND_ROBIN:
        return _dealt(dataflow, placement, new_machines)
    if strategy in RANKINGS:
        return _migrated(dataflow, placement, new_machines, strategy)
    raise InputError(f"There is no strategy '{strategy}': choose one of {', '.join(STRATEGIES)}.")


def _check(dataflow: Dataflow, placement: Placement) -> None:
    placed = placement.counts()
    measured = Counter({operator.name: operator.instances for operator in dataflow.operators})
    if placed != measured:
        wrong = min((placed - measured) | (measured - placed))
        raise InputError(
            f"Operator '{wrong}' was measured on {measured[wrong]} instances and {placed[wrong]} "
            "are placed: measure again, or correct the placement."
        )


def _assigned(
    dataflow: Dataflow,
    shares: dict[str, float],
    instance: tuple[str, str | None],
    machine: str,
    reason: str,
) -> Assignment:
    operator, origin = instance
    congestion = dataflow[operator].congestion
    return Assignment(operator, machine, origin, shares[operator], congestion, reason)


def _created(dataflow: Dataflow, placement: Placement, new_machines: Sequence[str]) -> ScalePlan:
    slots = placement.per_machine * len(new_machines)
    after = placement.joined(new_machines)
    more: Counter[str] = Counter()
    assignments: list[Assignment] = []
    for machine in islice(cycle(new_machines), slots):
        ahead = projected(dataflow, more)
        shares = etp(ahead)
        target, reason = _target(ahead, shares)
        if target is None:
            break
        more[target.name] += 1
        after = after.moved(target.name, None, machine)
        assignments.append(_assigned(ahead, shares, (target.name, None), machine, reason))
    return ScalePlan(
        ETP,
        placement,
        after,
        tuple(assignments),
        dataflow.throughput_per_s,
        projected(dataflow, more).throughput_per_s,
        slots - len(assignments),
    )


def _target(dataflow: Dataflow, shares: dict[str, float]) -> tuple[Operator | None, str]:
    """The congested operator with the highest ETP that has room; without congestion, a source.

    Ties go to the lower id. If all congested operators have their maximum number of instances,
    another one would not help: more records from a source would only queue in front of them.
    """
    congested = dataflow.congested()
    reason = "congested, with the highest ETP" if congested else "nothing is congested, a source"
    able = [operator for operator in congested or dataflow.sources() if operator.has_room]
    return max(able, key=lambda operator: shares[operator.name], default=None), reason


def _migrated(
    dataflow: Dataflow, placement: Placement, new_machines: Sequence[str], strategy: str
) -> ScalePlan:
    after = placement.joined(new_machines)
    sources = {source.name for source in dataflow.sources()}
    shares, ids = etp(dataflow), {name: place for place, name in enumerate(dataflow.names)}
    homes = {machine: place for place, machine in enumerate(placement.machines)}
    assignments: list[Assignment] = []
    for machine in islice(cycle(new_machines), after.per_machine * len(new_machines)):
        ranks = RANKINGS[strategy](dataflow, after, machine)
        here = {origin: len(after.instances[origin]) for origin in homes}
        best = min(
            (instance for instance in ranks if instance[1] in homes),
            key=lambda one: (
                one[0] in sources,  # they are moved only if nothing else is left
                ranks[one].key,
                ids[one[0]],
                -here[one[1]],
                homes[one[1]],
            ),
            default=None,
        )
        if best is None:
            break
        after = after.moved(*best, machine)
        assignments.append(_assigned(dataflow, shares, best, machine, ranks[best].said))
    return ScalePlan(strategy, placement, after, tuple(assignments), dataflow.throughput_per_s)


def _dealt(dataflow: Dataflow, placement: Placement, new_machines: Sequence[str]) -> ScalePlan:
    """Redistribute all instances, so that all of them stop for a while."""
    shares = etp(dataflow)
    origins = {
        name: [machine for machine, here in placement.instances.items() for x in here if x == name]
        for name in dataflow.names
    }
    machines = (*placement.machines, *new_machines)
    dealt = [(name, origin) for name in dataflow.names for origin in origins[name]]
    assignments = tuple(
        _assigned(dataflow, shares, instance, machine, "dealt in turn")
        for instance, machine in zip(dealt, cycle(machines), strict=False)
    )
    after = Placement.dealt((name for name, _ in dealt), machines)
    return ScalePlan(ROUND_ROBIN, placement, after, assignments, dataflow.throughput_per_s)


def etp_sums(dataflow: Dataflow, placement: Placement) -> dict[str, float]:
    """The sum of the ETP of all instances on each machine (Xu 2021, eq. 2.2)."""
    shares = etp(dataflow)
    return {
        machine: math.fsum(shares[operator] for operator in here)
        for machine, here in placement.instances.items()
    }


def scale_in(dataflow: Dataflow, placement: Placement, remove: int | Sequence[str]) -> ScalePlan:
    """Give machines back: a number of them, or those named.

    Repeatedly, the machine with the lowest ETPSum is removed, and its instances are distributed to
    the others in increasing order of their ETPSum, so that the least effective are disturbed first
    (Xu 2021, algorithm 2.3). The sums are recomputed each time. An instance that is placed on a
    machine that is removed later appears once, with its final machine.
    """
    _check(dataflow, placement)
    named = () if isinstance(remove, int) else tuple(remove)
    many = remove if isinstance(remove, int) else len(named)
    unknown = set(named) - set(placement.machines)
    if unknown or len(set(named)) < len(named) or not 0 < many < len(placement.machines):
        raise InputError(
            f"Of {len(placement.machines)} machines, {', '.join(named) or many} cannot go: give "
            "back at least one, each once, and keep at least one."
        )
    ran = {
        machine: [(name, machine) for name in here] for machine, here in placement.instances.items()
    }
    reasons: dict[str, str] = {}
    for _ in range(many):
        sums = etp_sums(dataflow, _placed(ran))
        stay = sorted(sums, key=sums.__getitem__)
        goes = next(name for name in stay if name in named or not named)
        stay.remove(goes)
        lowest = f"{goes} has the lowest ETPSum, {sums[goes]:.2f}"
        reasons[goes] = f"{goes} goes, as asked" if named else lowest
        for instance, machine in zip(ran.pop(goes), cycle(stay), strict=False):
            ran[machine].append(instance)
    shares = etp(dataflow)
    assignments = tuple(
        _assigned(dataflow, shares, instance, machine, reasons[instance[1]])
        for machine, here in ran.items()
        for instance in here
        if instance[1] != machine
    )
    return ScalePlan(ETP, placement, _placed(ran), assignments, dataflow.throughput_per_s)


def _placed(ran: dict[str, list[tuple[str, str]]]) -> Placement:
    return Placement({machine: tuple(name for name, _ in here) for machine, here in ran.items()})
