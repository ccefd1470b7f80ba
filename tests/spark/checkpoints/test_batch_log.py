from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InputError
from tailrace.spark.checkpoints.batch_log import BatchLog

if TYPE_CHECKING:
    from pathlib import Path


def log(directory: Path, *offsets: str) -> BatchLog:
    (directory / "offsets").mkdir(exist_ok=True)
    for batch, told in enumerate(offsets):
        settings = f'{{"batchTimestampMs": {batch}, "conf": {{"a": "{batch}"}}}}'
        (directory / "offsets" / str(batch)).write_text(f"v1\n{settings}\n{told}")
    return BatchLog(directory)


def test_the_last_committed_batch_is_the_highest_number_in_the_log(tmp_path: Path) -> None:
    assert BatchLog(tmp_path).committed == -1
    log = tmp_path / "commits"
    log.mkdir()
    assert BatchLog(tmp_path).committed == -1
    for name in ("0", "9", "10", ".11.crc", "12.tmp", ".13.tmp"):
        (log / name).touch()
    assert BatchLog(tmp_path).committed == 10


def test_a_range_is_that_of_the_offsets_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one, other = log(tmp_path / "x", "a\nb", "c", "c"), log(tmp_path / "y", "z", "a\nb", "c")
    assert one.range_of(1) == other.range_of(2)
    assert one.range_of(0) != other.range_of(1)
    assert one.range_of(1) != one.range_of(2)
    assert one.range_of(0).start == ""
    assert one.settings(2) == {"a": "2"}


def test_offsets_that_are_gone_or_cut_off_are_said_to_be(tmp_path: Path) -> None:
    found = log(tmp_path, "a", "b")
    assert found.knows(1)
    assert not found.knows(2)
    (tmp_path / "offsets/1").write_text("v1\n{}")
    for batch in (1, 2):
        with pytest.raises(InputError, match="has no offsets of batch 1: restore"):
            found.range_of(batch)
