"""State that was written in format 1, under ``format1``: read, judged and gone on with.

Six batches of a step over two partitions. What they hold follows from ``expected`` below.
"""

from __future__ import annotations

import os
import shutil
import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import FlowFailed
from tailrace.state.partitions import partitions_of, prepare
from tailrace.state.respread import respread
from tailrace.state.state import State
from tailrace.state.store import Store

WRITTEN = Path(__file__).with_name("format1")
BATCHES = 6

Contents = dict[int, tuple[dict[str, Any], int | None]]


def expected(partition: int) -> Contents:
    """The state of a partition after the last batch, by a plain dict."""
    state: Contents = {}
    for batch in range(BATCHES):
        few = range((6 * batch + partition) % 24, 24, 12)
        for key in few if batch else range(partition, 24, 2):
            if (batch + key) % 7 == 6:
                state.pop(key, None)
            else:
                timer_us = 1_000 * batch + key if key % 3 else None
                state[key] = (value(batch, key), timer_us)
    return state


def value(batch: int, key: int) -> dict[str, Any]:
    moment = datetime(2026, 11, 1, key % 24, tzinfo=UTC)
    return {"n": batch, "key": key, "seen": [batch, key], "at": moment, "sum": Decimal(batch) / 4}


def contents(store: Store) -> Contents:
    return {key: (dict(state), state.timer_us) for key, state in store.values.items()}


def opened(directory: Path, version: int = BATCHES - 1) -> Store:
    store = Store(directory)
    store.open(version)
    return store


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the directory of the step."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Path(shutil.copytree(WRITTEN / "count", tmp_path / "count"))


def formats(directory: Path) -> set[int]:
    return {path.read_bytes()[15] for path in directory.glob("*-*")}


def test_it_is_read_as_it_was_written(step: Path) -> None:
    prepare(step, 2)
    for partition in range(2):
        assert formats(step / str(partition)) == {1}
        store = opened(step / str(partition))
        assert contents(store) == expected(partition)
        assert store.newest_event_us == 5_000 + partition


def test_it_is_gone_on_with_in_the_new_format(step: Path) -> None:
    store, reference = opened(step / "0"), expected(0)
    for batch in range(BATCHES, BATCHES + 40):
        store.touch(0)
        store.put(0, State({"n": batch}))
        store.write(batch)
        reference[0] = ({"n": batch}, None)
        if batch == BATCHES:
            assert formats(step / "0") == {1, 2}
        assert contents(opened(step / "0", batch)) == reference
        store.open(batch)
    assert formats(step / "0") == {2}


def test_it_is_spread_anew_in_the_new_format(step: Path) -> None:
    def place(keys: Any) -> list[int]:
        return [key % 3 for key in keys]

    both = expected(0) | expected(1)
    assert respread(step, 3, BATCHES - 1, place) == len(both)
    assert partitions_of(step) == 3
    found: Contents = {}
    for partition in range(3):
        found |= contents(opened(step / "spread-1" / str(partition)))
        assert formats(step / "spread-1" / str(partition)) == {2}
    assert found == both


def test_any_byte_of_it_that_is_changed_is_noticed(step: Path) -> None:
    for path in sorted((step / "0").glob("[25]-*.delta")):
        whole = path.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(FlowFailed):
                opened(step / "0")
        path.write_bytes(whole)
    assert contents(opened(step / "0")) == expected(0)


@pytest.mark.parametrize("less", [1, 2, 3, -1, -(2**40)])
def test_another_number_of_records_is_noticed_though_no_checksum_covers_it(
    step: Path, less: int
) -> None:
    for path in (step / "0").glob("*-*"):
        whole = path.read_bytes()
        (count,) = struct.unpack(">Q", whole[-12:-4])
        if count < less:
            continue
        path.write_bytes(whole[:-12] + struct.pack(">Q", count - less) + whole[-4:])
        with pytest.raises(FlowFailed, match="is not a whole state file"):
            opened(step / "0")
        path.write_bytes(whole)


def test_it_does_not_pass_for_a_file_of_another_format(step: Path) -> None:
    (path,) = (step / "0").glob("5-*")
    whole = bytearray(path.read_bytes())
    for written_as in (0, 2, 3, 255):
        whole[15] = written_as
        path.write_bytes(whole)
        with pytest.raises(FlowFailed):
            opened(step / "0")
