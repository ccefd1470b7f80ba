"""The fewest tasks for paths that share steps: an exact search, by prices on their bounds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.csgraph import connected_components  # it ships no types

from tailrace.policy.scaling.waits import ROUNDING, path_wait_ms, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.policy.scaling.waits import TaskLoad

    Floats = NDArray[np.float64]
    Path = tuple[list[TaskLoad], float]

_SLACK = 1e-6
_ROUNDS = 100

_MOST_LOOKED_AT = 200_000
"""Beyond this the best of what is looked at is gone on with, so that no search runs away."""


def linked(strained: Sequence[Path], sizes: Mapping[str, int]) -> list[list[Path]]:
    """Paths in groups that share steps which can still grow: each group is a problem of its own."""
    growing = [{task.name for task in path if sizes[task.name] < task.most} for path, _ in strained]
    shared = [[not one.isdisjoint(other) for other in growing] for one in growing]
    count, labels = connected_components(np.array(shared)) if strained else (0, ())
    return [
        [path for path, label in zip(strained, labels, strict=True) if label == number]
        for number in range(count)
    ]


def fewest(
    group: Sequence[Path], floors: Mapping[str, int], known: Mapping[str, int]
) -> dict[str, int]:
    """The fewest tasks for paths that share steps: ``min sum(p)`` with ``W <= budget`` on each.

    With a price on each budget the problem falls apart into its steps, and their best sizes give
    a total that nothing is below (Lagrange). Totals are tried from there up to that of
    a ``known`` solution.
    """
    free = {t.name: t for path, _ in group for t in path if floors[t.name] < t.most}
    budgets_ms = np.array([budget_ms for _, budget_ms in group])
    fixed = np.array([path_wait_ms((t for t in p if t.name not in free), floors) for p, _ in group])
    spent = fixed / budgets_ms
    shares = {name: np.array([free[name] in p for p, _ in group]) / budgets_ms for name in free}
    prices = _prices(list(free.values()), floors, np.column_stack(list(shares.values())), spent)
    alike: defaultdict[tuple[float, ...], list[TaskLoad]] = defaultdict(list)
    for name, share in shares.items():
        alike[tuple(share)].append(free[name])
    blocs = [_bloc(steps, floors, np.array(share), prices) for share, steps in alike.items()]
    bound = math.fsum(bloc.best for bloc in blocs) + float(prices @ (spent - 1))
    for extra in range(whole(bound), sum(known[name] - floors[name] for name in free)):
        found = _reached(blocs, extra, extra - bound + _SLACK, spent)
        if found is not None:
            given = Counter(
                name for bloc, n in zip(blocs, found, strict=True) for name in bloc.order[:n]
            )
            return {name: floors[name] + given[name] for name in free}
    return dict(known)


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
    waits_ms = np.cumsum([path_wait_ms(steps, floors), *(saving for saving, _ in savings)])
    costs = np.arange(len(waits_ms)) + float(prices @ share) * waits_ms
    order, best = tuple(name for _, name in savings), costs.min()
    return _Bloc(order, np.outer(waits_ms, share), costs - best, float(best))


def _reached(
    blocs: Sequence[_Bloc], extra: int, leeway: float, spent: Floats
) -> tuple[int, ...] | None:
    """Tasks given out to blocs so that every path keeps its budget; None if there is no way.

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
        kept = np.flatnonzero((waits + least <= 1 + ROUNDING).all(axis=1) & (excess <= leeway))
        if len(kept) > _MOST_LOOKED_AT:
            kept = kept[np.argsort(excess[kept], kind="stable")[:_MOST_LOOKED_AT]]
        given, excess, waits = given[kept], excess[kept], waits[kept]
    return tuple(given[waits.sum(axis=1).argmin()].tolist()) if len(given) else None
