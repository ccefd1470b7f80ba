"""Elastic scaling of several steps in a row: the fewest tasks whose queues keep every bound.

Waits are convex in the number of tasks (``waits.py``), so the best next task is always the one that
saves the most waiting, and the fewest tasks for one path are found one by one. Paths that share
steps are weighed against each other (``sharing.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.sharing import fewest, linked
from tailrace.policy.scaling.waits import (
    BOTTLENECK,
    ROUNDING,
    TaskLoad,
    WaitCurve,
    path_wait_ms,
    whole,
    within,
)
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.policy.scaling.sharing import Path


@dataclass(frozen=True, slots=True)
class SequenceBound:
    """A bound on the mean latency over steps, named in order."""

    elements: tuple[str, ...]
    bound_ms: float


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
    if not within(path_wait_ms(tasks, most), budget_ms):
        return Balance(most, path_wait_ms(tasks, most), False, _shortfall(tasks, budget_ms))
    sizes = list(_floors(tasks, at_least or {}).values())
    left_ms = math.fsum(map(WaitCurve.wait_ms, curves, sizes))
    savings = [
        (-curves[i].saved_ms(sizes[i]), i) for i, task in enumerate(tasks) if sizes[i] < task.most
    ]
    heapify(savings)
    while savings and not within(left_ms, budget_ms):
        saving, i = heappop(savings)
        left_ms += saving
        sizes[i] += 1
        if sizes[i] < tasks[i].most:
            heappush(savings, (-curves[i].saved_ms(sizes[i]), i))
    parallelism = dict(zip(most, sizes, strict=True))
    said = _kept(tasks, budget_ms, parallelism)
    return Balance(parallelism, path_wait_ms(tasks, parallelism), True, said)


def resolve_bottlenecks(tasks: Iterable[TaskLoad]) -> dict[str, int]:
    """The tasks that steps too busy to be modelled should have: twice as many, or more.

    ``min(most, 2*p*max(1, rho))`` for each step with ``rho >= 0.95`` (Lohrmann 2016, eq. 4.12),
    rounded up, so that they should be half busy at most.
    """
    doubled = {
        task: whole(2 * task.tasks * max(1.0, task.utilisation))
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
    lost = [path for path in paths if not within(path_wait_ms(path[0], most), path[1])]
    sizes = _floors(tasks, at_least or {})
    sizes.update((task.name, task.most) for path, _ in lost for task in path)
    kept = [path for path in paths if path not in lost]
    strained = [path for path in kept if not within(path_wait_ms(path[0], sizes), path[1])]
    for group in linked(strained, sizes):
        if len(group) == 1:
            sizes.update(rebalance(*group[0], sizes).parallelism)
        else:
            sizes.update(fewest(group, sizes, _in_turn(group, sizes)))
    wait_ms = max((path_wait_ms(path, sizes) for path, _ in paths), default=0.0)
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


def _in_turn(group: Sequence[Path], floors: Mapping[str, int]) -> dict[str, int]:
    """The paths one after the other, as they come (Lohrmann 2016, algorithm 8)."""
    sizes = dict(floors)
    for path, budget_ms in group:
        sizes.update(rebalance(path, budget_ms, sizes).parallelism)
    return sizes


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
    wait, budget = show_duration(path_wait_ms(path, sizes)), show_duration(budget_ms)
    return f"With {here} tasks records wait {wait} in all, within {budget}."


def _jammed(task: TaskLoad, size: int) -> str:
    said = f"Step {task.name} is a bottleneck, {task.utilisation:.0%} busy with {task.tasks} tasks"
    if task.unhurried > task.most:
        return f"{said}, and may not have more than {size}: allow it {task.unhurried}."
    return f"{said}, so it gets {size}."


def _shortfall(path: Sequence[TaskLoad], budget_ms: float) -> str:
    """Which step makes a budget too small, and what would do."""
    most = {task.name: task.most for task in path}
    wait_ms = path_wait_ms(path, most)
    worst = max(path, key=lambda task: (task.curve.wait_ms(task.most), task.unhurried - task.most))
    allow = f"allow {_listed(_lacking(path, budget_ms))} tasks"
    if math.isinf(wait_ms):
        return (
            f"Step {worst.name} has work for {worst.curve.offered:.3g} tasks and may have only "
            f"{worst.most}, so that its records wait without end: {allow}."
        )
    if budget_ms < ROUNDING:
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
    price = math.fsum(roots) / budget_ms if budget_ms > ROUNDING else 0.0
    enough = [
        max(task.unhurried, whole(task.curve.offered + root * price))
        for task, root in zip(path, roots, strict=True)
    ]
    return {t.name: size for t, size in zip(path, enough, strict=True) if size > t.most}
