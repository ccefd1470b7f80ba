from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InputError
from tailrace.state.manifest import Changes, Layout, Manifest, changes, read_manifest

if TYPE_CHECKING:
    from pathlib import Path


def keyed(kind: str = "bigint", key: str = "user", timers: str = "") -> Layout:
    return Layout("keyed", (key,), (kind,), timers, "hash of the key over partitions")


WRITTEN = Manifest("abc", "sums", "0.1.0", {"count": keyed("int"), "parse": Layout("row")})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    WRITTEN.write(tmp_path)
    assert read_manifest(tmp_path) == WRITTEN
    assert [path.name for path in tmp_path.iterdir()] == ["tailrace.json"]


def test_a_checkpoint_from_before_manifests_has_an_identity_and_tells_no_steps(
    tmp_path: Path,
) -> None:
    (tmp_path / "identity").write_text("abc")
    assert read_manifest(tmp_path) == Manifest("abc", steps=None)
    (tmp_path / "identity").write_text("")
    with pytest.raises(InputError, match="identity, which says what wrote the checkpoint, is dam"):
        read_manifest(tmp_path)


def test_a_manifest_of_a_later_version_is_refused_by_its_name(tmp_path: Path) -> None:
    WRITTEN.write(tmp_path)
    file = tmp_path / "tailrace.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "format": 2, "tailrace": "7.1", "slots": 128}))
    with pytest.raises(InputError, match=r"written by Tailrace 7\.1, which is newer than this one"):
        read_manifest(tmp_path)


def test_a_damaged_manifest_is_refused_and_never_taken_for_none(tmp_path: Path) -> None:
    WRITTEN.write(tmp_path)
    file = tmp_path / "tailrace.json"
    whole = file.read_text().rstrip()
    for length in range(len(whole)):
        file.write_text(whole[:length])
        with pytest.raises(InputError, match="is damaged: put back a copy"):
            read_manifest(tmp_path)
    for odd in ("[]", "7", "null", '{"format": 1}', '{"format": "x"}', whole.replace("key", "kee")):
        file.write_text(odd)
        with pytest.raises(InputError, match="is damaged"):
            read_manifest(tmp_path)


def test_steps_without_state_come_go_and_change_as_they_like() -> None:
    before = {"parse": Layout("row"), "count": keyed(), "score": Layout("flat")}
    after = {"parse": Layout("batch"), "count": keyed(), "more": Layout("row")}
    assert changes(before, after, {}) == Changes()


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("tinyint", "smallint", False),
        ("tinyint", "int", False),
        ("smallint", "int", False),
        ("tinyint", "bigint", True),
        ("int", "bigint", True),
        ("bigint", "bigint", False),
        ("string", "string", False),
    ],
)
def test_a_wider_whole_number_is_converted_where_its_hash_is_another(
    old: str, new: str, moved: bool
) -> None:
    found = changes({"count": keyed(old)}, {"count": keyed(new)}, {})
    assert found == Changes(spread_anew=("count",) if moved else ())


@pytest.mark.parametrize(
    ("old", "new"),
    [("bigint", "int"), ("int", "string"), ("float", "double"), ("date", "timestamp")],
)
def test_another_type_of_key_is_refused_with_the_cast_that_mends_it(old: str, new: str) -> None:
    with pytest.raises(InputError, match=f"is of type {new}.* {old}: cast it to {old} before"):
        changes({"count": keyed(old)}, {"count": keyed(new)}, {})


def test_another_key_column_and_other_timers_are_refused() -> None:
    with pytest.raises(InputError, match="keyed by 'name', and its state in the checkpoint by 'us"):
        changes({"count": keyed()}, {"count": keyed(key="name")}, {})
    with pytest.raises(InputError, match="timers of step 'count' are in event time, and those"):
        changes({"count": keyed(timers="clock")}, {"count": keyed(timers="event time")}, {})
    assert changes({"count": keyed()}, {"count": keyed(timers="event time")}, {}) == Changes()


def test_a_renamed_step_says_its_name_of_before() -> None:
    before, after = {"counts": keyed("int")}, {"count": keyed("bigint")}
    with pytest.raises(InputError, match=r"keyed_step\('count', \.\.\., formerly='counts'\)"):
        changes(before, after, {})
    found = changes(before, after, {"count": "counts"})
    assert found == Changes(renamed={"counts": "count"}, spread_anew=("count",))
    assert changes(after, after, {"count": "counts"}) == Changes()
    with pytest.raises(InputError, match=r"says that it was 'x' before.*it has 'counts'"):
        changes(before, after, {"count": "x"})


def test_a_step_that_is_new_begins_empty_and_one_that_is_gone_is_put_aside() -> None:
    assert changes({}, {"count": keyed()}, {}) == Changes(added=("count",))
    assert changes({"count": keyed()}, {"count": Layout("row")}, {}) == Changes(removed=("count",))
