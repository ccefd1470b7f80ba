"""Versions on disk: against a plain dict, whatever crashes, moves or comes too late."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import FlowFailed, InputError, StepFailed
from tailrace.state import partitions
from tailrace.state.files import (
    NO_FILE,
    Link,
    WriteClaim,
    read_claim,
    read_records,
    write_claim,
    write_link,
)
from tailrace.state.partitions import held, partitions_of, prepare
from tailrace.state.plain import Packer
from tailrace.state.state import State, canonical
from tailrace.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

Changes = dict[Any, int | None]
Contents = dict[Any, tuple[dict[Any, Any], int | None]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls the plug, so nothing is flushed."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def change(store: Store, changes: Changes) -> None:
    """Do to a store what a step does: a number is kept, with a timer if it is odd."""
    for key, number in changes.items():
        store.touch(key)
        if number is None:
            store.forget(key)
        else:
            store.put(key, State({"n": number}, number if number % 2 else None))
            store.newest_event_us = max(store.newest_event_us or 0, number)


def changed(contents: Contents, changes: Changes) -> Contents:
    """The same to a dict."""
    after = dict(contents)
    for key, number in changes.items():
        after.pop(key, None)
        if number is not None:
            after[key] = ({"n": number}, number if number % 2 else None)
    return after


def contents(store: Store) -> Contents:
    return {key: (dict(state), state.timer_us) for key, state in store.values.items()}


def run(store: Store, batch: int, changes: Changes) -> None:
    store.open(batch - 1)
    change(store, changes)
    store.write(batch)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def version_files(directory: Path, version: int) -> list[Path]:
    return sorted(directory.glob(f"{version}-*"))


# --- against a dict -----------------------------------------------------------------------------


class Killed(BaseException):
    pass


def write_and_be_killed_before_the_rename(
    store: Store, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends when the temporary file is whole, before it gets its name."""
    saved: list[tuple[Path, bytes]] = []

    def die(self: Path, _: Path) -> None:
        saved.append((self, self.read_bytes()))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            store.write(batch)
    for path, whole in saved:
        path.write_bytes(whole)


@dataclass
class World:
    """Spark, three processes that run one partition, and what its state has to be."""

    directory: Path
    monkeypatch: pytest.MonkeyPatch
    committed: int = -1
    expected: Contents = field(default_factory=dict)
    newest: int | None = None
    stores: list[Store] = field(default_factory=list)
    zombies: list[tuple[Store, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = [self.fresh() for _ in range(3)]

    def fresh(self) -> Store:
        return Store(self.directory, most_deltas=4)

    def attempt(self, process: int, outcome: str, changes: Changes) -> None:
        store, batch = self.stores[process], self.committed + 1
        store.open(self.committed)
        assert contents(store) == self.expected
        assert store.newest_event_us == self.newest
        change(store, changes)
        match outcome:
            case "commits" | "commits before zombies write":
                store.write(batch)
                self.committed, self.expected = batch, changed(self.expected, changes)
                self.newest = store.newest_event_us
            case "crashes after writing":
                store.write(batch)
            case "is killed while writing":
                torn = self.directory / f"{batch}-{store.attempt}.delta.tmp"
                torn.write_bytes(b"tailrace state\n and then"[: len(changes) * 7])
            case "is killed before the rename":
                write_and_be_killed_before_the_rename(store, batch, self.monkeypatch)
            case "becomes a zombie":
                self.zombies.append((store, batch))
                self.stores[process] = self.fresh()
            case "is replaced":
                self.stores[process] = self.fresh()
            case "crashes before writing":
                pass  # the store stays, as in a process that Spark uses again
            case "runs while zombies write":
                pass  # and crashes then
        if outcome.endswith("zombies write"):
            for zombie, late in self.zombies:
                zombie.write(late)
            self.zombies.clear()


outcomes = st.sampled_from(
    [
        *["commits"] * 4,
        "crashes before writing",
        "is killed while writing",
        "is killed before the rename",
        "crashes after writing",
        *["becomes a zombie"] * 2,
        "commits before zombies write",
        "runs while zombies write",
        "is replaced",
    ]
)
some_keys = st.sampled_from(["a", "b", "c", 1, None, ("a", 1), float("nan"), b"x"]).map(canonical)
some_changes = st.dictionaries(some_keys, st.none() | st.integers(0, 99), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), outcomes, some_changes), max_size=40))
def test_the_state_is_that_of_the_last_commit_whatever_happened_since(
    story: list[tuple[int, str, Changes]],
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        world = World(Path(place) / "step" / "0", monkeypatch)
        for process, outcome, changes in story:
            world.attempt(process, outcome, changes)
        last = world.fresh()
        last.open(world.committed)
        assert contents(last) == world.expected
        for store in world.stores:
            store.open(world.committed)
            assert contents(store) == world.expected
            assert store.size_bytes == last.size_bytes
            assert store.size_bytes == sum(state.size for state in store.values.values())
        if world.committed >= 1:
            last.open(world.committed - 1)


def test_a_zombie_that_writes_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    zombie, good = Store(tmp_path), Store(tmp_path)
    run(good, 0, {"a": 1})
    zombie.open(0)
    change(zombie, {"a": 666})
    run(good, 1, {"a": 2})
    zombie.write(1)
    next_one = Store(tmp_path)
    next_one.open(1)
    assert contents(next_one)["a"][0] == {"n": 2}
    zombie.open(1)
    assert contents(zombie)["a"][0] == {"n": 2}


def test_a_zombie_that_writes_when_the_next_batch_runs_changes_nothing(tmp_path: Path) -> None:
    zombie, good = Store(tmp_path), Store(tmp_path)
    run(good, 0, {"a": 1})
    zombie.open(0)
    change(zombie, {"a": 666})
    run(good, 1, {"a": 2})
    good.open(1)
    zombie.write(1)
    assert len(version_files(tmp_path, 1)) == 2
    rerun = Store(tmp_path)
    rerun.open(1)
    assert contents(rerun)["a"][0] == {"n": 2}
    assert len(version_files(tmp_path, 1)) == 1


def test_of_two_attempts_side_by_side_the_first_may_be_the_only_one_that_ends(
    tmp_path: Path,
) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.open(-1)
    second.open(-1)
    change(first, {"a": 1})
    first.write(0)
    second.open(0)
    assert contents(second) == contents(first)


def test_a_commit_that_a_power_failure_took_is_run_again_on_the_version_before(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, most_deltas=2)
    expected: list[Contents] = []
    for batch in range(12):
        run(store, batch, {batch % 3: batch})
        expected.append(contents(store))
        store.open(batch)
        if batch:
            again = Store(tmp_path, most_deltas=2)
            again.open(batch - 1)
            assert contents(again) == expected[batch - 1]
            change(again, {batch % 3: batch})
            again.write(batch)


def test_starting_over_with_a_new_checkpoint_finds_no_trace_of_the_old_state(
    tmp_path: Path,
) -> None:
    for batch in range(9):
        run(Store(tmp_path), batch, {"old": batch})
    for batch in range(12):
        store = Store(tmp_path)
        store.open(batch - 1)
        assert "old" not in store.values
        change(store, {"new": batch})
        store.write(batch)
    assert len(files(tmp_path)) < 12


# --- memory -------------------------------------------------------------------------------------


def test_memory_at_the_right_version_is_used_again_and_one_behind_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def watched(directory: Path, link: Link) -> Any:
        read.append(f"{link.version} {link.snapshot}")
        return read_records(directory, link)

    monkeypatch.setattr("tailrace.state.store.read_records", watched)
    here, there = Store(tmp_path), Store(tmp_path)
    many: Changes = dict.fromkeys(range(50), 1)
    run(here, 0, many)
    run(here, 1, {"a": 1})
    here.open(1)
    assert read == []
    there.open(1)
    assert read == ["0 True", "1 False"]
    there.write(2)
    run(there, 3, {"b": 4})
    read.clear()
    here.open(3)
    assert read == ["2 False", "3 False"]
    assert contents(here) == contents(there)
    change(here, {"b": 5})
    read.clear()
    here.open(3)
    assert read == ["0 True", "1 False", "2 False", "3 False"]


def test_a_write_that_fails_leaves_nothing_and_the_memory_does_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, 0, {"a": 1})
    store.open(0)
    before = files(tmp_path)
    change(store, {"b": 2})
    store.values["b"]["bad"] = print
    with pytest.raises(StepFailed):
        store.write(1)
    assert [name for name in files(tmp_path) if name not in before] == []
    store.open(0)
    assert contents(store) == {"a": ({"n": 1}, 1)}


def test_a_version_is_written_only_on_the_one_that_was_opened(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="batch 0 was written, but None was opened"):
        store.write(0)
    store.open(-1)
    with pytest.raises(ValueError, match="batch 1 was written, but -1 was opened"):
        store.write(1)
    store.write(0)
    with pytest.raises(ValueError, match="batch 1 was written"):
        store.write(1)


def test_state_beyond_the_limit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path / "count" / "3", limit_bytes=1_000)
    store.open(-1)
    change(store, dict.fromkeys(range(100), 1))
    with pytest.raises(StepFailed) as refused:
        store.write(0)
    size = store.size_bytes
    assert size > 1_000
    assert str(refused.value) == (
        f"The state of step 'count', partition 3, takes {size:,} bytes for 100 keys and the limit "
        "is 1,000: use more partitions, forget keys with state.clear() or a timer, or raise the "
        "limit."
    )
    assert files(store.directory) == ["claim"]


def test_state_beyond_the_limit_is_noticed_within_a_long_batch(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_bytes=100_000)
    store.open(-1)
    with pytest.raises(StepFailed, match="limit is 100,000"):
        change(store, dict.fromkeys(range(50_000), 1))
    assert len(store.values) < 25_000


def test_a_key_that_was_forgotten_does_not_count_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, 0, {"a": 1, "b": 2})
    both = store.size_bytes
    run(store, 1, {"a": None})
    assert 0 < store.size_bytes < both
    run(store, 2, {"b": None})
    assert store.size_bytes == 0
    assert Store(tmp_path).size_bytes == 0


def test_timers_survive(tmp_path: Path) -> None:
    run(Store(tmp_path), 0, {"late": 9, "none": 4, "early": 3})
    store = Store(tmp_path)
    store.open(0)
    assert store.timers.take(100) == [(3, "early"), (9, "late")]


# --- files --------------------------------------------------------------------------------------


def test_thousands_of_batches_leave_a_bounded_number_of_files(tmp_path: Path) -> None:
    store = Store(tmp_path, most_deltas=20)
    most = 0
    change_everything: Changes = dict.fromkeys(range(100), 1)
    run(store, 0, change_everything)
    for batch in range(1, 2_000):
        run(store, batch, {batch % 7: batch} if batch % 3 else {})
        if batch % 50 == 0:
            most = max(most, len(files(tmp_path)))
    assert most <= 2 * 20 + 4
    last = Store(tmp_path)
    last.open(1_999)
    assert contents(last) == contents(store)


def test_a_batch_that_crashes_again_and_again_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Store(tmp_path), 0, {"a": 1})
    for attempt in range(20):
        store = Store(tmp_path)
        store.open(0)
        change(store, {"a": attempt})
        if attempt % 2:
            store.write(1)
        else:
            write_and_be_killed_before_the_rename(store, 1, monkeypatch)
    assert len(version_files(tmp_path, 1)) <= 3


def test_the_temporary_file_of_a_running_attempt_is_left_alone(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.open(-1)
    writing = tmp_path / f"0-{first.attempt}.snapshot.tmp"
    writing.touch()
    second.open(-1)
    assert writing.exists()
    second.write(0)
    second.open(0)
    assert not writing.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    store = Store(tmp_path)
    for batch in range(5):
        run(store, batch, {"a": batch})
    assert (tmp_path / "README").exists()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The one file of a store with one version."""
    run(Store(tmp_path / "count" / "0"), 0, {key: key for key in range(20)})
    (path,) = version_files(tmp_path / "count" / "0", 0)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(FlowFailed) as refused:
        Store(path.parent).open(0)
    message = str(refused.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_a_file_with_any_byte_changed_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    footer = len(whole) - 12
    for position in range(len(whole)):
        for bit in range(8) if position >= footer else (position % 8,):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            written.write_bytes(damaged)
            assert str(written) in refusal(written)


@pytest.mark.parametrize("said", [0, 1, 20, 22, 2**40, 2**64 - 1])
def test_another_number_of_records_is_refused(written: Path, said: int) -> None:
    whole = written.read_bytes()
    assert whole[-12:-4] == struct.pack(">Q", 21)
    written.write_bytes(whole[:-12] + struct.pack(">Q", said) + whole[-4:])
    assert "its checksum is wrong" in refusal(written)


def sealed(whole: bytes) -> bytes:
    """A file with the right checksum at its end, whatever stands before."""
    return whole[:-4] + struct.pack(">I", zlib.crc32(whole[:-4]))


@pytest.mark.parametrize(
    ("said", "says"), [(0, "more than the 0"), (20, "more than the 20"), (22, "cut off")]
)
def test_the_last_record_must_end_where_the_footer_begins(
    written: Path, said: int, says: str
) -> None:
    whole = written.read_bytes()
    written.write_bytes(sealed(whole[:-12] + struct.pack(">Q", said) + whole[-4:]))
    assert says in refusal(written)


def test_bytes_after_the_last_record_are_refused(written: Path) -> None:
    whole = written.read_bytes()
    for more in (b"\0", b"N.", b"\x80\x05N."):
        written.write_bytes(sealed(whole[:-12] + more + whole[-12:]))
        assert "more than the 21 records" in refusal(written)


@pytest.mark.parametrize(
    "record", [None, 7, "ab", (1, 2), ([], {}, None), ("a", 3, None), ("a", {}, "soon")]
)
def test_a_record_that_is_not_that_of_a_key_is_refused(written: Path, record: Any) -> None:
    nonce = written.name.removeprefix("0-").removesuffix(".snapshot")
    packer = Packer()
    both = iter([packer.add(None), packer.add(record)])
    write_link(written.parent, Link(0, nonce, NO_FILE, snapshot=True), packer, both)
    assert "a record does not belong to a key" in refusal(written)


def test_a_file_without_even_an_event_time_is_refused(written: Path) -> None:
    nonce = written.name.removeprefix("0-").removesuffix(".snapshot")
    write_link(written.parent, Link(0, nonce, NO_FILE, snapshot=True), Packer(), ())
    assert "a record does not belong to a key" in refusal(written)


def test_what_was_refused_is_read_again_when_it_is_put_back(written: Path) -> None:
    run(Store(written.parent), 1, {"a": 1})
    images = {path: path.read_bytes() for path in written.parent.iterdir()}
    for path, whole in images.items():
        if path.name != "claim":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            with pytest.raises(FlowFailed, match="checksum"):
                Store(written.parent).open(1)
            path.write_bytes(whole)
    assert {path: path.read_bytes() for path in written.parent.iterdir()} == images
    store = Store(written.parent)
    store.open(1)
    assert len(store.values) == 21


def test_a_file_that_was_cut_off_anywhere_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for length in range(len(whole)):
        written.write_bytes(whole[:length])
        assert "is not a whole state file" in refusal(written)


def test_a_partition_does_not_pass_for_another(written: Path) -> None:
    other = written.parent.with_name("1")
    written.parent.rename(other)
    assert "it belongs to another partition" in refusal(other / written.name)


def test_a_file_of_another_version_under_this_name_is_refused(written: Path) -> None:
    store = Store(written.parent)
    run(store, 1, {"a": 1})
    (other,) = version_files(written.parent, 1)
    written.write_bytes(other.read_bytes())
    with pytest.raises(FlowFailed, match="under another name"):
        Store(written.parent).open(1)


def test_a_file_of_a_later_format_is_refused_by_its_number(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    whole[15] = 9
    written.write_bytes(whole)
    assert "has format 9 and this version of Tailrace reads formats 1 to 2" in refusal(written)


def test_a_file_does_not_pass_for_one_of_format_1(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    whole[15] = 1
    written.write_bytes(whole)
    assert "its checksum is wrong" in refusal(written)
    written.write_bytes(sealed(bytes(whole)))
    assert "its checksum is wrong" in refusal(written)


def test_a_version_that_is_not_there_is_missed(written: Path) -> None:
    store = Store(written.parent)
    with pytest.raises(FlowFailed, match="step 'count', partition 0, as of batch 7, is not in"):
        store.open(7)
    written.unlink()
    assert "as of batch 0, is not in" in refusal(written)


def test_a_parent_that_is_not_there_is_missed(written: Path) -> None:
    run(Store(written.parent), 1, {"a": 1})
    written.unlink()
    with pytest.raises(FlowFailed, match="as of batch 0, is not in"):
        Store(written.parent).open(1)


def torn(directory: Path) -> Iterator[None]:
    """Damages the claim in one way after the other."""
    text = (directory / "claim").read_bytes()
    for damaged in (b"", text[:10], text[:-1], text.replace(b" ", b"0", 1), b"\0" * len(text)):
        (directory / "claim").write_bytes(damaged)
        assert read_claim(directory) is None
        yield
    (directory / "claim").unlink()
    yield


def test_a_torn_claim_counts_as_none_and_the_only_file_is_taken(tmp_path: Path) -> None:
    run(Store(tmp_path), 0, {"a": 1})
    write_claim(tmp_path, WriteClaim(0, "a" * 16, "b" * 16), flush=False)
    assert read_claim(tmp_path) == WriteClaim(0, "a" * 16, "b" * 16)
    for _ in torn(tmp_path):
        store = Store(tmp_path)
        store.open(0)
        assert contents(store)["a"][0] == {"n": 1}


def test_where_no_claim_says_which_of_several_files_counts_none_is_guessed(
    tmp_path: Path,
) -> None:
    zombie, good = Store(tmp_path), Store(tmp_path)
    zombie.open(-1)
    change(zombie, {"a": 666})
    run(good, 0, {"a": 2})
    whole = (tmp_path / "claim").read_bytes()
    zombie.write(0)
    for _ in torn(tmp_path):
        with pytest.raises(FlowFailed, match=r"as of batch 0, is in .* 2 times, by several"):
            Store(tmp_path).open(0)
    (tmp_path / "claim").write_bytes(whole)
    store = Store(tmp_path)
    store.open(0)
    assert contents(store)["a"][0] == {"n": 2}


def test_a_disk_that_refuses_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "count").touch()
    with pytest.raises(FlowFailed, match=r"step 'count', partition 0, could not be opened in .*"):
        Store(tmp_path / "count" / "0").open(-1)


def test_a_directory_that_vanishes_is_said_in_a_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path / "count" / "0")
    store.open(-1)
    (store.directory / "claim").unlink()
    store.directory.rmdir()
    with pytest.raises(FlowFailed, match=r"could not be written, because .* is gone"):
        store.write(0)


# --- partitions ---------------------------------------------------------------------------------


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
