"""The partitions of a step, and the stores that a process keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import FlowFailed, InputError
from tailrace.state import partitions
from tailrace.state.partitions import held, partitions_of, prepare
from tests.state.stores import files, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_HELD", {})


def test_the_number_of_partitions_is_fixed_when_state_is_first_written(tmp_path: Path) -> None:
    root = tmp_path / "count"
    assert partitions_of(root) is None
    prepare(root, 8)
    prepare(root, 8)
    assert partitions_of(root) == 8
    with pytest.raises(InputError, match=r"step 'count' in .* over 8 partitions, not 4: run it"):
        prepare(root, 4)
    assert files(root) == ["partitions"]
    (root / "partitions").write_bytes(b"")
    with pytest.raises(FlowFailed, match="does not hold a number"):
        partitions_of(root)


@pytest.mark.usefixtures("_nothing_held")
def test_a_process_keeps_the_stores_that_it_is_asked_for(tmp_path: Path) -> None:
    stores = [held(tmp_path / "s" / str(p), lambda: 0.0, step="s", partition=p) for p in range(3)]
    for batch in range(6):
        for partition, store in enumerate(stores):
            assert held(tmp_path / "s" / str(partition), lambda: 0.0) is store
            run(store, batch, {"a": batch})


@pytest.mark.usefixtures("_nothing_held")
def test_a_process_lets_go_of_partitions_that_run_elsewhere_by_now(tmp_path: Path) -> None:
    moved = held(tmp_path / "s" / "0", lambda: 0.0)
    other_step = held(tmp_path / "t" / "0", lambda: 0.0)
    run(moved, 0, {})
    stays = held(tmp_path / "s" / "1", lambda: 0.0)
    for batch in range(6):
        run(held(tmp_path / "s" / "1", lambda: 0.0), batch, {})
    assert held(tmp_path / "s" / "1", lambda: 0.0) is stays
    assert held(tmp_path / "s" / "0", lambda: 0.0) is not moved
    assert held(tmp_path / "t" / "0", lambda: 0.0) is other_step


@pytest.mark.usefixtures("_nothing_held")
def test_a_process_lets_go_of_steps_that_have_ended(tmp_path: Path) -> None:
    ended = held(tmp_path / "s" / "0", lambda: 0.0)
    held(tmp_path / "t" / "0", lambda: 1_801.0)
    assert held(tmp_path / "s" / "0", lambda: 1_802.0) is not ended
