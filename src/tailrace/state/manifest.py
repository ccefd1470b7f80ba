"""What wrote a checkpoint: which flow, which steps keep state in it, and how that is laid out.

The place of a key's state follows from the type of the key and the name of the step. A flow that
changes either between two runs would look in the wrong place and silently start from nothing. So a
checkpoint records what wrote it, and a later run is compared with that: safe changes are accepted,
others are converted where that is possible, and the rest is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.state.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
_FILE = "tailrace.json"

KEYED = "keyed"
HASHED = "hash of the key over partitions"
"""How the keys of a step are laid out; the only layout so far."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
"""Integer types; each holds all values of those before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A step as its checkpoint records it: for a keyed one its key, types, and kind of timers."""

    kind: str
    key: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    timers: str = ""
    spread: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint records. ``steps`` is None for checkpoints that predate this record."""

    identity: str
    flow: str = ""
    tailrace: str = ""
    steps: Mapping[str, Layout] | None = None

    def write(self, directory: Path) -> None:
        """Write the manifest, completely or not at all."""
        steps = {name: asdict(layout) for name, layout in (self.steps or {}).items()}
        told = {
            "format": FORMAT,
            "tailrace": self.tailrace,
            "identity": self.identity,
            "flow": self.flow,
            "steps": steps,
        }
        write_text(directory / _FILE, json.dumps(told, indent=1) + "\n")


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a checkpoint; None if nothing was written there yet."""
    try:
        text = (directory / _FILE).read_text("utf-8", "replace")
    except FileNotFoundError:
        return _before_manifests(directory)
    try:
        told = json.loads(text)
        if told["format"] > FORMAT:
            raise InputError(
                f"The checkpoint {directory} was written by Tailrace {told['tailrace']}, which is "
                "newer than this one: run the flow with that version."
            )
        steps = {str(name): _layout(given) for name, given in told["steps"].items()}
        return Manifest(str(told["identity"]), str(told["flow"]), str(told["tailrace"]), steps)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(directory / _FILE) from error


def _before_manifests(directory: Path) -> Manifest | None:
    """Checkpoints of November 2026 and earlier hold their identity in a file of that name."""
    try:
        identity = (directory / "identity").read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    if not identity:
        raise _damaged(directory / "identity")
    return Manifest(identity)


def _layout(given: Any) -> Layout:
    fields = {**given, "key": tuple(given["key"]), "types": tuple(given["types"])}
    return Layout(**fields)


def _damaged(file: Path) -> InputError:
    return InputError(
        f"The file {file}, which says what wrote the checkpoint, is damaged: put back a copy of "
        "the checkpoint, or start with a new one."
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be done to a checkpoint before another version of its flow may continue it.

    ``renamed`` maps old names to new ones. The keys of ``spread_anew`` hash to other partitions
    than before. Steps in ``added`` begin without state; the state of those in ``removed`` is put
    aside.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    spread_anew: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def changes(
    before: Mapping[str, Layout], after: Mapping[str, Layout], formerly: Mapping[str, str]
) -> Changes:
    """Compare the steps of a checkpoint with those of the flow that is to continue it.

    Only keyed steps matter: all others may come, go and change. ``formerly`` maps new names of
    steps to earlier ones.

    Raises:
        InputError: If state would be lost or looked for in the wrong place.
    """
    old = {name: layout for name, layout in before.items() if layout.kind == KEYED}
    new = {name: layout for name, layout in after.items() if layout.kind == KEYED}
    renamed = {was: now for now, was in formerly.items() if now in new and now not in old}
    for was, now in renamed.items():
        if was not in old:
            raise InputError(
                f"Step '{now}' says that it was '{was}' before, but the checkpoint has no state of "
                f"such a step: it has {_listed(old)}."
            )
    names = {was: renamed.get(was, was) for was in old}
    added = tuple(name for name in new if name not in names.values())
    removed = tuple(was for was, now in names.items() if now not in new)
    if added and removed:
        raise InputError(
            f"The checkpoint holds state of step '{removed[0]}', which the flow no longer has, and "
            f"none of step '{added[0]}': if that is its new name, say so with "
            f"keyed_step('{added[0]}', ..., formerly='{removed[0]}'); if they have nothing to do "
            f"with each other, run the flow once without '{added[0]}'."
        )
    kept = {now: (old[was], new[now]) for was, now in names.items() if now in new}
    anew = tuple(name for name, (was, now) in kept.items() if _moves(name, was, now))
    return Changes(renamed, anew, added, removed)


def _moves(name: str, was: Layout, now: Layout) -> bool:
    """Whether the keys of a step go to other partitions than before; refuses an unsafe change.

    Spark hashes all integers of up to 32 bits alike, and longer ones differently.
    """
    if was.key != now.key:
        raise InputError(
            f"Step '{name}' is keyed by {_listed(now.key)}, and its state in the checkpoint by "
            f"{_listed(was.key)}: name the column as it was, or start with a new checkpoint."
        )
    if was.timers and now.timers and was.timers != now.timers:
        raise InputError(
            f"The timers of step '{name}' are in {now.timers}, and those in the checkpoint in "
            f"{was.timers}: leave that as it was, or start with a new checkpoint."
        )
    pairs = [(a, b) for a, b in zip(was.types, now.types, strict=True) if a != b]
    for old, new in pairs:
        if not _widened(old, new):
            raise InputError(
                f"The key of step '{name}' is of type {new}, and that of its state in the "
                f"checkpoint {old}: cast it to {old} before the step, or start with a new "
                "checkpoint."
            )
    return any(new == "bigint" for _, new in pairs)


def _widened(old: str, new: str) -> bool:
    known = old in _INTEGERS and new in _INTEGERS
    return known and _INTEGERS.index(old) < _INTEGERS.index(new)


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
