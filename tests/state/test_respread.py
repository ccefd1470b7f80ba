"""State that is spread anew: against a plain dict, whenever it is interrupted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.keys.murmur import partition_of
from tailrace.state.partitions import home_of, partitions_of, prepare
from tailrace.state.respread import respread
from tailrace.state.state import State
from tailrace.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kept = dict[str, tuple[int, int | None]]


def by_hash(partitions: int) -> Callable[[Sequence[Any]], list[int]]:
    return lambda keys: [int(place) for place in partition_of(list(keys), partitions, "string")]


def batch(directory: Path, number: int, changes: Kept) -> None:
    """What a keyed step does in one batch, on all partitions that it has."""
    partitions = partitions_of(directory) or 1
    place = by_hash(partitions)
    for partition in range(partitions):
        store = Store(home_of(directory) / str(partition))
        store.open(number - 1)
        for key, (value, timer_us) in changes.items():
            if place([key])[0] == partition:
                store.touch(key)
                store.put(key, State({"n": value}, timer_us))
                store.newest_event_us = max(store.newest_event_us or 0, value)
        store.write(number)


def kept(directory: Path, number: int) -> Kept:
    """All that is remembered, each key found where Spark would look for it."""
    partitions = partitions_of(directory) or 1
    found: Kept = {}
    for partition in range(partitions):
        store = Store(home_of(directory) / str(partition))
        store.open(number)
        assert set(by_hash(partitions)(list(store.values))) <= {partition}
        found |= {key: (state["n"], state.timer_us) for key, state in store.values.items()}
    return found


changes = st.dictionaries(
    st.text(max_size=3), st.tuples(st.integers(0, 99), st.none() | st.integers(0, 99)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes, min_size=2, max_size=5), st.lists(st.integers(1, 9), min_size=2))
def test_state_is_the_same_under_any_numbers_of_partitions(
    batches: list[Kept], numbers: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "count"
        expected: Kept = {}
        prepare(directory, numbers[0])
        for number, made in enumerate(batches):
            batch(directory, number, made)
            expected |= made
            partitions = numbers[(number + 1) % len(numbers)]
            assert respread(directory, partitions, number, by_hash(partitions)) == len(expected)
            assert partitions_of(directory) == partitions
            assert kept(directory, number) == expected
        homes = {path.name for path in directory.iterdir() if path.is_dir()}
        assert homes == {f"spread-{len(batches)}"}


def test_interrupted_at_any_moment_it_has_changed_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Kept = {f"k{n}": (n, None) for n in range(20)}
    real = Path.replace
    for allowed in range(100):
        directory = tmp_path / str(allowed)
        prepare(directory, 2)
        batch(directory, 0, made)
        left = [allowed]

        def replace(self: Path, target: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        try:
            respread(directory, 5, 0, by_hash(5))
        except KeyboardInterrupt:
            monkeypatch.undo()
            assert partitions_of(directory) == 2
            assert kept(directory, 0) == made
            assert respread(directory, 5, 0, by_hash(5)) == 20
        finally:
            monkeypatch.undo()
        assert partitions_of(directory) == 5
        assert kept(directory, 0) == made
        if left[0]:
            assert allowed > 5
            return
    pytest.fail("it never came to an end")


def test_a_batch_without_records_may_follow_that_no_step_saw(tmp_path: Path) -> None:
    prepare(tmp_path, 2)
    batch(tmp_path, 0, {"a": (1, 7), "b": (2, None)})
    respread(tmp_path, 3, 0, by_hash(3), idle_after=True)
    assert kept(tmp_path, 0) == kept(tmp_path, 1) == {"a": (1, 7), "b": (2, None)}
    batch(tmp_path, 2, {"a": (5, None)})
    assert kept(tmp_path, 2) == {"a": (5, None), "b": (2, None)}


def test_what_is_spread_as_it_should_be_gets_a_version_for_such_a_batch_too(tmp_path: Path) -> None:
    """Also once more, as when it was interrupted before Spark made that batch."""
    prepare(tmp_path, 2)
    batch(tmp_path, 0, {"a": (1, 7), "b": (2, None)})
    for _ in range(2):
        respread(tmp_path, 2, 0, by_hash(2), idle_after=True)
        assert partitions_of(tmp_path) == 2
    batch(tmp_path, 2, {"a": (5, None)})
    assert kept(tmp_path, 2) == {"a": (5, None), "b": (2, None)}


def test_a_version_for_such_a_batch_gives_way_if_there_is_none(tmp_path: Path) -> None:
    """Interrupted before Spark made that batch, and then run: the next one brings records."""
    prepare(tmp_path, 2)
    batch(tmp_path, 0, {"a": (1, 7), "b": (2, None)})
    respread(tmp_path, 3, 0, by_hash(3), idle_after=True)
    batch(tmp_path, 1, {"a": (5, None)})
    assert kept(tmp_path, 1) == {"a": (5, None), "b": (2, None)}


def test_no_timer_comes_before_its_time(tmp_path: Path) -> None:
    """Keys of a partition that is ahead wait for those of one that is behind."""
    prepare(tmp_path, 2)
    first, second = (next(k for k in "abcdef" if by_hash(2)([k]) == [p]) for p in (0, 1))
    batch(tmp_path, 0, {first: (10, None), second: (90, None)})
    respread(tmp_path, 1, 0, by_hash(1))
    store = Store(home_of(tmp_path) / "0")
    store.open(0)
    assert store.newest_event_us == 10


def test_what_is_not_there_cannot_be_spread(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no state of a step"):
        respread(tmp_path, 2, 0, by_hash(2))
    prepare(tmp_path, 2)
    with pytest.raises(InputError, match="over 0 partitions"):
        respread(tmp_path, 0, 0, by_hash(1))
