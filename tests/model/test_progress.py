"""Profiles from progress logs: recorded ones, synthetic ones with known costs, and broken ones."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model import progress
from tailrace.model.microbatch import fit
from tailrace.model.predict import predict
from tailrace.model.progress import ENOUGH, read
from tailrace.plan import Backend, Plan
from tailrace.profile.file import load, save
from tailrace.profile.profile import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDED = Path(__file__).parents[1] / "data" / "progress.jsonl"
"""Made by examples/plain_progress.py: one query, two runs, a trigger every two seconds."""

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(batch: int, start_ms: float, records: int, duration_ms: float, **more: Any) -> Any:
    """The progress of a batch, as Spark writes it."""
    stamp = (NOON + timedelta(milliseconds=start_ms)).isoformat(timespec="milliseconds")
    return {
        "id": "11111111-aaaa",
        "runId": "22222222-bbbb",
        "name": "orders",
        "timestamp": stamp.replace("+00:00", "Z"),
        "batchId": batch,
        "numInputRows": records,
        "durationMs": {"addBatch": duration_ms * 0.8, "triggerExecution": duration_ms},
        "stateOperators": [],
        "sources": [{"description": "RateStreamV2", "numInputRows": records}],
        "sink": {"description": "NoopTable", "numOutputRows": -1},
    } | more


def log(
    sizes: Sequence[int],
    fixed_ms: float = 80.0,
    per_record_ms: float = 0.1,
    interval_ms: float = 500.0,
    *,
    begin_ms: float = 0.0,
    first: int = 0,
    **more: Any,
) -> list[Any]:
    """The events of a run with exact costs: a batch waits for its time, or comes late."""
    events: list[Any] = []
    start_ms, due_ms = begin_ms, begin_ms
    for number, size in enumerate(sizes):
        duration_ms = fixed_ms + per_record_ms * size
        events.append(event(first + number, start_ms, size, duration_ms, **more))
        end_ms = start_ms + duration_ms
        if interval_ms:
            due_ms = start_ms - (start_ms - begin_ms) % interval_ms + interval_ms
        start_ms = max(end_ms + 1, due_ms)
    return events


def lines(events: Sequence[Any]) -> list[str]:
    return [json.dumps(found) for found in events]


SIZES = [1_000, 3_000, 500, 2_000] * 5


# --- what is found --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.floats(5, 2_000),
    st.floats(0.001, 2),
    st.lists(st.integers(1, 4_000), min_size=12, max_size=40).filter(
        lambda sizes: max(sizes) > 2 * min(sizes)
    ),
    st.sampled_from([0.0, 300.0, 500.0, 2_000.0, 10_000.0]),
    st.randoms(use_true_random=False),
)
def test_the_costs_of_a_log_are_those_that_it_was_made_with(
    fixed_ms: float, per_record_ms: float, sizes: list[int], interval_ms: float, chance: Any
) -> None:
    sizes = [*sizes, min(sizes), max(sizes)] * 2
    events = log(sizes, fixed_ms, per_record_ms, interval_ms)
    chance.shuffle(events)
    found = read(lines(events))
    for size in (min(sizes), median(sizes), max(sizes)):
        expected = fixed_ms + per_record_ms * size
        assert found.model.duration_ms(size) == pytest.approx(expected, rel=0.03)
    assert found.profile.batch is not None
    assert found.profile.batch.fixed_ms == found.model.fixed_ms
    assert found.profile.step("query").service_ms == found.model.per_record_ms
    assert found.profile.records == sum(sizes)


@pytest.mark.parametrize("interval_ms", [0.0, 300.0, 500.0, 700.0, 2_000.0])
def test_the_interval_is_the_one_that_cuts_keep_and_none_back_to_back(interval_ms: float) -> None:
    found = read(
        lines(log(SIZES, fixed_ms=40, per_record_ms=0.02, interval_ms=interval_ms))
    ).profile
    assert found.plan.interval_ms == interval_ms
    assert found.plan.chains == (("query",),)
    assert found.backend is Backend.MICROBATCH


def test_the_interval_is_seen_although_every_third_batch_comes_late() -> None:
    events = log([1_000, 1_000, 1_000, 6_000] * 10, interval_ms=500)
    assert read(lines(events)).profile.plan.interval_ms == 500


def test_waiting_for_records_at_odd_times_is_no_interval() -> None:
    chance = random.Random(1)
    start_ms, events = 0.0, []
    for batch, size in enumerate(SIZES * 2):
        events.append(event(batch, start_ms, size, 80 + 0.1 * size))
        start_ms += 400 + chance.expovariate(1 / 3_000)
    assert read(lines(events)).profile.plan.interval_ms == 0


@pytest.mark.parametrize("interval_ms", [0.0, 500.0])
def test_the_rate_is_what_came_between_two_cuts(interval_ms: float) -> None:
    """An even 4,000 records a second, into whatever batches they are cut."""
    start_ms, before_ms, events = 0.0, -900.0, []
    for batch in range(30):
        size = round((start_ms - before_ms) * 4)
        events.append(event(batch, start_ms, size, 100 + 0.1 * size))
        before_ms = start_ms
        start_ms += max(interval_ms + 40 * (batch % 3), 101 + 0.1 * size)
    assert read(lines(events)).profile.rate_per_s == pytest.approx(4_000, rel=0.01)


def test_idle_triggers_count_as_time_without_records() -> None:
    busy = log([500, 1_000] * 6, interval_ms=1_000)
    idle = event(12, 12_000, 0, 3, durationMs={"latestOffset": 2, "triggerExecution": 3})
    later = log([500, 1_000] * 6, interval_ms=1_000, begin_ms=22_000, first=12)
    found = read(lines([*busy, idle, *later]))
    assert found.profile.rate_per_s == pytest.approx((18_000 - 500) / 33)
    assert found.profile.seconds == pytest.approx(33)
    assert all(point.records for point in found.points)


def test_restarts_leave_out_the_time_between_runs_and_the_cold_batches() -> None:
    runs = []
    for run in range(4):
        part = log(SIZES[:8], begin_ms=run * 60_000, first=run * 7, runId=f"run {run}")
        part[0] |= {"durationMs": {"triggerExecution": 9_000}}
        runs += part
    found = read(lines(runs))
    assert found.model.fixed_ms == pytest.approx(80, rel=0.01)
    assert len(found.points) == 4 * 7
    assert found.profile.seconds < 4 * 8 * 0.6
    assert found.profile.plan.interval_ms == 500


def test_without_ids_of_runs_batch_ids_that_start_again_or_repeat_tell_of_a_restart() -> None:
    first = log(SIZES[:10], runId=None)
    again = log(SIZES[:10], begin_ms=90_000, first=9, runId=None)
    anew = log(SIZES[:10], begin_ms=190_000, runId=None)
    assert read(lines([*first, *again, *anew])).profile.seconds < 30 * 0.6


def test_a_trigger_that_was_logged_many_times_counts_once() -> None:
    once = log(SIZES)
    assert read(lines([found for found in once for _ in range(4)])) == read(lines(once))


def test_missing_batches_are_left_out_of_the_rate_and_told() -> None:
    events = log([1_000, 1_200] * 12, interval_ms=500, per_record_ms=0.01)
    found = read(lines([*events[:8], *events[15:]]))
    assert found.profile.rate_per_s == pytest.approx(2_200, rel=0.02)
    assert "The log lacks 7 batches, which the rate leaves out." in found.notes


def test_missing_durations_are_made_up_for_by_what_else_is_known() -> None:
    events = log(SIZES)
    for found, without in zip(events, range(len(events)), strict=True):
        whole_ms = found["durationMs"]["triggerExecution"]
        if without % 3 == 0:
            found["durationMs"] = {"walCommit": 10.0, "addBatch": whole_ms - 10}
        elif without % 3 == 1:
            found |= {"durationMs": {}, "batchDuration": whole_ms}
    assert read(lines(events)).model.fixed_ms == pytest.approx(80, rel=0.01)
    assert read(lines(log(SIZES))).phases_ms == {"addBatch": pytest.approx(0.8 * 280)}


def test_a_batch_without_any_duration_is_no_point() -> None:
    events = log(SIZES)
    events[5] |= {"durationMs": None}
    assert len(read(lines(events)).points) == len(SIZES) - 2


def test_what_the_sink_wrote_for_what_was_read_is_the_ratio() -> None:
    events = log(SIZES)
    assert read(lines(events)).profile.step("query").ratio == 1
    for found in events:
        found["sink"] = {"numOutputRows": found["numInputRows"] // 4}
    assert read(lines(events)).profile.step("query").ratio == 0.25


def test_batches_of_one_size_are_told_to_say_little() -> None:
    (note,) = read(lines(log([1_000] * 20))).notes
    assert note.startswith("The batches hold nearly the same number of records")
    assert read(lines(log(SIZES))).notes == ()


# --- partitions and cores -------------------------------------------------------------------------


def stateful(partitions: int) -> dict[str, Any]:
    return {"stateOperators": [{"numShufflePartitions": partitions}, {"numShufflePartitions": 1}]}


@pytest.mark.parametrize(("partitions", "cores"), [(1, 4), (2, 2), (3, 2), (8, 2), (200, 8)])
def test_a_prediction_under_the_plan_of_the_log_gives_its_durations_back(
    partitions: int, cores: int
) -> None:
    profile = read(lines(log(SIZES, **stateful(partitions))), cores=cores).profile
    assert profile.plan.partitions == {"query": partitions}
    assert profile.cores == cores
    for rate_per_s in (200, 1_000, 2_000):
        duration_ms = 80 + 0.1 * rate_per_s / 2
        found = predict(profile, rate=rate_per_s)
        assert found.mean_ms == pytest.approx(250 + duration_ms, rel=0.02)
        assert found.outcome.highest_per_s == pytest.approx(10_000, rel=0.02)


def test_where_no_partitions_are_known_that_is_told() -> None:
    (note,) = read(lines(log(SIZES)), cores=4).notes
    assert note.endswith("more cores are predicted to be of no use.")
    assert read(lines(log(SIZES, **stateful(4))), cores=4).notes == ()


def test_an_idle_trigger_at_the_end_does_not_hide_the_state() -> None:
    events = [*log(SIZES, **stateful(4)), event(20, 60_000, 0, 3)]
    assert read(lines(events)).profile.plan.partitions == {"query": 4}


def kafka(
    batch: int, size: int, latest: int, taken_before: int, *, text: bool = False
) -> dict[str, Any]:
    """A topic of two partitions, of which the first has everything."""
    offsets: dict[str, Any] = {
        "startOffset": {"orders": {"0": taken_before, "1": 0}} if batch else None,
        "endOffset": {"orders": {"0": taken_before + size, "1": 0}},
        "latestOffset": {"orders": {"0": latest, "1": 0}},
    }
    if text:
        offsets = {name: found and json.dumps(found) for name, found in offsets.items()}
    return {"description": "KafkaV2[Subscribe[orders]]", "numInputRows": size} | offsets


@pytest.mark.parametrize("text", [False, True])
def test_records_that_tasks_read_twice_are_counted_by_offsets(text: bool) -> None:
    events, taken = log(SIZES), 0
    for batch, found in enumerate(events):
        size = found["numInputRows"]
        found["sources"] = [kafka(batch, size, taken + size, taken, text=text)]
        taken += size
        if batch % 4 == 1:
            found["numInputRows"] = found["sources"][0]["numInputRows"] = 2 * size
    found = read(lines(events))
    assert found.model.fixed_ms == pytest.approx(80, rel=0.01)
    assert found.profile.records == sum(SIZES)
    assert found.profile.source_partitions == 2
    assert any("more records than the offsets" in note for note in found.notes)


def test_with_a_row_limit_the_rate_is_what_the_topic_grows_by() -> None:
    events = log([600, 300] * 10, fixed_ms=50, per_record_ms=0.01, interval_ms=500)
    taken = 0
    for batch, found in enumerate(events):
        size = found["numInputRows"]
        found["sources"] = [kafka(batch, size, 1_000 + batch * 2_000, taken)]
        taken += size
    assert read(lines(events)).profile.rate_per_s == pytest.approx(4_000, rel=0.01)


def test_a_growing_number_of_state_partitions_is_told() -> None:
    events = [*log(SIZES, **stateful(2)), *log(SIZES, begin_ms=60_000, first=20, **stateful(4))]
    found = read(lines(events))
    assert found.profile.plan.partitions == {"query": 4}
    assert any("state partitions changed" in note for note in found.notes)


# --- kinds of logs --------------------------------------------------------------------------------


def test_every_way_of_writing_the_events_down_reads_the_same() -> None:
    events = log(SIZES, **stateful(2))
    plain = read(lines(events))
    pretty = [json.dumps(found, indent=2) for found in events]
    prefix = (
        "26/01/01 12:00:00 INFO MicroBatchExecution: [batch {1}] Streaming query made progress: "
    )
    other = "26/01/01 12:00:00 WARN Other: {'not': json} {}"
    wrapped = [{"Event": "QueryProgressEvent", "progress": found} for found in events]
    assert read([line + "\n" for line in lines(events)]) == plain
    assert read("\n".join(lines(events))) == plain
    assert read("\n\n".join(pretty).split("\n")) == plain
    assert read([json.dumps(events)]) == plain
    assert read(json.dumps(events, indent=1).split("\n")) == plain
    assert read(["[", ",\n".join(lines(events)), "]"]) == plain
    assert read([prefix + line for line in lines(events)]) == plain
    assert read("\n".join(f"{prefix}{text}\n{other}" for text in pretty).split("\n")) == plain
    assert read(['{"Event": "SparkListenerTaskEnd", "x": {}}', *lines(wrapped)]) == plain
    assert read(lines([{"progress": found} for found in events])) == plain


def test_a_last_line_that_was_cut_off_is_left_out_and_told() -> None:
    events = log(SIZES)
    whole = lines(events)
    for keep in (1, 20, 200, len(whole[-1]) - 1):
        found = read([*whole[:-1], whole[-1][:keep]])
        assert found.profile == read(whole[:-1]).profile
        assert found.notes == ("The last progress of the log is cut off: it is left out.",)
    pretty = "\n".join(json.dumps(event, indent=4) for event in events)
    for cut in (5, 50, 300):
        assert read(pretty[:-cut].split("\n")).profile == read(whole[:-1]).profile


# --- several queries ------------------------------------------------------------------------------


def test_a_query_is_chosen_by_name_or_id() -> None:
    orders = log(SIZES, fixed_ms=80)
    clicks = log(SIZES, fixed_ms=300, name=None, id="33333333-cccc", runId="44444444-dddd")
    mixed = [line for pair in zip(lines(orders), lines(clicks), strict=True) for line in pair]
    assert read(mixed, "orders") == read(mixed, "11111111-aaaa") == read(lines(orders))
    assert read(mixed, "33333333-cccc").profile.name == "33333333-cccc"
    assert read(mixed, "33333333-cccc").model.fixed_ms == pytest.approx(300, rel=0.01)
    with pytest.raises(InputError) as refused:
        read(mixed)
    assert str(refused.value) == (
        "The progress log holds several queries (orders, 33333333-cccc): choose one by its name or "
        "id."
    )
    with pytest.raises(InputError, match="holds no query 'order': choose one of orders, 33333333"):
        read(mixed, "order")


def test_a_query_that_was_started_anew_without_its_checkpoint_is_the_same_one_by_name() -> None:
    first, second = log(SIZES[:8]), log(SIZES[:8], begin_ms=60_000, id="x", runId="y")
    assert len(read(lines([*first, *second])).points) == 14


def test_of_very_many_queries_a_few_are_named() -> None:
    events = [event(1, 0, 1, 1, name=f"query{number}") for number in range(9)]
    with pytest.raises(InputError, match=r"\(query0, .*, query4 and 4 more\)"):
        read(lines(events))


# --- what can be wrong ----------------------------------------------------------------------------


def one(**changed: Any) -> str:
    return json.dumps(event(0, 0, 1, 1) | changed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no progress of a streaming query: write query.lastProgress.json to it"),
        ("nothing here", "holds no progress of a streaming query"),
        (f'{one()}\n{{"level": "INFO"}}\n{one()}', "Line 2 of the progress log is no progress of"),
        (f"{one()}\n{one()[:80]}\n{one()}", "Line 2 of the progress log is not whole JSON: delete"),
        (f"{{'id': 1}}\n{one()}", "Line 1 of the progress log is not whole JSON"),
        (f"{{\n  'id': 1\n}}\n{one()}", "Line 1 of the progress log is not whole JSON"),
        (one(timestamp="noon"), 'Line 1 of the progress log has "noon" as timestamp, which is not'),
        (one(timestamp=None), "has null as timestamp"),
        (one(batchId="x"), 'has "x" as batchId, which is not a count'),
        (one(sources=[], numInputRows=-1), "has -1 as numInputRows, which is not a count"),
        (one(sources=[{"numInputRows": 1.5}]), "has 1.5 as numInputRows"),
        (one(durationMs={"addBatch": "3 ms"}), 'has "3 ms" as durationMs.addBatch, which is not a'),
        (one(durationMs={"addBatch": float("nan")}), "has NaN as durationMs.addBatch"),
        (one(durationMs={"addBatch": 10**400}), "has 1000000000000000000000000000000000000000..."),
        (one(batchDuration=1e300, durationMs={}), "has 1e+300 as batchDuration"),
        (one(batchId=10**30), "has 1000000000000000000000000000000 as batchId, which is not a"),
        ("x " + '{"a":' * 5_000, "Line 1 of the progress log is nested too deeply"),
        (one(durationMs=[1]), "has [1] as durationMs"),
        (one(sources={"a": 1}), 'has {"a": 1} as sources'),
        (one(stateOperators=3), "has 3 as stateOperators"),
        (one(sink="parquet"), 'has "parquet" as sink'),
        (one(batchDuration=-3, durationMs={}), "has -3 as batchDuration"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_what_to_do(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        read(text.split("\n"))
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


def test_too_few_batches_are_told_with_how_many_are_needed() -> None:
    with pytest.raises(InputError) as refused:
        read(lines(log(SIZES[: ENOUGH - 1])))
    assert str(refused.value) == (
        f"The progress log has {ENOUGH - 1} finished batches with records of query 'orders' and "
        f"{ENOUGH} are needed to tell what a batch and a record cost: log a longer time."
    )
    assert len(read(lines(log(SIZES[:ENOUGH]))).points) == ENOUGH


def test_no_cores_are_refused() -> None:
    with pytest.raises(InputError, match="cannot run on 0 cores: give from 1 to"):
        read(lines(log(SIZES)), cores=0)


JUNK = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(event(0, 0, 1, 1))), JUNK | st.lists(JUNK) | st.dictionaries(JUNK, JUNK)
)
def test_whatever_stands_in_a_field_gives_a_profile_or_one_sentence(field: str, junk: Any) -> None:
    events = log(SIZES)
    events[3] |= {field: junk}
    said = ""
    try:
        assert read(lines(events)).profile.origin is Origin.PROGRESS
    except InputError as error:
        said = str(error)
    assert "\n" not in said


# --- real-time mode -------------------------------------------------------------------------------


def real_time(begin_ms: float = 0.0, **more: Any) -> list[Any]:
    """Batches of five seconds with gaps, as measured."""
    chance, start_ms, events = random.Random(2), begin_ms, []
    for batch in range(12):
        busy_ms = 5_000 + chance.uniform(20, 200)
        phases = {"addBatch": busy_ms, "walCommit": 9, "triggerExecution": busy_ms + 21}
        events.append(
            event(batch, start_ms, chance.randint(10, 9_000), 0, durationMs=phases, **more)
        )
        start_ms += busy_ms + 25
    return events


def test_real_time_mode_is_refused_as_its_batches_say_nothing_of_records() -> None:
    with pytest.raises(
        InputError, match=r"looks like one in real-time mode, .*: log it in micro-b"
    ):
        read(lines(real_time()))


def test_runs_in_real_time_mode_are_left_out_beside_others() -> None:
    found = read(lines([*real_time(-200_000, runId="earlier"), *log(SIZES)]))
    assert found.profile == read(lines(log(SIZES))).profile
    assert found.notes[0].startswith("1 of 2 runs look like real-time mode")


def test_long_micro_batches_are_not_taken_for_real_time_mode() -> None:
    sizes = [50_000, 55_000, 52_000, 58_000] * 5
    assert read(lines(log(sizes, 100, 0.1, 0))).model.duration_ms(50_000) == pytest.approx(
        5_100, rel=0.01
    )


# --- a recorded log -------------------------------------------------------------------------------


def recorded() -> list[str]:
    return RECORDED.read_text(encoding="utf-8").splitlines()


def test_the_recorded_log_gives_a_profile_that_a_file_keeps(tmp_path: Path) -> None:
    found = read(recorded(), cores=2)
    profile = found.profile
    assert (profile.name, profile.origin, profile.cores) == ("orders", Origin.PROGRESS, 2)
    assert profile.plan == Plan(2_000.0, (("query",),), {"query": 2})
    assert profile.step("query").ratio < 0.1
    assert set(found.phases_ms) >= {"addBatch", "walCommit", "commitOffsets", "queryPlanning"}
    save(profile, tmp_path / "orders.json")
    assert load(tmp_path / "orders.json") == profile


def test_the_recorded_rate_is_that_of_both_runs_without_what_lay_before_and_between() -> None:
    records, seconds = 0, 0.0
    events = [json.loads(line) for line in recorded()]
    for run in {found["runId"] for found in events}:
        part = [found for found in events if found["runId"] == run]
        starts = [datetime.fromisoformat(found["timestamp"]) for found in part]
        seconds += (max(starts) - min(starts)).total_seconds()
        records += sum(found["numInputRows"] for found in part[1:])
    assert read(recorded()).profile.rate_per_s == pytest.approx(records / seconds)


def test_batches_of_the_recorded_log_that_were_held_out_are_predicted() -> None:
    points = read(recorded()).points
    errors = []
    for fold in range(4):
        model = fit([p for i, p in enumerate(points) if i % 4 != fold], float("inf"))
        held_out = [p for i, p in enumerate(points) if i % 4 == fold]
        errors += [abs(model.duration_ms(p.records) / p.duration_ms - 1) for p in held_out]
    typical_ms = median(point.duration_ms for point in points)
    constant = [abs(typical_ms / point.duration_ms - 1) for point in points]
    assert median(errors) < 0.1
    assert median(errors) < 0.6 * median(constant)


def test_the_recorded_log_holds_nothing_of_the_machine() -> None:
    text = RECORDED.read_text(encoding="utf-8")
    assert len(text) < 300_000
    for trace in ("file:", "/tmp", "/home", "/root", "127.0.0.1", "192."):
        assert trace not in text


def test_braces_of_other_lines_do_not_slow_a_log_down() -> None:
    """Each costs its own piece of the log, and not all that stands before it."""
    seen: list[int] = []

    class Counted(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            seen.append(len(s))
            return super().raw_decode(s, idx)

    noise = "INFO Dispatcher: { not json } " * 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_DECODER", Counted())
        with pytest.raises(InputError, match="holds no progress"):
            progress.read([noise])
    assert len(seen) == 20_000
    assert max(seen) <= 4_096


def test_an_object_longer_than_the_first_look_is_read_whole() -> None:
    text = "".join(one(name="orders", note="x" * 9_000, batchId=n) for n in range(3))
    events = list(progress._events(f"INFO made progress: {text}", []))
    assert [event.batch for event in events] == [0, 1, 2]
