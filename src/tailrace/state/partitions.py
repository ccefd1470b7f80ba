"""The partitions of a step: how many its state is spread over, and which this process holds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.errors import FlowFailed, InputError
from tailrace.state.files import replacing
from tailrace.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FILE = "partitions"

VERSIONS_BEHIND = 3
"""A partition that is so many versions behind another one of its step runs elsewhere by now."""

UNUSED_S = 1_800.0
"""A step of which no partition was asked for in so long has ended."""


def prepare(directory: Path, partitions: int) -> None:
    """Fix the number of partitions of a step, or refuse one that is not what it was.

    The keys are spread by hash over the partitions, so with another number most of them would
    be looked for in the wrong place.
    """
    fixed = partitions_of(directory)
    if fixed is None:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"{_FILE}.{os.urandom(8).hex()}.tmp"
        with replacing(directory / _FILE, temporary, flush=True) as file:
            file.write(f"{partitions}\n".encode())
    elif fixed != partitions:
        raise InputError(
            f"The state of step '{directory.name}' in {directory} is spread over {fixed} "
            f"partitions, not {partitions}: run it with {fixed}, or start with a new checkpoint, "
            "which loses its state."
        )


def partitions_of(directory: Path) -> int | None:
    """The number of partitions that the state of a step is spread over; None if it has none."""
    try:
        text = (directory / _FILE).read_bytes()
    except FileNotFoundError:
        return None
    if not text.strip().isdigit():
        raise FlowFailed(
            f"The file {directory / _FILE} does not hold a number: put back a copy of the "
            "directory, or start the flow with a new checkpoint, which loses its state."
        )
    return int(text)


@dataclass(slots=True)
class _Held:
    store: Store
    asked_s: float


_HELD: dict[Path, _Held] = {}


def held(directory: Path, clock: Callable[[], float] = time.monotonic, **options: Any) -> Store:
    """The store of a directory, the one of the last batch if this process had it then.

    Spark sends a partition mostly to the process that had it before, but not always. Stores that
    went elsewhere are let go of, so that their memory is not lost to what is here. Nothing but
    time depends on it: a store that is wanted again is read from the disk. ``options`` are those
    of ``Store``, for one that is made now.
    """
    place = directory.absolute()
    now_s = clock()
    _let_go(place, now_s)
    if place not in _HELD:
        _HELD[place] = _Held(Store(place, **options), now_s)
    entry = _HELD[place]
    entry.asked_s = now_s
    return entry.store


def _let_go(wanted: Path, now_s: float) -> None:
    newest: dict[Path, int] = {}
    for place, entry in _HELD.items():
        newest[place.parent] = max(newest.get(place.parent, 0), entry.store.version or 0)
    for place, entry in list(_HELD.items()):
        behind = newest[place.parent] - (entry.store.version or 0)
        unused_s = now_s - entry.asked_s
        if place != wanted and (behind > VERSIONS_BEHIND or unused_s > UNUSED_S):
            del _HELD[place]
