from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .faults import (
    CLUSTER,
    LOCAL,
    damage_state,
    put_output_back,
    put_state_back,
    remove_log,
    restore_checkpoint,
    restore_output,
)
from .flows import BAD, How, Place
from .harness import CUT, Wanted, kept, rounds, run, summary
from .oracle import _user, problems
from .process import Said
from .round import Outcome, verdict
from .scene import Story

if TYPE_CHECKING:
    from pathlib import Path

READ = 300


@pytest.mark.spark
def test_twenty_faults_leave_every_record_as_often_as_promised(tmp_path: Path) -> None:
    told: list[Outcome] = []
    found = run(Wanted(20, seed=3, keep=tmp_path / "chaos.jsonl", cut=CUT), told.append)
    said = summary(found)
    assert said["bad"] == []
    assert said["faults"] >= 20
    assert {one.fault for one in found} == set(CUT)
    assert kept(tmp_path / "chaos.jsonl") == found


def test_a_seed_stands_for_one_sequence_of_rounds() -> None:
    once, again, other = (
        [(one.fault, one.cluster) for one in itertools.islice(rounds(seed), 60)]
        for seed in (5, 5, 6)
    )
    assert once == again
    assert once != other
    assert {name for name, _ in once} == {*LOCAL, *CLUSTER}
    first = next(rounds(5))
    assert first.draw(5).random() == first.draw(5).random() != first.draw(6).random()


# --- the oracle ----------------------------------------------------------------------------------


def a_place(directory: Path) -> Place:
    """A flow that has committed batch 0, in which it read some records from two partitions."""
    place = Place(directory)
    for log in ("offsets", "commits"):
        (place.spark / log).mkdir(parents=True)
        offsets = json.dumps({"next": [READ // 2, READ // 2]})
        (place.spark / log / "0").write_text(f"v1\n{{}}\n{offsets}\n")
    return place


def put(place: Place, output: str, rows: list[dict[str, Any]], batch: int = 0) -> None:
    there = place.directory / output / f"batch={batch}"
    there.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), there / "part.parquet")


def doubles(seqs: range) -> list[dict[str, Any]]:
    return [{"seq": seq, "twice": 2 * seq} for seq in seqs]


def test_two_outputs_that_hold_every_record_once_are_right(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    put(place, "all", doubles(range(READ)))
    put(place, "even", doubles(range(0, READ, 2)))
    assert problems("outputs", place, How()) == []


@pytest.mark.parametrize(
    ("seqs", "said"),
    [
        (range(READ - 2), ["output all: 2 of 300 missing (298, 299)"]),
        (range(READ + 1), ["output all: 1 of 300 not read (300)"]),
    ],
)
def test_a_record_that_is_missing_or_was_not_read_is_named(
    tmp_path: Path, seqs: range, said: list[str]
) -> None:
    place = a_place(tmp_path)
    put(place, "all", doubles(seqs))
    put(place, "even", doubles(range(0, READ, 2)))
    assert problems("outputs", place, How()) == said


def test_a_record_in_two_batches_is_repeated_unless_one_of_them_is_hidden(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    put(place, "all", doubles(range(READ)))
    put(place, "even", doubles(range(0, READ, 2)))
    put(place, "all", doubles(range(7, 8)), batch=1)
    assert problems("outputs", place, How()) == ["output all: 1 of 300 repeated (7)"]
    (place.directory / "all" / "batch=1").rename(place.directory / "all" / "_superseded-1")
    assert problems("outputs", place, How()) == []


def test_a_dead_letter_that_is_missing_is_named(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    put(place, "out", [row for row in doubles(range(READ)) if row["seq"] % BAD])
    letters = [{"record": json.dumps({"seq": seq})} for seq in range(0, READ - BAD, BAD)]
    put(place, "dead", letters)
    assert problems("stateless", place, How()) == ["dead letters: 1 of 4 missing (291)"]


def test_an_aggregation_that_ends_with_another_value_is_named(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    records = Counter(map(_user, range(READ)))
    totals: Counter[str] = Counter()
    for seq in range(READ):
        totals[_user(seq)] += seq
    rows: list[dict[str, Any]] = [
        {"user": user, "records": n, "total": totals[user]} for user, n in records.items()
    ]
    put(place, "out", rows)
    assert problems("aggregation", place, How()) == []
    put(place, "out", [rows[0] | {"records": records[rows[0]["user"]] - 1}], batch=1)
    (ends, goes_back) = problems("aggregation", place, How())
    assert ends.startswith(f"key {rows[0]['user']} ends with")
    assert goes_back.startswith(f"the count of key {rows[0]['user']} goes back")


# --- faults on the disk --------------------------------------------------------------------------


def a_scene(directory: Path) -> Any:
    """As much of a scene as a fault on the disk looks at: one keyed flow, and an older copy."""
    place = a_place(directory / "keyed")
    (place.checkpoint / "state").mkdir()
    (place.checkpoint / "state" / "0.delta").write_bytes(bytes(range(200)))
    put(place, "out", doubles(range(READ)))
    scene = SimpleNamespace(places={"keyed": place}, hows={"keyed": How()}, before={})
    scene.older, scene.aside = directory / "older", directory / "aside"
    shutil.copytree(place.directory, scene.older / "keyed")
    for log in ("offsets", "commits"):
        shutil.copy(place.spark / log / "0", place.spark / log / "1")
    put(place, "out", doubles(range(READ, READ + 1)), batch=1)
    return scene


def files(directory: Path) -> dict[str, bytes]:
    there = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in there}


def test_an_older_checkpoint_is_put_in_place_and_the_output_left(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    place = scene.places["keyed"]
    assert restore_checkpoint(scene, "keyed", random.Random(1)) == "batch 1 back to 0"
    assert files(place.checkpoint) == files(scene.older / "keyed" / "flow")
    assert (place.directory / "out" / "batch=1").exists()


def test_an_older_output_is_put_in_place_and_can_be_put_back(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    place = scene.places["keyed"]
    before = files(place.directory)
    restore_output(scene, "keyed", random.Random(1))
    assert not (place.directory / "out" / "batch=1").exists()
    put_output_back(scene, "keyed")
    assert files(place.directory) == before


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_state_differs_in_one_byte_and_can_be_put_back(tmp_path: Path, seed: int) -> None:
    scene = a_scene(tmp_path)
    place = scene.places["keyed"]
    before = files(place.checkpoint)
    damage_state(scene, "keyed", random.Random(seed))
    after = files(place.checkpoint)
    (other,) = (name for name in before if before[name] != after[name])
    assert sum(a != b for a, b in zip(before[other], after[other], strict=True)) == 1
    put_state_back(scene, "keyed")
    assert files(place.checkpoint) == before


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_removed_from_the_end_of_a_log(tmp_path: Path, seed: int) -> None:
    scene = a_scene(tmp_path)
    place = scene.places["keyed"]
    remove_log(scene, "keyed", random.Random(seed))
    left = [sorted(p.name for p in (place.spark / log).iterdir()) for log in ("offsets", "commits")]
    assert min(left) in ([], ["0"])
    assert all(names in ([], ["0"], ["0", "1"]) for names in left)


# --- verdicts ------------------------------------------------------------------------------------

SENTENCE = "The checkpoint went back: start with --after-restore."


@pytest.mark.parametrize(
    ("story", "outcome"),
    [
        (Story(), "exact"),
        (Story(said=[Said("keyed", "failed", SENTENCE)]), "exact"),
        (Story(said=[Said("keyed", "refused", SENTENCE)]), "refused"),
        (Story(said=[Said("keyed", "refused", SENTENCE)], problems=["1 missing"]), "wrong"),
        (Story(said=[Said("keyed", "refused", SENTENCE)], lost="a file is gone"), "wrong"),
        (Story(said=[Said("keyed", "failed", "Traceback:\n  in f.")]), "noisy"),
        (Story(said=[Said("keyed", "traceback", "KeyError.")]), "noisy"),
        (Story(said=[Said("keyed", "failed", "Exception thrown in awaitResult:.")]), "noisy"),
        (Story(said=[Said("keyed", "failed", "An error occurred while calling o1.f.")]), "noisy"),
        (Story(stuck="no progress"), "stuck"),
    ],
)
def test_a_verdict_is_the_worst_that_happened(story: Story, outcome: str) -> None:
    assert verdict("keyed", "log", story).outcome == outcome


def test_a_summary_lists_all_that_must_not_be() -> None:
    fine = Outcome(0, "keyed", "log", "refused", sentences=[SENTENCE])
    wrong = Outcome(0, "outputs", "log", "wrong", problems=["1 missing"])
    said = summary([fine, wrong, fine])
    assert said["faults"] == 3
    assert said["refusals"] == [SENTENCE]
    assert [one["flow"] for one in said["bad"]] == ["outputs"]
    cells = {(c["flow"], c["fault"], c["outcome"]): c["runs"] for c in said["cells"]}
    assert cells == {("keyed", "log", "refused"): 2, ("outputs", "log", "wrong"): 1}
