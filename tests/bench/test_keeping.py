"""A long benchmark goes on where it was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.bench.keeping import Kept
from tailrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def fail() -> dict[str, Any]:
    raise AssertionError("it was run once more")


def test_a_run_that_was_kept_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first = Kept(file, step_s=60.0)
    assert first("a", lambda: {"x": 1}) == {"x": 1}
    assert first("a", fail) == {"x": 1}
    with pytest.raises(AssertionError):
        first("b", fail)
    later = Kept(file, step_s=60.0)
    assert later("a", fail) == {"x": 1}
    assert later("b", lambda: {"x": 2}) == {"x": 2}
    assert len(file.read_text("utf-8").splitlines()) == 2


def test_without_a_file_runs_are_only_remembered() -> None:
    kept = Kept(None)
    assert kept("a", lambda: {"x": 1}) == {"x": 1}
    assert kept("a", fail) == {"x": 1}


def test_runs_of_another_setting_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    Kept(file, step_s=15.0)("a", dict)
    with pytest.raises(InputError, match=r"were made with {'step_s': 15.0} and not with"):
        Kept(file, step_s=60.0)


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"name": "a"}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(line + "\n", "utf-8")
    with pytest.raises(InputError, match="something else than finished runs"):
        Kept(file)
