"""Profile files: what is saved is what is loaded, and whatever is wrong is said in one sentence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tailrace.errors import InputError
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, ExecutorCosts, HandOverCosts
from tailrace.profile.file import as_json, from_json, load, save, schema
from tailrace.profile.profile import Latency, Origin, Profile, StepProfile

if TYPE_CHECKING:
    from pathlib import Path

amounts = st.floats(0, 1e12)
counts = st.integers(1, 10**4)
words = st.text(min_size=1, max_size=8).filter(lambda text: not text.startswith(("source", "sink")))


@st.composite
def steps(draw: st.DrawFn, name: str) -> StepProfile:
    keys = draw(st.lists(words, max_size=4, unique=True))
    weights = [draw(st.integers(1, 100)) for _ in keys]
    rest = draw(st.integers(0, 100))
    return StepProfile(
        name,
        draw(amounts),
        draw(amounts),
        draw(amounts),
        draw(st.floats(0, 1)),
        draw(amounts),
        tuple(draw(st.lists(words, max_size=2))),
        draw(words),
        {key: w / (sum(weights) + rest) for key, w in zip(keys, weights, strict=True)},
        draw(st.integers(0, 2**53)),
        draw(counts),
    )


@st.composite
def plans(draw: st.DrawFn, names: list[str]) -> Plan:
    cut = draw(st.integers(0, len(names)))
    chains = tuple(tuple(part) for part in (names[:cut], names[cut:]) if part)
    chains = draw(st.sampled_from([chains, ()]))
    return Plan(
        draw(amounts),
        chains,
        draw(st.dictionaries(st.sampled_from(names), counts)),
        draw(st.sampled_from(Backend)),
        {"+".join(chain): draw(amounts) for chain in chains if draw(st.booleans())},
        draw(amounts),
        draw(st.none() | counts),
        draw(st.none() | counts),
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile of a flow whose steps are a tree under the source."""
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    streams = [
        (draw(st.sampled_from(["source", *names[:number]])), name)
        for number, name in enumerate(names)
    ]
    return Profile(
        draw(st.text(min_size=1)),
        tuple(draw(steps(name)) for name in names),
        (*streams, (names[-1], draw(st.sampled_from(["sink", "sink:late"])))),
        draw(amounts),
        draw(plans(names)),
        draw(counts),
        draw(counts),
        draw(amounts),
        draw(st.integers(0, 2**53)),
        draw(st.none() | st.builds(Latency, amounts, amounts, amounts, amounts)),
        draw(st.none() | st.builds(BatchCosts, *[amounts] * 6)),
        draw(st.none() | st.builds(HandOverCosts, *[amounts] * 6)),
        draw(st.none() | st.builds(ExecutorCosts, amounts, amounts)),
        draw(st.sampled_from(Origin)),
    )


def by_hand(**changed: Any) -> dict[str, Any]:
    """The least that a person writes, with something else in it."""
    whole = {"name": "orders", "steps": [{"name": "parse", "service_ms": 0.2}], "rate_per_s": 100}
    return whole | changed


def with_step(**changed: Any) -> dict[str, Any]:
    return by_hand(steps=[{"name": "parse", "service_ms": 0.2} | changed])


# --- there and back -------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(profiles())
def test_what_is_loaded_is_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, profile: Profile
) -> None:
    path = tmp_path_factory.mktemp("profiles", numbered=True) / "flow.json"
    save(profile, path)
    assert load(path) == profile
    assert load(str(path)) == profile


@settings(max_examples=50, deadline=None)
@given(profiles())
def test_a_profile_as_data_is_plain_json_that_the_schema_admits(profile: Profile) -> None:
    data = as_json(profile)
    assert json.loads(json.dumps(data)) == data
    Draft202012Validator(schema()).validate(data)


def test_a_saved_file_can_be_read_by_people(tmp_path: Path) -> None:
    step = StepProfile("größe", 1.0, keyed_by=("city",), keys={"Zürich": 0.5, "\ud800": 0.25})
    profile = Profile("x", (step,), (("source", "größe"), ("größe", "sink")), 1.0, Plan(), 1)
    save(profile, tmp_path / "x.json")
    text = (tmp_path / "x.json").read_bytes().decode("utf-8")
    assert "Zürich" in text
    assert text.count("\n") > 20
    assert load(tmp_path / "x.json") == profile


def test_saving_replaces_the_file_as_a_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "orders.json"
    save(from_json(by_hand(), "here"), path)
    save(from_json(by_hand(rate_per_s=7), "here"), path)
    assert load(path).rate_per_s == 7
    assert [place.name for place in path.parent.iterdir()] == ["orders.json"]


def test_a_file_that_cannot_be_written_is_told_and_the_old_one_stays(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("not a directory")
    with pytest.raises(InputError, match=r"orders\.json cannot be written \(.*\): choose another"):
        save(from_json(by_hand(), "here"), tmp_path / "taken" / "orders.json")
    (tmp_path / "full").mkdir()
    for directory in (tmp_path / "full", "", "/"):
        with pytest.raises(InputError, match="is a directory: name a file in it"):
            save(from_json(by_hand(), "here"), directory)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["full", "taken"]


# --- by hand --------------------------------------------------------------------------------------


def test_name_steps_and_rate_are_enough() -> None:
    first, second = {"name": "parse", "service_ms": 0.2}, {"name": "score", "service_ms": 1}
    profile = from_json({"name": "orders", "steps": [first, second], "rate_per_s": 100}, "here")
    assert profile == Profile(
        name="orders",
        steps=(StepProfile("parse", 0.2), StepProfile("score", 1.0)),
        streams=(("source", "parse"), ("parse", "score"), ("score", "sink")),
        rate_per_s=100.0,
        plan=Plan(0.0, (("parse", "score"),)),
        cores=1,
        origin=Origin.HAND,
    )


def test_without_chains_a_step_with_a_key_or_partitions_of_its_own_starts_one() -> None:
    names = ("read", "clean", "count", "score", "send")
    found = [{"name": name, "service_ms": 1} for name in names]
    found[2]["keyed_by"] = ["city"]
    profile = from_json(by_hand(steps=found, plan={"partitions": {"send": 2}}), "here")
    assert profile.plan.chains == (("read", "clean"), ("count", "score"), ("send",))


def test_without_chains_a_fork_is_no_chain() -> None:
    found = [{"name": name, "service_ms": 1} for name in "abc"]
    pairs = [["source", "a"], ["a", "b"], ["a", "c"], ["b", "sink:b"], ["c", "sink:c"]]
    profile = from_json(by_hand(steps=found, streams=pairs), "here")
    assert profile.plan.chains == (("a",), ("b",), ("c",))


def test_whole_numbers_may_be_written_with_a_point() -> None:
    profile = from_json(
        by_hand(cores=2.0, plan={"row_limit": 5.0, "partitions": {"parse": 3.0}}), ""
    )
    numbers = (profile.cores, profile.plan.row_limit, profile.plan.partitions["parse"])
    assert [(number, type(number)) for number in numbers] == [(2, int), (5, int), (3, int)]


def test_format_version_and_a_schema_for_the_editor_may_stand_in_it() -> None:
    marks = {"$schema": "schema.json", "format": "tailrace-profile", "version": 1}
    assert from_json(marks | by_hand(), "here") == from_json(by_hand(), "here")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(by_hand()), encoding="utf-8-sig")
    assert load(tmp_path / "x.json").name == "orders"


def test_an_earlier_profile_means_what_it_meant() -> None:
    """One that was told what having an exchange costs, and nothing of tasks."""
    earlier = {"fixed_ms": 7.0, "per_record_ms": 0.005, "stage_ms": 15.0, "shuffle_ms": 20.0}
    data = {"name": "x", "steps": [{"name": "a", "service_ms": 1}], "rate_per_s": 1}
    batch = from_json({**data, "batch": earlier}, "earlier").batch
    assert batch is not None
    assert [batch.stages_ms(tasks) for tasks in ([4], [2, 1], [2, 4, 4])] == [0.0, 35.0, 50.0]


# --- the schema -----------------------------------------------------------------------------------


def described(node: Any) -> Any:
    """Every field of the schema, by name, with what it says of it."""
    if isinstance(node, dict):
        yield from (node.get("properties") or {}).items()
        for inner in node.values():
            yield from described(inner)


def test_the_schema_is_one_and_describes_every_field() -> None:
    whole = schema()
    Draft202012Validator.check_schema(whole)
    found = list(described(whole))
    assert len(found) == 58
    for name, rules in found:
        kind = rules.get("$ref", "").removeprefix("#/$defs/")
        text = rules.get("description") or whole["$defs"][kind]["description"]
        assert text.endswith("."), name


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (StepProfile, "step"),
        (Plan, "plan"),
        (Latency, "latency"),
        (BatchCosts, "batch"),
        (HandOverCosts, "hand_over"),
    ],
)
def test_the_schema_knows_the_fields_of_every_part(kind: type, place: str) -> None:
    known = {item.name for item in fields(kind)}
    assert set(schema()["$defs"][place]["properties"]) == known


def test_the_schema_knows_the_fields_of_a_profile() -> None:
    known = {item.name for item in fields(Profile)}
    assert set(schema()["properties"]) == known | {"$schema", "format", "version"}


# --- what can be wrong ----------------------------------------------------------------------------


def refusal(data: object) -> str:
    with pytest.raises(InputError) as refused:
        from_json(data, "orders.json")
    said = str(refused.value)
    assert said.endswith("."), said
    assert "\n" not in said
    assert "orders.json" in said
    return said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1], r"holds \[1\] and not an object in braces: write \{"),
        (None, r"holds null and not an object"),
        ({}, r"has no 'name': add it, the name of the flow or query"),
        ({"name": "x"}, r"has no 'steps': add it, the steps of the flow"),
        (by_hand(format="avro"), r'file .* has the format "avro" and not .*: give a profile'),
        (by_hand(format=None), r"has the format null"),
        (by_hand(version=2), r"has version 2 and this Tailrace reads up to 1: update Tailrace"),
        (by_hand(version=0), r"has 0 as its version: write 1, or leave it out"),
        (by_hand(version="1"), r'has "1" as its version'),
        (by_hand(version=True), r"has true as its version"),
        (by_hand(name=""), r'has "" at name: give a text that is not empty'),
        (by_hand(name=3), r"has 3 at name: give a text"),
        (by_hand(steps=[]), r"has \[\] at steps: give a list that is not empty"),
        (by_hand(steps={}), r"has \{\} at steps: give a list"),
        (by_hand(steps=["parse"]), r'has "parse" at steps\[0\]: give an object in braces'),
        (by_hand(rate_per_s=-3), r"has -3 at rate_per_s: give a number from 0 to 1,0"),
        (by_hand(rate_per_s="2 k/s"), r'has "2 k/s" at rate_per_s: give a number from 0 to 1,0'),
        (by_hand(rate_per_s=True), r"has true at rate_per_s: give a number"),
        (by_hand(rate_per_s=None), r"has null at rate_per_s: give a number"),
        (by_hand(rate_per_s=math.nan), r"has NaN at rate_per_s: give a finite number"),
        (by_hand(plan={"interval_ms": math.inf}), r"has Infinity at plan\.interval_ms: give a fin"),
        (by_hand(records=10**400), r"has 10+\.\.\. at records: give a number up to 9,007"),
        (by_hand(rate_per_sec=3), r'has a field "rate_per_sec" that is not known: write \'rate_p'),
        (by_hand(colour=3), r'has a field "colour" that is not known: it can have format, ver'),
        (
            with_step(servicems=3),
            r'"servicems" at steps\[0\] that is not known: write \'service_ms',
        ),
        (by_hand(steps=[{"name": "a"}]), r"has no 'service_ms' at steps\[0\]: add it, the mean ti"),
        (with_step(cpu_share=1.5), r"has 1\.5 at steps\[0\]\.cpu_share: give a number from 0 to 1"),
        (with_step(keys={"a": 0}), r"has 0 at steps\[0\]\.keys\.a: give a number above 0 to 1"),
        (
            with_step(keys={"a": 0.7, "b": 0.7}),
            r"keys of step 'parse' have shares that sum to 1\.4",
        ),
        (with_step(window=0), r"has 0 at steps\[0\]\.window: give a whole number from 1 to 1,0"),
        (with_step(name="sink"), r"step cannot be called 'sink'"),
        (by_hand(cores=1.5), r"has 1\.5 at cores: give a whole number from 1 to 10,000"),
        (by_hand(streams=[["source"]]), r'has \["source"\] at streams\[0\]: give a pair of names'),
        (by_hand(streams=[]), r"No stream leads to step 'parse': add one"),
        (by_hand(streams=[["source", "prase"]]), r"stream from 'source' to 'prase' does not conn"),
        (by_hand(streams=[["parse", "source"]]), r"stream from 'parse' to 'source' does not conn"),
        (by_hand(streams=[["parse", "parse"]]), r"feed each other in a circle"),
        (by_hand(steps=[{"name": "a", "service_ms": 1}] * 2), r"Two steps are called 'a'"),
        (by_hand(plan={"backend": "storm"}), r'has "storm" at plan\.backend: give one of microbat'),
        (by_hand(plan={"chains": [[]]}), r"has \[\] at plan\.chains\[0\]: give a list that is not"),
        (by_hand(plan={"chains": [["parse"]] * 2}), r"Step 'parse' is in 2 of the chains"),
        (by_hand(plan={"chains": [["parse", "b"]]}), r"chains a step 'b' that is not one of its s"),
        (
            by_hand(plan={"partitions": {"b": 2}}),
            r"partitions for a step 'b', .*: name one of parse",
        ),
        (by_hand(plan={"lifetimes_ms": {"b": 2}}), r"lifetime for a chain 'b', .*: name one of pa"),
        (by_hand(batch={"fixed_ms": 1}), r"has no 'per_record_ms' at batch: add it, what every re"),
        (by_hand(latency=[]), r"has \[\] at latency: give an object in braces"),
        (by_hand(origin="rumour"), r'has "rumour" at origin: give one of flow, progress, hand'),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_do(data: object, said: str) -> None:
    assert re.search(said, refusal(data)), refusal(data)


def test_a_step_that_is_in_no_chain_is_named() -> None:
    found = [{"name": name, "service_ms": 1} for name in "ab"]
    assert "Step 'b' is in 0 of the chains" in refusal(
        by_hand(steps=found, plan={"chains": [["a"]]})
    )


def test_a_long_value_is_shown_by_its_beginning() -> None:
    assert len(refusal(by_hand(rate_per_s="x" * 10_000))) < 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"is empty: record one, or write its name"),
        (b" \n", r"is empty"),
        (b'{"name": "caf\xe9"}', r"is not UTF-8 text in line 1: save it as UTF-8"),
        (
            b'{\n"name": "x",\n"steps": [',
            r"ends in line 3, column 11, before its JSON does: copy it",
        ),
        (b'{"name": "x", "steps": [{"na', r"line 1, column 26 \(unterminated string"),
        (
            b'{\n"name": "x"\n"steps": []}',
            r"is not JSON in line 3, column 1 \(.*\): correct it there",
        ),
        (b'{"name": "x"} tail', r"is not JSON in line 1, column 15 \(extra data\)"),
        (b'{"name": "x", "name": "y"}', r"has .name. twice in one object: keep one of them"),
        (b"[" * 100_000, r"is nested too deeply or has a number with too many digits"),
        (b"[" * 900 + b"]" * 900, r"is nested too deeply"),
        (b'{"a": ' * 50 + b"1" + b"}" * 50, r"is nested too deeply at a\.a"),
        (b'{"rate_per_s": 1' + b"0" * 5_000 + b"}", r"has a number with too many digits"),
        (b'{"rate_per_s": 1e999}', r"has Infinity at rate_per_s: give a finite number"),
        (b"{}", r"has no 'name'"),
    ],
)
def test_a_file_that_is_no_profile_is_told_with_its_path(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "orders.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        load(path)
    assert re.search(said, str(refused.value)), refused.value
    assert str(path) in str(refused.value)
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_a_file_that_was_cut_off_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    whole = json.dumps(as_json(from_json(with_step(keys={"a": 0.5}), "here")), indent=2)
    path = tmp_path_factory.mktemp("cut") / "x.json"
    path.write_text(whole[: length % len(whole)])
    with pytest.raises(InputError, match=r"x\.json"):
        load(path)


def test_a_file_that_is_not_there_a_directory_and_one_without_permission(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no profile .*x\.json: record one, or write"):
        load(tmp_path / "x.json")
    with pytest.raises(InputError, match="is a directory: name the profile in it"):
        load(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=r"loop cannot be read \(.*\): check that it is a file"):
        load(tmp_path / "loop")


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.sampled_from([*schema()["properties"], *schema()["$defs"]["step"]["properties"]]),
)
def test_whatever_stands_in_a_field_gives_a_profile_or_one_sentence(value: Any, field: str) -> None:
    for data in (by_hand(**{field: value}), with_step(**{field: value}), by_hand(plan=value)):
        said = "from orders.json"
        try:
            made = from_json(data, "orders.json")
        except InputError as error:
            said = str(error)
        else:
            assert isinstance(made, Profile)
        assert "orders.json" in said
        assert "\n" not in said
