"""The partitions of a step: how many hold its state, where they are, and which are in memory here.

A file in the step's directory holds their number and how often the state was repartitioned: each
time into a new directory, which takes effect once the file names it.
"""

from __future__ import annotations

import os
import re
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
_SPREAD = re.compile(r"(\d+)(?: (\d+))?\s*")

VERSIONS_BEHIND = 3
"""A partition this many versions behind another one of its step runs elsewhere by now."""

UNUSED_S = 1_800.0
"""A step with no partition requested for this long has ended."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How many partitions the state of a step is spread over, and how often that has changed."""

    partitions: int
    generation: int = 0

    def home(self, directory: Path) -> Path:
        """Where the partitions are, each in a directory named by its number."""
        return directory / f"spread-{self.generation}" if self.generation else directory

    def write(self, directory: Path) -> None:
        """Make this the current spread; if that fails, the previous one stays in effect."""
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"{_FILE}.{os.urandom(8).hex()}.tmp"
        again = f" {self.generation}" if self.generation else ""
        with replacing(directory / _FILE, temporary, flush=True) as file:
            file.write(f"{self.partitions}{again}\n".encode())


def spread_of(directory: Path) -> Spread | None:
    """How the state of a step is spread; None if it has none."""
    try:
        text = (directory / _FILE).read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    found = _SPREAD.fullmatch(text)
    if not found:
        raise FlowFailed(
            f"The file {directory / _FILE} does not hold a number: put back a copy of the "
            "directory, or start the flow with a new checkpoint, which loses its state."
        )
    return Spread(int(found[1]), int(found[2] or 0))


def prepare(directory: Path, partitions: int) -> None:
    """Fix the number of partitions of a step, or refuse one that differs from before.

    Keys are spread over partitions by hash, so with another number most of them would be looked up
    in the wrong place.
    """
    fixed = partitions_of(directory)
    if fixed is None:
        Spread(partitions).write(directory)
    elif fixed != partitions:
        raise InputError(
            f"The state of step '{directory.name}' in {directory} is spread over {fixed} "
            f"partitions, not {partitions}: run it with {fixed}, or change their number with "
            "'tailrace repartition'."
        )


def partitions_of(directory: Path) -> int | None:
    """The number of partitions that the state of a step is spread over; None if it has none."""
    spread = spread_of(directory)
    return None if spread is None else spread.partitions


def home_of(directory: Path) -> Path:
    """Where the partitions of a step are, or will be."""
    return (spread_of(directory) or Spread(1)).home(directory)


@dataclass(slots=True)
class _Held:
    store: Store
    asked_s: float


_HELD: dict[Path, _Held] = {}


def held(directory: Path, clock: Callable[[], float] = time.monotonic, **options: Any) -> Store:
    """The store of a directory, reused from the last batch if this process had it then.

    Spark usually sends a partition to the process that had it before, but not always. Stores that
    have moved elsewhere are dropped to free their memory. This affects only speed: a store that is
    needed again is read from disk. ``options`` are passed to ``Store`` if a new one is made.
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
