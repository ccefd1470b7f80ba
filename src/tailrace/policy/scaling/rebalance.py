"""Elastic scaling of several steps in a row: the fewest tasks whose queues keep every bound.

In real-time mode each task of a step is a queue of its own. A step with p tasks makes its records
wait ``W(p) = a/(p - b)``, where b is the work that comes in, in tasks, and a tells how unevenly it
comes (Lohrmann 2016, section 4.6). That is convex in p, so the best next task is always the one
that saves the most waiting, and the fewest tasks for one path are found one by one. Paths that
share steps are weighed against each other by prices on their bounds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.csgraph import connected_components  # it ships no types

from tailrace.errors import InputError
from tailrace.model.queueing.queues import Correction, Kingman
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.policy.batching import SequenceBound

    Floats = NDArray[np.float64]
    _Path = tuple[list["TaskLoad"], float]

BUSY_UP_TO = 0.9
"""No step is planned to be busier than this, unless its most tasks force it."""

BOTTLENECK = 0.95
"""From here on a step is a bottleneck, and what was measured of it is no basis for a model."""

_ROUNDING = 1e-9
_SLACK = 1e-6
_ROUNDS = 100

_MOST_LOOKED_AT = 200_000
"""Beyond this the best of what is looked at is gone on with, so that no search runs away."""


@dataclass(frozen=True, slots=True)
class WaitCurve:
    """``W(p) = a/(p - b)``: how long records wait at a step with p tasks, on average.

    ``offered`` is b, the work that comes in, in tasks kept busy; ``scale_ms`` is a. With b tasks or
    fewer the wait has no end.
    """

    scale_ms: float
    offered: float

    def wait_ms(self, tasks: int) -> float:
        """How long records wait with so many tasks."""
        return self.scale_ms / (tasks - self.offered) if tasks > self.offered else math.inf

    def saved_ms(self, tasks: int) -> float:
        """What one more task saves; where so many cannot keep up it comes before all else."""
        spare = tasks - self.offered
        return self.scale_ms / (spare * (spare + 1)) if spare > 0 else math.inf


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What was measured at the tasks of one step, and how many of them there may be.

    ``service_ms`` is how long a task is busy with a record, ``gap_ms`` the mean time between two
    arrivals at one task (infinite where none came), and the coefficients of variation are theirs.
    ``waited_ms`` is how long records waited in front of a task, None if unknown. ``latency_ms`` is
    what a record spends in the step itself. A step that cannot be scaled has ``least`` and
    ``most`` equal to ``tasks``.
    """

    name: str
    service_ms: float
    gap_ms: float
    cv_arrivals: float
    cv_service: float
    waited_ms: float | None
    tasks: int
    least: int
    most: int
    latency_ms: float = 0.0
    curve: WaitCurve = field(init=False, repr=False, compare=False)
    """``b = p*S/A`` and ``a = e*S*b*(ca**2 + cs**2)/2`` (Lohrmann 2016, eq. 4.7, in short).

    Service and both variations are taken to stay as they are, whatever the number of tasks.
    """

    def __post_init__(self) -> None:
        """Refuse what no step can have, and work out the curve."""
        if not self.gap_ms > 0:
            raise InputError(
                f"Records cannot come to step {self.name} every {self.gap_ms} ms: give the mean "
                "time between two at one task, or infinity where none came."
            )
        if not (1 <= self.least <= self.most and self.tasks >= 1):
            raise InputError(
                f"Step {self.name} cannot have {self.tasks} tasks of {self.least} to {self.most}: "
                "give whole numbers from 1 up, the least first."
            )
        offered = self.tasks * self.utilisation
        variation = (self.cv_arrivals**2 + self.cv_service**2) / 2
        scale_ms = self.queue.correction * self.service_ms * offered * variation
        object.__setattr__(self, "curve", WaitCurve(scale_ms, offered))

    @property
    def utilisation(self) -> float:
        """``rho = S/A``: the share of time that a task is busy, or would have to be."""
        return self.service_ms / self.gap_ms

    @property
    def queue(self) -> Kingman:
        """The queue at one of the present tasks, fitted to the wait that was measured there.

        The fitting factor e is the measured wait over Kingman's (Lohrmann 2016, eq. 4.5). It
        counts as 0.2 or 5 at most, the limits of De Matteis that :class:`Correction` has: without
        any, a burst makes it explode and too many tasks are asked for. The prototype's 0.8 to 1.2
        is too narrow, for Kingman's formula alone is off by more than half at low load. Where
        nothing can be learned, from a saturated queue, from one without waits or without a
        measured one, it is 1: the formula as it is.
        """
        plain = Kingman(1_000.0 / self.gap_ms, self.service_ms, self.cv_arrivals, self.cv_service)
        measured_ms = math.nan if self.waited_ms is None else self.waited_ms
        return replace(plain, correction=Correction(span=1).after(measured_ms, plain).factor)

    @property
    def unhurried(self) -> int:
        """The fewest tasks that are at most 90 % busy, ``b/0.9``, whatever the limits say."""
        return _whole(self.tasks * self.utilisation / BUSY_UP_TO)

    @property
    def floor(self) -> int:
        """The fewest tasks that may be chosen: the user's least, and no busier than 90 %."""
        return min(self.most, max(self.least, self.unhurried))


@dataclass(frozen=True, slots=True)
class Budget:
    """How long records may wait in all at the steps of one path, on average."""

    steps: tuple[str, ...]
    wait_ms: float


@dataclass(frozen=True, slots=True)
class Balance:
    """How many tasks each step should have, and what comes of it.

    ``wait_ms`` is the wait that is expected on the path that waits the longest, None where a
    bottleneck leaves nothing to expect it from. If a bound cannot be kept, ``feasible`` is false
    and the reason says which step is to blame and what would do.
    """

    parallelism: Mapping[str, int]
    wait_ms: float | None
    feasible: bool
    reason: str


def rebalance(
    tasks: Sequence[TaskLoad], budget_ms: float, at_least: Mapping[str, int] | None = None
) -> Balance:
    """The fewest tasks in all with which the waits along one path stay within the budget.

    Lohrmann 2016, algorithm 7: from the floors up, the next task goes where it saves the most, the
    first of several. As every curve is convex, nothing does with fewer; of all that do with as
    few it waits the least. A step starts at ``at_least`` if that is above its floor. The floor of
    90 % is always above the work that comes in, so no wait is infinite to start with. If not even
    the most tasks are enough, all steps get their most, and the reason tells.
    """
    curves = [task.curve for task in tasks]
    most = {task.name: task.most for task in tasks}
    if not _within(_wait_ms(tasks, most), budget_ms):
        return Balance(most, _wait_ms(tasks, most), False, _shortfall(tasks, budget_ms))
    sizes = list(_floors(tasks, at_least or {}).values())
    left_ms = math.fsum(map(WaitCurve.wait_ms, curves, sizes))
    savings = [
        (-curves[i].saved_ms(sizes[i]), i) for i, task in enumerate(tasks) if sizes[i] < task.most
    ]
    heapify(savings)
    while savings and not _within(left_ms, budget_ms):
        saving, i = heappop(savings)
        left_ms += saving
        sizes[i] += 1
        if sizes[i] < tasks[i].most:
            heappush(savings, (-curves[i].saved_ms(sizes[i]), i))
    parallelism = dict(zip(most, sizes, strict=True))
    said = _kept(tasks, budget_ms, parallelism)
    return Balance(parallelism, _wait_ms(tasks, parallelism), True, said)


def resolve_bottlenecks(tasks: Iterable[TaskLoad]) -> dict[str, int]:
    """The tasks that steps too busy to be modelled should have: twice as many, or more.

    ``min(most, 2*p*max(1, rho))`` for each step with ``rho >= 0.95`` (Lohrmann 2016, eq. 4.12),
    rounded up, so that they should be half busy at most.
    """
    doubled = {
        task: _whole(2 * task.tasks * max(1.0, task.utilisation))
        for task in tasks
        if task.utilisation >= BOTTLENECK
    }
    return {t.name: min(t.most, max(t.least, size)) for t, size in doubled.items()}


def least_total(
    budgets: Sequence[Budget], tasks: Sequence[TaskLoad], at_least: Mapping[str, int] | None = None
) -> Balance:
    """The fewest tasks in all with which every path keeps its budget; paths may share steps.

    Exact, where taking the paths one after the other (Lohrmann 2016, algorithm 8) may give a step
    of the first path what a step shared with the second would have done for both. The steps of
    a path that cannot be kept get their most tasks, and the others are balanced around that. A
    step on no path gets its floor.

    Six steps of 64 tasks on four crossing paths take some 2 ms. Where hundreds of tasks are to be
    shared out in more ways than can be looked at, it may end with a task too many, but never
    with more than the paths would take one after the other.
    """
    by_name = _named(tasks, (step for budget in budgets for step in budget.steps))
    paths = [([by_name[step] for step in budget.steps], budget.wait_ms) for budget in budgets]
    most = {task.name: task.most for task in tasks}
    lost = [path for path in paths if not _within(_wait_ms(path[0], most), path[1])]
    sizes = _floors(tasks, at_least or {})
    sizes.update((task.name, task.most) for path, _ in lost for task in path)
    kept = [path for path in paths if path not in lost]
    strained = [path for path in kept if not _within(_wait_ms(path[0], sizes), path[1])]
    for group in _linked(strained, sizes):
        if len(group) == 1:
            sizes.update(rebalance(*group[0], sizes).parallelism)
        else:
            sizes.update(_fewest(group, sizes))
    wait_ms = max((_wait_ms(path, sizes) for path, _ in paths), default=0.0)
    said = [_shortfall(*path) for path in lost] + [_kept(*path, sizes) for path in kept]
    return Balance(sizes, wait_ms, not lost, " ".join(said))


def scale_reactively(
    bounds: Sequence[SequenceBound], tasks: Sequence[TaskLoad], weight: float = 0.8
) -> Balance:
    """The tasks of every step for the next interval, by what was measured in the last.

    Lohrmann 2016, algorithm 8. A path with a bottleneck only has its bottlenecks resolved, for
    the rest of what is measured there cannot be trusted either; so its other steps are not taken
    down for the sake of another path. All other paths are balanced together by
    :func:`least_total`, with ``(1 - weight)*(bound - own latencies)`` for waiting: ``weight`` is
    the share that goes to batching. The elements of a bound must be steps, without streams.
    """
    by_name = _named(tasks, (step for bound in bounds for step in bound.elements))
    at_least: dict[str, int] = {}
    budgets, said, feasible = [], [], True
    for bound in bounds:
        path = [by_name[step] for step in bound.elements]
        raised = resolve_bottlenecks(path)
        if raised:
            at_least |= {task.name: raised.get(task.name, task.tasks) for task in path}
            jammed = [by_name[name] for name in raised]
            said += [_jammed(task, raised[task.name]) for task in jammed]
            feasible &= all(task.unhurried <= task.most for task in jammed)
        else:
            own_ms = math.fsum(task.latency_ms for task in path)
            budgets.append(Budget(bound.elements, (1 - weight) * (bound.bound_ms - own_ms)))
    balance = least_total(budgets, tasks, at_least)
    return Balance(
        balance.parallelism,
        None if at_least else balance.wait_ms,
        feasible and balance.feasible,
        " ".join(filter(None, (*dict.fromkeys(said), balance.reason))),
    )


def _linked(strained: Sequence[_Path], sizes: Mapping[str, int]) -> list[list[_Path]]:
    """Paths in groups that share steps which can still grow: each group is a problem of its own."""
    growing = [{task.name for task in path if sizes[task.name] < task.most} for path, _ in strained]
    shared = [[not one.isdisjoint(other) for other in growing] for one in growing]
    count, labels = connected_components(np.array(shared)) if strained else (0, ())
    return [
        [path for path, label in zip(strained, labels, strict=True) if label == number]
        for number in range(count)
    ]


def _in_turn(group: Sequence[_Path], floors: Mapping[str, int]) -> dict[str, int]:
    """The paths one after the other, as they come (Lohrmann 2016, algorithm 8)."""
    sizes = dict(floors)
    for path, budget_ms in group:
        sizes.update(rebalance(path, budget_ms, sizes).parallelism)
    return sizes


def _fewest(group: Sequence[_Path], floors: Mapping[str, int]) -> dict[str, int]:
    """The fewest tasks for paths that share steps: ``min sum(p)`` with ``W <= budget`` on each.

    With a price on each budget the problem falls apart into its steps, and their best sizes give
    a total that nothing is below (Lagrange). Totals are tried from there up to what the paths
    would take in turn.
    """
    free = {t.name: t for path, _ in group for t in path if floors[t.name] < t.most}
    budgets_ms = np.array([budget_ms for _, budget_ms in group])
    fixed = np.array([_wait_ms((t for t in p if t.name not in free), floors) for p, _ in group])
    spent = fixed / budgets_ms
    shares = {name: np.array([free[name] in p for p, _ in group]) / budgets_ms for name in free}
    prices = _prices(list(free.values()), floors, np.column_stack(list(shares.values())), spent)
    alike: defaultdict[tuple[float, ...], list[TaskLoad]] = defaultdict(list)
    for name, share in shares.items():
        alike[tuple(share)].append(free[name])
    blocs = [_bloc(steps, floors, np.array(share), prices) for share, steps in alike.items()]
    bound = math.fsum(bloc.best for bloc in blocs) + float(prices @ (spent - 1))
    known = _in_turn(group, floors)
    for extra in range(_whole(bound), sum(known[name] - floors[name] for name in free)):
        found = _reached(blocs, extra, extra - bound + _SLACK, spent)
        if found is not None:
            given = Counter(
                name for bloc, n in zip(blocs, found, strict=True) for name in bloc.order[:n]
            )
            return {name: floors[name] + given[name] for name in free}
    return known


def _prices(
    steps: Sequence[TaskLoad], floors: Mapping[str, int], shares: Floats, spent: Floats
) -> Floats:
    """What each budget is worth in tasks, by the best prices where tasks may be fractions.

    At the price m of its wait a step has ``p = b + sqrt(m*a)`` tasks. A price is right when its
    budget is just used up; times the square of its use it comes nearer (that maximises a function
    below the dual which touches it, as long as no step is at a limit). Any prices give a bound
    that is true, these one that is close.
    """
    scale_ms, offered = np.array([(task.curve.scale_ms, task.curve.offered) for task in steps]).T
    low, high = np.array([(floors[task.name], task.most) for task in steps]).T
    prices: Floats = np.sqrt(shares * scale_ms).sum(axis=1) ** 2
    for _ in range(_ROUNDS):
        sizes = np.clip(offered + np.sqrt(prices @ shares * scale_ms), low, high)
        prices *= (shares @ (scale_ms / (sizes - offered)) + spent) ** 2
    return prices


@dataclass(frozen=True, slots=True, eq=False)
class _Bloc:
    """Steps that are on the same paths, of which only the waits in all matter.

    ``order`` names who gets the next task, the best first. By the number of tasks given out,
    ``spent`` is the share of each path's budget that is waited here, and ``excess`` by how much the
    number is worse than the best one at the prices, which costs ``best``.
    """

    order: tuple[str, ...]
    spent: Floats
    excess: Floats
    best: float


def _bloc(
    steps: Sequence[TaskLoad], floors: Mapping[str, int], share: Floats, prices: Floats
) -> _Bloc:
    savings = sorted(
        (-task.curve.saved_ms(size), task.name)
        for task in steps
        for size in range(floors[task.name], task.most)
    )
    waits_ms = np.cumsum([_wait_ms(steps, floors), *(saving for saving, _ in savings)])
    costs = np.arange(len(waits_ms)) + float(prices @ share) * waits_ms
    order, best = tuple(name for _, name in savings), costs.min()
    return _Bloc(order, np.outer(waits_ms, share), costs - best, float(best))


def _reached(
    blocs: Sequence[_Bloc], extra: int, leeway: float, spent: Floats
) -> tuple[int, ...] | None:
    """So many tasks given out to blocs that every path keeps its budget; None if in no way.

    The excesses of a solution add up to no more than the leeway, the distance of its total from
    the bound. That leaves few numbers to each bloc, and all are looked at, bloc by bloc; the last,
    with the most numbers, gets what is left. Of all solutions the one that waits the least.
    """
    windows = [np.flatnonzero(bloc.excess <= leeway) for bloc in blocs]
    turns = sorted(range(len(blocs)), key=lambda i: len(windows[i]))
    given = np.zeros((1, len(blocs)), dtype=np.int64)
    excess, waits = np.zeros(1), spent[None, :]
    for turn, i in enumerate(turns, start=1):
        if turn < len(turns):
            row, pick = np.nonzero(excess[:, None] + blocs[i].excess[windows[i]] <= leeway)
            number = windows[i][pick]
        else:
            left = extra - given.sum(axis=1)
            row = np.flatnonzero((left >= windows[i][0]) & (left <= windows[i][-1]))
            number = left[row]
        excess, waits = excess[row] + blocs[i].excess[number], waits[row] + blocs[i].spent[number]
        given = given[row]
        given[:, i] = number
        least = sum(blocs[j].spent[windows[j][-1]] for j in turns[turn:])
        kept = np.flatnonzero((waits + least <= 1 + _ROUNDING).all(axis=1) & (excess <= leeway))
        if len(kept) > _MOST_LOOKED_AT:
            kept = kept[np.argsort(excess[kept], kind="stable")[:_MOST_LOOKED_AT]]
        given, excess, waits = given[kept], excess[kept], waits[kept]
    return tuple(given[waits.sum(axis=1).argmin()].tolist()) if len(given) else None


def _whole(number: float) -> int:
    """Rounded up, but not for the sake of a rounding error."""
    return math.ceil(number - _ROUNDING)


def _within(wait_ms: float, budget_ms: float) -> bool:
    return wait_ms <= budget_ms * (1 + _ROUNDING)


def _wait_ms(path: Iterable[TaskLoad], sizes: Mapping[str, int]) -> float:
    """``W = sum(W_i(p_i))`` (Lohrmann 2016, eq. 4.7)."""
    return math.fsum(task.curve.wait_ms(sizes[task.name]) for task in path)


def _floors(tasks: Iterable[TaskLoad], at_least: Mapping[str, int]) -> dict[str, int]:
    return {t.name: min(t.most, max(t.floor, at_least.get(t.name, 0))) for t in tasks}


def _named(tasks: Iterable[TaskLoad], wanted: Iterable[str]) -> dict[str, TaskLoad]:
    by_name = {task.name: task for task in tasks}
    for name in wanted:
        if name not in by_name:
            raise InputError(f"There is no step '{name}' to scale: give what was measured of it.")
    return by_name


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _kept(path: Sequence[TaskLoad], budget_ms: float, sizes: Mapping[str, int]) -> str:
    here = _listed({task.name: sizes[task.name] for task in path})
    wait, budget = show_duration(_wait_ms(path, sizes)), show_duration(budget_ms)
    return f"With {here} tasks records wait {wait} in all, within {budget}."


def _jammed(task: TaskLoad, size: int) -> str:
    said = f"Step {task.name} is a bottleneck, {task.utilisation:.0%} busy with {task.tasks} tasks"
    if task.unhurried > task.most:
        return f"{said}, and may not have more than {size}: allow it {task.unhurried}."
    return f"{said}, so it gets {size}."


def _shortfall(path: Sequence[TaskLoad], budget_ms: float) -> str:
    """Which step makes a budget too small, and what would do."""
    most = {task.name: task.most for task in path}
    wait_ms = _wait_ms(path, most)
    worst = max(path, key=lambda task: (task.curve.wait_ms(task.most), task.unhurried - task.most))
    allow = f"allow {_listed(_lacking(path, budget_ms))} tasks"
    if math.isinf(wait_ms):
        return (
            f"Step {worst.name} has work for {worst.curve.offered:.3g} tasks and may have only "
            f"{worst.most}, so that its records wait without end: {allow}."
        )
    if budget_ms < _ROUNDING:
        slowest = max(path, key=lambda task: task.latency_ms)
        own_ms = math.fsum(task.latency_ms for task in path)
        return (
            f"The steps alone take {show_duration(own_ms)}, {slowest.name} "
            f"{show_duration(slowest.latency_ms)} of it, which leaves no time to wait: make it "
            f"faster, or loosen the bound until {show_duration(wait_ms)} are left for waiting."
        )
    return (
        f"Even with {_listed(most)} tasks, the most allowed, records wait {show_duration(wait_ms)} "
        f"in all, above {show_duration(budget_ms)}, and longest at {worst.name} with "
        f"{show_duration(worst.curve.wait_ms(worst.most))}: {allow}, or leave "
        f"{show_duration(wait_ms)} for waiting."
    )


def _lacking(path: Sequence[TaskLoad], budget_ms: float) -> dict[str, int]:
    """The steps that are short of tasks, with enough of them to keep the budget, if there is one.

    Without limits and in fractions the best is ``p - b = sqrt(a)*sum(sqrt(a))/budget``, by
    Lagrange; rounded up it is enough.
    """
    roots = [math.sqrt(task.curve.scale_ms) for task in path]
    price = math.fsum(roots) / budget_ms if budget_ms > _ROUNDING else 0.0
    enough = [
        max(task.unhurried, _whole(task.curve.offered + root * price))
        for task, root in zip(path, roots, strict=True)
    ]
    return {t.name: size for t, size in zip(path, enough, strict=True) if size > t.most}
