"""What tests do to stores: run batches, look at their files, and open damaged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import FlowFailed
from tailrace.state.state import State
from tailrace.state.store import Store

if TYPE_CHECKING:
    from pathlib import Path

Changes = dict[Any, int | None]


def change(store: Store, changes: Changes) -> None:
    """Do to a store what a step does: a number is kept, with a timer if it is odd."""
    for key, number in changes.items():
        store.touch(key)
        if number is None:
            store.forget(key)
        else:
            store.put(key, State({"n": number}, number if number % 2 else None))
            store.newest_event_us = max(store.newest_event_us or 0, number)


def run(store: Store, batch: int, changes: Changes) -> None:
    store.open(batch - 1)
    change(store, changes)
    store.write(batch)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def version_files(directory: Path, version: int) -> list[Path]:
    return sorted(directory.glob(f"{version}-*"))


def refusal(path: Path) -> str:
    with pytest.raises(FlowFailed) as refused:
        Store(path.parent).open(0)
    message = str(refused.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message
