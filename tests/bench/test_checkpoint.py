"""A long benchmark goes on where it was interrupted."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import bench
from bench.checkpoint import Kept
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


def test_wherever_a_writer_was_killed_the_runs_before_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first = Kept(file, step_s=60.0)
    first("a", lambda: {"x": 1})
    finished = file.read_bytes()
    first("b", lambda: {"x": 2})
    both = file.read_bytes()
    for end in range(len(finished), len(both)):
        file.write_bytes(both[:end])
        later = Kept(file, step_s=60.0)
        assert later("a", fail) == {"x": 1}
        assert later("b", lambda: {"x": 2}) == {"x": 2}
        assert file.read_bytes() == both


def test_whoever_was_killed_in_the_first_line_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('{"name": "a", "set', "utf-8")
    assert Kept(file)("a", lambda: {"x": 1}) == {"x": 1}
    assert Kept(file)("a", fail) == {"x": 1}


@pytest.mark.parametrize(
    "text", ["{\n", "[]\n", "{}\n", '{"name": "a"}\n', "\n", "notes", '{"names": 3', "[]\n{}"]
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError, match="something other than finished runs"):
        Kept(file)
    assert file.read_text("utf-8") == text


def test_a_benchmark_can_be_told_to_keep_its_runs_if_it_is_a_long_one() -> None:
    for name in bench.NAMES:
        keeps = "keep" in inspect.signature(bench.benchmark(name).measure).parameters
        assert keeps == (name in bench.LONG), name
