"""A checkpoint: what a run leaves, and what a later run must fit to resume from it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import tailrace
from tailrace.errors import InputError
from tailrace.model.keys.keytypes import rule_of
from tailrace.model.keys.murmur import partition_of
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.state.manifest import KEYED, Changes, Layout, Manifest, changes, read_manifest
from tailrace.state.partitions import partitions_of, prepare, spread_of
from tailrace.state.place import state_place
from tailrace.state.respread import begin, opened_stores, respread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tailrace.state.state import Key


class Checkpoint:
    """The directory of a run: Spark's log, the state of keyed steps, and what wrote them."""

    def __init__(self, directory: Path) -> None:
        """The checkpoint in a directory, or a new one."""
        self.directory = directory
        self.log = BatchLog(directory / "checkpoint")
        self._manifest = read_manifest(directory) or Manifest(uuid.uuid4().hex, steps={})
        self._added: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The id of the checkpoint, stored with everything that belongs to it."""
        return self._manifest.identity

    def state_of(self, step: str) -> Path:
        """Where a keyed step keeps its state."""
        return state_place(self.directory / "state", step)

    def adopt(
        self, flow: str, steps: Mapping[str, Layout], formerly: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Make the checkpoint fit a flow with these steps, or refuse.

        If this is interrupted, a repeated call does the rest; ``prepare`` comes after it.

        Returns:
            Notes for the report.
        """
        before = self._manifest.steps
        if before is None:
            before = self._steps_found(steps)
        found = changes(before if self.log.committed >= 0 else {}, steps, formerly)
        for was, now in found.renamed.items():
            if not self.state_of(now).exists():
                self.state_of(was).rename(self.state_of(now))
        for name in found.removed:
            self._put_aside(name)
        for name in found.spread_anew:
            self._spread_anew(name, steps[name].types)
        self._added = found.added
        self._manifest = replace(
            self._manifest, flow=flow, tailrace=tailrace.__version__, steps=dict(steps)
        )
        return _told(found)

    def prepare(self, partitions: Mapping[str, int]) -> None:
        """Fix the partitions of keyed steps, or refuse a changed number; then write the manifest.

        A step that is new to a checkpoint starts without state, as of the last batch.
        """
        for name, layout in (self._manifest.steps or {}).items():
            if layout.kind != KEYED:
                continue
            place = self.state_of(name)
            if spread_of(place) is not None or self.log.committed < 0:
                prepare(place, partitions[name])
            elif name in self._added:
                begin(place, partitions[name], self.log.committed)
            else:
                raise InputError(
                    f"The checkpoint {self.directory} has lost the state of step '{name}': restore "
                    "a complete copy of it, or start with a new checkpoint."
                )
        self._manifest.write(self.directory)

    def _put_aside(self, name: str) -> None:
        """Keep the state of a removed step where no later step of the same name finds it."""
        place = self.state_of(name)
        aside = self.directory / "removed" / f"{place.name}-{self.log.committed}"
        aside.parent.mkdir(exist_ok=True)
        if place.exists():
            place.rename(aside)

    def _spread_anew(self, name: str, types: tuple[str, ...]) -> None:
        place = self.state_of(name)
        partitions = partitions_of(place)
        if partitions is not None:
            to = partial(places, partitions=partitions, kinds=types)
            respread(place, partitions, self.log.committed, to)

    def _steps_found(self, steps: Mapping[str, Layout]) -> dict[str, Layout]:
        """The steps of a checkpoint that does not name them, as far as its state shows."""
        there = self.directory / "state"
        kept = {place.name for place in there.iterdir()} if there.is_dir() else set()
        found = {
            name: layout
            for name, layout in steps.items()
            if layout.kind == KEYED and self.state_of(name).name in kept
        }
        for name, layout in found.items():
            self._check_places(name, layout.types)
        others = kept - {self.state_of(name).name for name in found}
        return found | {unquote(name): Layout(KEYED) for name in others}

    def _check_places(self, name: str, types: tuple[str, ...]) -> None:
        """Refuse keys of another type: their hash put them into other partitions."""
        spread = spread_of(self.state_of(name))
        if spread is None or self.log.committed < 0:
            return
        stores = opened_stores(self.state_of(name), self.log.committed)
        for number, store in enumerate(stores):
            if not _belong(list(store.values), number, spread.partitions, types):
                raise InputError(
                    f"The state of step '{name}' in {self.directory} is not partitioned by keys of "
                    f"type {', '.join(types)}: key the step by the type that it had, or start "
                    "with a new checkpoint."
                )


def _belong(keys: list[Key], partition: int, partitions: int, types: tuple[str, ...]) -> bool:
    """Whether keys are in the partition that Spark's hash gives their types, if that is known."""
    try:
        for kind in types:
            rule_of(kind)
    except InputError:
        return True  # a type whose hash in Spark is not known here
    try:
        return all(place == partition for place in places(keys, partitions, types))
    except InputError:
        return False  # they are not of these types


def _told(found: Changes) -> tuple[str, ...]:
    renamed = (f"The state of step '{a}' is now that of '{b}'." for a, b in found.renamed.items())
    anew = (
        f"The state of step '{name}' was spread anew, since its key has another type."
        for name in found.spread_anew
    )
    gone = (
        f"The state of step '{name}', which the flow no longer has, was put aside."
        for name in found.removed
    )
    return (*renamed, *anew, *gone)


def places(keys: Sequence[Key], partitions: int, kinds: tuple[str, ...]) -> list[int]:
    """Where Spark's exchange sends these keys."""
    kind: Any = kinds[0] if len(kinds) == 1 else kinds
    return [int(place) for place in partition_of(keys, partitions, kind)]
