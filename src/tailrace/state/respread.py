"""Moves the state of a step to another number of partitions, while nothing runs.

The keys of every partition are read as of a committed batch, and each is written, in a snapshot of
that batch, to its new partition. This happens in a new directory; writing one file then makes it
current (``partitions.Spread``). A crash before that changes nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.state.files import NO_FILE, Link, write_link
from tailrace.state.partitions import Spread, spread_of
from tailrace.state.plain import Packer
from tailrace.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace.state.state import Key, State


def respread(
    directory: Path,
    partitions: int,
    version: int,
    place: Callable[[Sequence[Key]], Sequence[int]],
    *,
    idle_after: bool = False,
) -> int:
    """Repartition the state as of the end of batch ``version``; returns the number of keys.

    ``place`` maps keys to partitions, given the new number. Only this version is kept; with
    ``idle_after`` also one for a later batch without records, in case there is one.
    """
    before = spread_of(directory)
    if before is None:
        raise InputError(
            f"There is no state of a step in {directory}: run the flow first, so that it has some."
        )
    if partitions < 1:
        raise InputError(f"State cannot be spread over {partitions} partitions: give at least 1.")
    after = Spread(partitions, before.generation + 1)
    stores = opened_stores(directory, version)
    home = after.home(directory)
    shutil.rmtree(home, ignore_errors=True)  # what an earlier attempt left
    shares: list[list[tuple[Key, State]]] = [[] for _ in range(partitions)]
    for store in stores:
        for number, held in zip(place(list(store.values)), store.values.items(), strict=True):
            shares[number].append(held)
    moment_us = _earliest(stores)
    for number, share in enumerate(shares):
        there = home / str(number)
        there.mkdir(parents=True)
        link = Link(version, os.urandom(8).hex(), NO_FILE, snapshot=True)
        _write(there, link, share, moment_us)
        if idle_after:
            later = Link(version + 1, os.urandom(8).hex(), link.nonce, snapshot=False)
            _write(there, later, (), moment_us)
    after.write(directory)
    _remove(directory, before)
    return sum(map(len, shares))


def begin(directory: Path, partitions: int, version: int) -> None:
    """Let a step begin without state, after a batch for which other steps already have some."""
    spread = Spread(partitions)
    for number in range(partitions):
        there = spread.home(directory) / str(number)
        there.mkdir(parents=True, exist_ok=True)
        _write(there, Link(version, os.urandom(8).hex(), NO_FILE, snapshot=True), (), None)
    spread.write(directory)


def opened_stores(directory: Path, version: int) -> list[Store]:
    """The state of a step as of the end of a batch, by partition."""
    spread = spread_of(directory) or Spread(0)
    stores = [Store(spread.home(directory) / str(number)) for number in range(spread.partitions)]
    for store in stores:
        store.open(version)
    return stores


def _earliest(stores: Sequence[Store]) -> int | None:
    """The event time that all partitions have reached, except those that have seen none.

    Each partition has its own event time. Keys from several partitions now share one, and no timer
    may fire too early; some may fire later than they would have.
    """
    return min((s.newest_event_us for s in stores if s.newest_event_us is not None), default=None)


def _write(
    directory: Path, link: Link, share: Sequence[tuple[Key, State]], moment_us: int | None
) -> None:
    packer = Packer()

    def records() -> Iterator[Any]:
        yield packer.add(moment_us)
        for key, state in share:
            yield packer.add((key, dict(state), state.timer_us))

    write_link(directory, link, packer, records())


def _remove(directory: Path, spread: Spread) -> None:
    """Remove partitions that are no longer current; any that cannot be removed only take space."""
    home = spread.home(directory)
    numbers = (str(number) for number in range(spread.partitions))
    for place in (home,) if spread.generation else (home / number for number in numbers):
        shutil.rmtree(place, ignore_errors=True)
