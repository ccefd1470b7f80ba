"""Routes from transfers counted between tasks (Cooper 2020, section 4.5).

They are valid only for replicas made of the tasks that were counted. If keys were counted instead,
``tailrace.model.keys.routing`` knows the shares of any number of partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]
"""The tasks that each replica would run."""


def task_routing(transfers: Floats) -> Floats:
    """The routes from task to task, from counted transfers (Cooper 2020, eq. 4.2).

    A task that sent nothing has no route of its own: it gets that of all tasks together.
    """
    sent = transfers.sum(axis=1, keepdims=True)
    whole = transfers.sum(axis=0)
    together = whole / whole.sum() if whole.sum() > 0 else np.full(len(whole), 1 / len(whole))
    return np.where(sent > 0, transfers / np.where(sent > 0, sent, 1), together)


def group_weights(task_shares: Floats, groups: Groups) -> tuple[Floats, ...]:
    """The share of each task in the records of its replica (eq. 4.5 for output, 4.11 for input).

    The tasks of a replica without records have equal weights.
    """
    weights = []
    for group in groups:
        part = task_shares[list(group)]
        total = part.sum()
        weights.append(part / total if total > 0 else np.full(len(group), 1 / len(group)))
    return tuple(weights)


def group_means(values: Floats, task_shares: Floats, groups: Groups) -> Floats:
    """The mean of a quantity over the tasks of each replica, weighted by the records of each task.

    Gives the ratios of replicas (Cooper 2020, section 4.7) and their service times (4.10).
    """
    weights = group_weights(task_shares, groups)
    means = [weight @ values[list(group)] for weight, group in zip(weights, groups, strict=True)]
    return np.array(means, np.float64)


def shared_route(task_shares: Floats, targets: Groups) -> Floats:
    """The route of every replica of a step that is fed round-robin, so that all see the same keys.

    The shares of the tasks that each target replica runs add up (Cooper 2020, section 4.5.1).
    """
    return np.array([task_shares[list(group)].sum() for group in targets], np.float64)


def keyed_routes(
    task_routes: Floats, output_shares: Floats, origins: Groups, targets: Groups
) -> Floats:
    """The routes between the replicas of a step that is fed by key and those of the next (4.6).

    The tasks of such a step see different keys, and different numbers of records.
    """
    onto = np.stack([task_routes[:, list(group)].sum(axis=1) for group in targets], axis=1)
    weights = group_weights(output_shares, origins)
    routes = [weight @ onto[list(group)] for weight, group in zip(weights, origins, strict=True)]
    return np.stack(routes)


def stream_shares(outputs: Floats) -> Floats:
    """The share of each stream (row) in the output of each replica (column), from its rates.

    A replica that sends nothing has shares of 0.
    """
    total = outputs.sum(axis=0)
    return outputs / np.where(total > 0, total, 1)


def overall_routes(routes: Sequence[Floats], of_streams: Floats) -> Floats:
    """Where any record of a replica goes, whatever its stream (eq. 4.7).

    ``routes`` are those of each stream to all replicas that any of them leads to. The original
    has one stream between two replicas; several add up.
    """
    parts = [share[:, None] * route for share, route in zip(of_streams, routes, strict=True)]
    overall: Floats = np.sum(parts, axis=0)
    return overall
