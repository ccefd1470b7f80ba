"""The state of one step in one partition: in memory, and on disk as of every batch.

A batch writes its state before Spark commits it. So after a crash the disk may hold the work of
batches that were never committed, of attempts that failed, and of abandoned attempts that are still
running. The correct state is what the last attempt at the last committed batch wrote. Three rules
make sure that it is always found:

- Every attempt writes its own files, named by the batch and a random nonce. Nothing is ever
  overwritten.
- Every file names its parent, the file of the previous batch that it builds on. So one file
  determines all others that make up its version.
- An attempt that opens version ``v`` writes a claim: it will write ``v + 1``, on a parent that it
  names. If a version has several files, the one of the last claim is valid, and from the next
  claim on the one that it names as parent. A superseded attempt may still write, but its file is
  not read. If the claim that says which of several files is valid is lost or damaged, the store
  does not guess: it is not opened.

This fails in one case: of two attempts, the one that Spark abandoned made the last claim and ran to
its end. Spark runs attempts side by side only in speculation, where both see the same records.

After a crash of one process, or of all of them, the state is exact. The same holds for a power
failure if the disk keeps what it acknowledged, except for renames of the last moments: directories
are not flushed. A version whose rename was lost is reported as missing when it is opened.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.errors import FlowFailed, StepFailed
from tailrace.state.files import (
    NO_FILE,
    Link,
    Name,
    WriteClaim,
    damaged,
    names_in,
    read_claim,
    read_link,
    read_records,
    write_claim,
    write_link,
)
from tailrace.state.plain import NotPlain, Packer
from tailrace.state.state import State, canonical, shown
from tailrace.state.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tailrace.state.state import Key

LIMIT_BYTES = 1 << 30
MOST_DELTAS = 250
"""Reading this many small files took 20 ms; a snapshot of a large state takes far longer."""

WEIGH_EVERY = 10_000


class Store:
    """The states of one step in one partition, under the rules of this module.

    ``open(v)`` sets ``values`` to what they were at the end of batch ``v``, ``touch`` marks a key
    before its state is changed, and ``write(v + 1)`` writes their current content as a version.

    A version is written as a delta (the touched keys) or as a snapshot (all keys). A snapshot is
    due when the deltas since the last one have outgrown it, so that over time at most twice the
    changes are written, or when there are ``most_deltas`` of them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        step: str | None = None,
        partition: int | None = None,
        limit_bytes: int = LIMIT_BYTES,
        most_deltas: int = MOST_DELTAS,
    ) -> None:
        """Reads nothing; ``open`` does. ``step`` and ``partition`` are for messages."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.shown = shown
        self.values: dict[Key, State] = {}
        self.timers = Timers(self.values)
        self.newest_event_us: int | None = None
        self.size_bytes = 0
        self.version: int | None = None
        self.attempt: str | None = None
        self._most_deltas = most_deltas
        self._where = (
            f"step '{directory.parent.name if step is None else step}', "
            f"partition {directory.name if partition is None else partition}"
        )
        self._head = NO_FILE
        self._chain: list[Link] = []
        self._touched: dict[Key, None] = {}
        self._unweighed: dict[Key, None] = {}
        self._touches = 0

    # --- opening --------------------------------------------------------------------------------

    def open(self, version: int) -> None:
        """Load the state as of the end of batch ``version``; -1 is before the first batch.

        ``version`` is committed. Changes that were not written are discarded. If the memory already
        holds this version, or one that it builds on, only the missing part is read.
        """
        with self._speaking("opened"):
            self.directory.mkdir(parents=True, exist_ok=True)
            claim, names = read_claim(self.directory), names_in(self.directory)
            head = self._head_of(version, claim, names)
            if self._touched:
                self.version = None
            if (self.version, self._head) != (version, head):
                self._load(version, head)
            self.attempt = os.urandom(8).hex()
            contested = any(name.version == version + 1 for name in names)
            mine = WriteClaim(version + 1, self.attempt, head)
            write_claim(self.directory, mine, flush=contested)
            self._clean(version, claim, names)

    def _head_of(self, version: int, claim: WriteClaim | None, names: list[Name]) -> str:
        """The nonce of the valid file of a version."""
        if version < 0:
            return NO_FILE
        if claim and claim.version > version:
            return self._ancestor(version, claim)
        found = {n.nonce for n in names if n.version == version and _is_whole(n)}
        if not found:
            raise self._missing(version)
        if claim and claim.version == version and claim.nonce in found:
            return claim.nonce
        if len(found) > 1:
            raise FlowFailed(
                f"The state of {self._where}, as of batch {version}, is in {self.directory} "
                f"{len(found)} times, by several attempts, and the claim that says which is valid "
                "is lost or damaged: put back a copy of the directory, or start the flow with a "
                "new checkpoint, which loses its state."
            )
        return found.pop()

    def _ancestor(self, version: int, claim: WriteClaim) -> str:
        """The file of a version that the claim for a later version builds on."""
        nonce = claim.parent
        for later in range(claim.version - 1, version, -1):
            nonce = self._link(later, nonce).parent
        return nonce

    def _link(self, version: int, nonce: str) -> Link:
        try:
            return read_link(self.directory, version, nonce)
        except FileNotFoundError:
            raise self._missing(version) from None

    def _missing(self, version: int) -> FlowFailed:
        return FlowFailed(
            f"The state of {self._where}, as of batch {version}, is not in {self.directory}: put "
            "back a copy of the directory, or start the flow with a new checkpoint, which loses "
            "its state."
        )

    def _load(self, version: int, head: str) -> None:
        """Read the newest snapshot up to a version and the deltas after it, as far as missing."""
        missed: list[Link] = []
        reached, nonce = version, head
        while reached >= 0 and (self.version, self._head) != (reached, nonce):
            missed.append(self._link(reached, nonce))
            if missed[-1].snapshot:
                break
            reached, nonce = reached - 1, missed[-1].parent
        self.version = None
        if reached < 0 or (missed and missed[-1].snapshot):
            self._empty()
        for link in reversed(missed):
            self._apply(link)
            self._chain.append(link)
        if len(missed) == 1 and missed[0].snapshot:
            self._chain[:0] = self._older(missed[0])
        self.version, self._head = version, head
        self.timers = Timers(self.values)

    def _empty(self) -> None:
        self.values.clear()
        self._chain.clear()
        self._touched.clear()
        self._unweighed.clear()
        self._touches = 0
        self.newest_event_us = None
        self.size_bytes = 0

    def _apply(self, link: Link) -> None:
        records = read_records(self.directory, link)
        values = self.values
        try:
            self.newest_event_us = _moment(next(records, (False, 0))[0])
            for (key, contents, timer_us), size in records:
                key = canonical(key)  # noqa: PLW2901 - it is the same key
                before = values.pop(key, None)
                if before is not None:
                    self.size_bytes -= before.size
                if contents is not None:
                    values[key] = state = State(contents, _moment(timer_us))
                    state.size = size
                    self.size_bytes += size
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            path = self.directory / link.name
            raise damaged(path, f"a record does not belong to a key: {error}") from error

    def _older(self, link: Link) -> list[Link]:
        """The files that restore the version before a snapshot, as far as they still exist."""
        found: list[Link] = []
        with suppress(FileNotFoundError):
            while link.version > 0 and not (found and link.snapshot):
                link = read_link(self.directory, link.version - 1, link.parent)
                found.insert(0, link)
        return found

    def _clean(self, version: int, before: WriteClaim | None, names: list[Name]) -> None:
        """Remove files needed neither for the open version nor for the one before.

        Spark has committed the open version; the one before is kept in case a power failure lost
        that commit. This goes by names, not ages: the files of an attempt at the current batch,
        temporary ones too, are removed once it was superseded twice, so that a batch that crashes
        repeatedly does not fill the disk.
        """
        bases = [i for i, k in enumerate(self._chain) if k.snapshot and k.version < version]
        del self._chain[: bases[-1] if bases else 0]
        kept = {link.name for link in self._chain}
        last = before.nonce if before and before.version == version + 1 else None
        for name in names:
            if name.version <= version:
                gone = name.text not in kept
            else:
                rival = name.version == version + 1 and name.kind != "claim"
                gone = rival and last is not None and name.nonce != last
            if gone:
                (self.directory / name.text).unlink(missing_ok=True)

    # --- changing -------------------------------------------------------------------------------

    def touch(self, key: Key) -> None:
        """Mark a key whose state is about to change."""
        self._touched[key] = None
        self._unweighed[key] = None
        self._touches += 1
        if self._touches >= WEIGH_EVERY:
            self._weigh()

    def put(self, key: Key, state: State) -> None:
        """Set the state of a key."""
        self.forget(key)
        self.values[key] = state
        self.size_bytes += state.size

    def forget(self, key: Key) -> None:
        """Remove a key."""
        state = self.values.pop(key, None)
        if state is not None:
            self.size_bytes -= state.size

    def _weigh(self) -> None:
        """Check how large the states have become within a batch, and refuse more than the limit.

        A real-time batch may be long. This costs at most one serialisation per touch; a write
        measures the size anyway.
        """
        packer = Packer()
        for _ in self._packed(packer, self._unweighed):
            packer.take()
        self._unweighed.clear()
        self._touches = 0

    def _packed(self, packer: Packer, keys: Iterable[Key]) -> Iterator[None]:
        for key in keys:
            state = self.values.get(key)
            try:
                if state is None:
                    packer.add((key, None, None))
                else:
                    size = packer.add((key, dict(state), state.timer_us))
                    self.size_bytes += size - state.size
                    state.size = size
            except NotPlain as error:
                raise self.unfit(key, error) from error
            yield
        if self.size_bytes > self.limit_bytes:
            raise StepFailed(
                f"The state of {self._where}, takes {self.size_bytes:,} bytes for "
                f"{len(self.values):,} keys and the limit is {self.limit_bytes:,}: use more "
                "partitions, forget keys with state.clear() or a timer, or raise the limit."
            )

    def unfit(self, key: Key, error: NotPlain) -> StepFailed:
        """The error for a state that is not plain data."""
        return StepFailed(
            f"The state of {self._where}, for key {self.shown(key)} cannot be kept, because "
            f"{error}: keep numbers, texts, dates, lists, dicts and the like instead."
        )

    # --- writing --------------------------------------------------------------------------------

    def write(self, version: int) -> None:
        """Write the memory as a version; only if that succeeds is it the open version.

        Even when nothing has changed: a later batch needs a file to build on.
        """
        if self.attempt is None or self.version is None or version != self.version + 1:
            raise ValueError(f"batch {version} was written, but {self.version} was opened")
        link = Link(version, self.attempt, self._head, self._snapshot_due())
        packer = Packer()
        packer.add(self.newest_event_us)
        records = self._packed(packer, self.values if link.snapshot else self._touched)
        with self._speaking("written"):
            size = write_link(self.directory, link, packer, _after_one(records))
        self._chain.append(replace(link, size=size))
        self.version, self._head, self.attempt = version, link.nonce, None
        self._touched.clear()
        self._unweighed.clear()
        self._touches = 0

    def _snapshot_due(self) -> bool:
        deltas = size = 0
        for link in reversed(self._chain):
            if link.snapshot:
                return deltas >= self._most_deltas or size >= link.size
            deltas, size = deltas + 1, size + link.size
        return True

    @contextmanager
    def _speaking(self, done: str) -> Iterator[None]:
        """Turn an error of the operating system into a sentence."""
        try:
            yield
        except FileNotFoundError as error:
            raise FlowFailed(
                f"The state of {self._where}, could not be {done}, because {error.filename} is "
                "gone: another attempt at this batch has taken over, or files were removed."
            ) from error
        except OSError as error:
            raise FlowFailed(
                f"The state of {self._where}, could not be {done} in {self.directory} "
                f"({error.strerror}): check the disk and its permissions, then restart the flow."
            ) from error


def _is_whole(name: Name) -> bool:
    """Whether a file of this name holds a version."""
    return name.kind != "claim" and not name.temporary


def _moment(read: Any) -> int | None:
    """A time in microseconds, or None, as read from a file."""
    if read is None or type(read) is int:
        return read
    raise TypeError(f"{read!r:.40} is not a time")


def _after_one(records: Iterable[None]) -> Iterator[Any]:
    """The records, preceded by the one that holds the newest event time."""
    yield None
    yield from records
