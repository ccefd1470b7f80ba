"""Keyed steps: what a user's function sees, against a sequential reference over plain dicts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import FlowFailed, InputError, StepFailed
from tailrace.state.keyed import Keyed
from tailrace.state.state import EPOCH, State, canonical
from tailrace.state.store import Store
from tailrace.state.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path / "count" / "0")
    opened.open(-1)
    return opened


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> int:
        return int(self.seconds * SECOND)


def keyed(function: Any, store: Store, **options: Any) -> Keyed:
    return Keyed("count", function, store, **{"clock": Clock(), **options})


def rows(key: Any, *values: Any, newest: int | None = None) -> Any:
    return key, list(values), newest


def count(key: Any, values: list[Any], state: State) -> Iterator[Any]:
    state["n"] += len(values)
    yield key, state["n"]


# --- calls --------------------------------------------------------------------------------------


def test_a_function_is_called_once_for_every_key_in_their_order(store: Store) -> None:
    step = keyed(count, store, initial={"n": 0})
    first = list(step.on_rows([rows("b", 1, 2), rows("a", 3)]))
    assert first == [("b", ("b", 2)), ("a", ("a", 1))]
    assert list(step.on_rows([rows("b", 4)])) == [("b", ("b", 3))]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3)), max_size=4)),
    st.booleans(),
)
def test_counts_are_those_of_a_counter_across_batches_and_processes(
    batches: list[list[dict[str, int]]], moves: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        store, reference = Store(Path(place)), Counter[str]()
        for batch, hand_overs in enumerate(batches):
            if moves:
                store = Store(Path(place))
            store.open(batch - 1)
            step = keyed(count, store, initial={"n": 0})
            for groups in hand_overs:
                made = list(step.on_rows(rows(key, *range(n)) for key, n in groups.items()))
                reference.update(groups)
                assert made == [(key, (key, reference[key])) for key in groups]
            step.finish(batch)
        assert {key: state["n"] for key, state in store.values.items()} == reference


@pytest.mark.parametrize(
    ("made", "expected"),
    [(None, []), ([1, 2], [1, 2]), ((3,), [3]), (iter("x"), ["x"]), ({1}, [1])],
)
def test_a_function_may_return_nothing_or_anything_that_holds_rows(
    store: Store, made: Any, expected: list[Any]
) -> None:
    step = keyed(lambda *_: made, store)
    assert [row for _, row in step.on_rows([rows("a", 1)])] == expected


@pytest.mark.parametrize("made", [5, "text", {"n": 1}, b"x", True])
def test_a_single_row_returned_by_mistake_is_refused(store: Store, made: Any) -> None:
    step = keyed(lambda *_: made, store)
    with pytest.raises(StepFailed, match=r"'count' returned \w+ for key 'a': yield rows"):
        list(step.on_rows([rows("a", 1)]))


def test_keys_may_be_whatever_a_column_gives(store: Store) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    keys = ["a", 7, 2.5, None, moment, moment.date(), Decimal("1.50"), b"x", ("a", None, 1)]
    step = keyed(count, store, initial={"n": 0})
    list(step.on_rows(rows(key, 1) for key in keys))
    step.finish(0)
    again = Store(store.directory)
    again.open(0)
    step = keyed(count, again, initial={"n": 0})
    assert [row[1] for _, row in step.on_rows(rows(key, 1) for key in keys)] == [2] * len(keys)


def test_nan_is_one_key_as_in_spark_also_within_a_tuple_and_after_reading(store: Store) -> None:
    nans = [float("nan"), float("inf") - float("inf"), ("a", float("nan")), ("a", -float("nan"))]
    step = keyed(count, store, initial={"n": 0})
    list(step.on_rows(rows(key, 1) for key in nans))
    step.finish(0)
    assert len(store.values) == 2
    again = Store(store.directory)
    again.open(0)
    step = keyed(count, again, initial={"n": 0})
    assert [row[1] for _, row in step.on_rows(rows(key, 1) for key in nans)] == [3, 4, 3, 4]
    assert canonical(-0.0) == 0.0


# --- initial state, and forgetting --------------------------------------------------------------


def test_every_key_starts_with_a_copy_of_its_own(store: Store) -> None:
    def collect(_: Any, values: list[Any], state: State) -> list[Any]:
        state["seen"] += values
        return [list(state["seen"])]

    initial: dict[str, list[int]] = {"seen": []}
    step = keyed(collect, store, initial=initial)
    made = list(step.on_rows([rows("a", 1), rows("b", 2), rows("a", 3)]))
    assert made == [("a", [1]), ("b", [2]), ("a", [1, 3])]
    assert initial == {"seen": []}


def test_the_initial_state_may_be_made_by_a_function_or_be_empty(store: Store) -> None:
    list(keyed(count, store, initial=lambda: {"n": 10}).on_rows([rows("a", 1)]))
    assert store.values["a"] == {"n": 11}
    seen: list[State] = []
    list(keyed(lambda _k, _r, state: seen.append(state), store).on_rows([rows("b", 1)]))
    assert seen == [{}]


@pytest.mark.parametrize("initial", [5, [], "n", {1}])
def test_another_initial_state_is_refused(store: Store, initial: Any) -> None:
    with pytest.raises(InputError, match=r"initial state of step 'count' is .*: give a dict"):
        keyed(count, store, initial=initial)


def test_an_initial_state_that_cannot_be_kept_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="because a value of type object is not plain data"):
        keyed(count, store, initial={"n": object()})
    with pytest.raises(StepFailed, match="came out as 5: have the function return a dict"):
        list(keyed(count, store, initial=lambda: 5).on_rows([rows("a", 1)]))


def test_a_key_with_an_empty_state_and_no_timer_is_forgotten(store: Store) -> None:
    def once(_: Any, values: list[Any], state: State) -> None:
        if values == ["forget"]:
            state.clear()
        else:
            state["seen"] = True

    step = keyed(once, store)
    list(step.on_rows([rows("a", "keep"), rows("b", "keep"), rows("c", "forget")]))
    assert set(store.values) == {"a", "b"}
    list(step.on_rows([rows("a", "forget")]))
    assert set(store.values) == {"b"}
    step.finish(0)
    again = Store(store.directory)
    again.open(0)
    assert set(again.values) == {"b"}


# --- timers -------------------------------------------------------------------------------------


def alarm(_: Any, values: list[Any], state: State) -> None:
    """A record is the second to wake at; a negative one cancels."""
    state["set"] = values[-1]
    if values[-1] < 0:
        state.sleep()
    else:
        state.wake(at(values[-1]))


def ring(key: Any, state: State) -> Iterator[Any]:
    yield key, state["set"], state.now
    state.clear()


def test_timers_ring_once_when_they_are_due_in_the_order_of_time(store: Store) -> None:
    clock = Clock()
    step = keyed(alarm, store, on_timer=ring, clock=clock)
    list(step.on_rows([rows("late", 9), rows("early", 3), rows("middle", 5), rows("never", 99)]))
    assert list(step.due()) == []
    clock.seconds = 5
    assert [row[:2] for _, row in step.due()] == [("early", 3), ("middle", 5)]
    assert list(step.due()) == []
    clock.seconds = 10
    assert list(step.due()) == [("late", ("late", 9, at(10)))]
    assert set(store.values) == {"never"}


def test_a_timer_replaces_the_one_before_and_may_be_cancelled(store: Store) -> None:
    clock = Clock()
    step = keyed(alarm, store, on_timer=ring, clock=clock)
    list(step.on_rows([rows("a", 3), rows("b", 3), rows("c", 3)]))
    list(step.on_rows([rows("a", 8), rows("b", -1), rows("c", 8)]))
    list(step.on_rows([rows("c", 3)]))
    clock.seconds = 4
    assert [key for key, _ in step.due()] == ["c"]
    clock.seconds = 9
    assert [key for key, _ in step.due()] == ["a"]
    assert store.values == {"b": {"set": -1}}


def test_a_timer_that_sets_itself_at_once_rings_once_at_a_time(store: Store) -> None:
    def again(key: Any, state: State) -> list[Any]:
        state.wake(state.now)
        return [key]

    clock = Clock()
    step = keyed(alarm, store, on_timer=again, clock=clock)
    list(step.on_rows([rows("a", 1)]))
    clock.seconds = 2
    assert list(step.due()) == [("a", "a")]
    assert list(step.due()) == [("a", "a")]


def test_timers_ring_in_the_process_that_has_the_partition_then(store: Store) -> None:
    step = keyed(alarm, store, on_timer=ring)
    list(step.on_rows([rows("a", 3)]))
    step.finish(0)
    again, clock = Store(store.directory), Clock()
    again.open(0)
    clock.seconds = 3
    step = keyed(alarm, again, on_timer=ring, clock=clock)
    assert [key for key, _ in step.due()] == ["a"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcd"), st.integers(-3, 30)),
            st.integers(0, 4),
        ),
        max_size=60,
    )
)
def test_timers_are_those_of_a_dict_that_is_searched(story: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        store, clock = Store(Path(place)), Clock()
        store.open(-1)
        step = keyed(alarm, store, on_timer=ring, clock=clock)
        pending: dict[str, int] = {}
        for event in story:
            if isinstance(event, int):
                clock.seconds += event
                due = {key: when for key, when in pending.items() if when <= clock.seconds}
                rung = [(row[1], key) for key, row in step.due()]
                assert sorted(rung) == sorted((when, key) for key, when in due.items())
                assert [when for when, _ in rung] == sorted(due.values())
                for key in due:
                    del pending[key]
            else:
                key, when = event
                list(step.on_rows([rows(key, when)]))
                pending.pop(key, None)
                if when >= 0:
                    pending[key] = when


def test_timers_that_are_replaced_again_and_again_do_not_pile_up() -> None:
    states = {"a": State({"n": 1})}
    timers = Timers(states)
    for moment in range(1_000, 0, -1):
        states["a"].timer_us = moment
        timers.add(moment, "a")
    assert len(timers) < 100
    assert timers.take(2_000) == [(1, "a")]


def test_a_timer_without_on_timer_is_refused(store: Store) -> None:
    step = keyed(alarm, store)
    with pytest.raises(StepFailed, match="has set a timer for key 'a' but has no on_timer: pass"):
        list(step.on_rows([rows("a", 3)]))
    with pytest.raises(FlowFailed, match="did not reach the end of batch 0"):
        step.finish(0)


def test_a_timer_of_an_earlier_run_without_on_timer_is_refused(store: Store) -> None:
    step = keyed(alarm, store, on_timer=ring)
    list(step.on_rows([rows("a", 3)]))
    step.finish(0)
    store.open(0)
    clock = Clock()
    clock.seconds = 5
    with pytest.raises(StepFailed, match="has no on_timer"):
        list(keyed(alarm, store, clock=clock).due())


@pytest.mark.parametrize("when", [5, "soon", datetime(2026, 1, 1), None])
def test_a_moment_without_a_time_zone_is_refused(when: Any) -> None:
    with pytest.raises(StepFailed, match=r"state.wake\(\) was given .*: give it a datetime with"):
        State({}).wake(when)


@given(st.datetimes(timezones=st.just(UTC)))
def test_moments_are_exact_to_the_microsecond(when: datetime) -> None:
    state = State({})
    state.wake(when)
    state.now_us = state.timer_us
    assert state.now == when


# --- event time ---------------------------------------------------------------------------------


def test_in_event_time_the_watermark_is_the_newest_event_less_the_lateness(store: Store) -> None:
    seen: list[datetime] = []

    def watch(key: Any, values: list[Any], state: State) -> None:
        seen.append(state.now)
        alarm(key, values, state)

    step = keyed(watch, store, on_timer=ring, event_time=True, lateness_us=2 * SECOND)
    list(step.on_rows([rows("a", 12, newest=10 * SECOND), rows("b", 9, newest=14 * SECOND)]))
    assert seen == [at(8), at(8)]
    assert [row for _, row in step.due()] == [("a", 12, at(12)), ("b", 9, at(12))][::-1]
    list(step.on_rows([rows("c", 50, newest=5 * SECOND), rows("d", 13)]))
    assert seen[2:] == [at(12), at(12)]
    assert list(step.due()) == []
    step.finish(0)
    again = Store(store.directory)
    again.open(0)
    step = keyed(watch, again, on_timer=ring, event_time=True, lateness_us=SECOND)
    assert [row for _, row in step.due()] == [("d", 13, at(13))]


def test_before_any_event_time_no_timer_rings_and_now_is_the_earliest_moment(store: Store) -> None:
    seen: list[datetime] = []

    def watch(key: Any, values: list[Any], state: State) -> None:
        seen.append(state.now)
        alarm(key, values, state)

    step = keyed(watch, store, on_timer=ring, event_time=True)
    list(step.on_rows([rows("a", 1)]))
    assert seen == [datetime.min.replace(tzinfo=UTC)]
    assert list(step.due()) == []


# --- errors -------------------------------------------------------------------------------------


def picky(_: Any, values: list[Any], state: State) -> Iterator[Any]:
    for value in values:
        state.setdefault("seen", []).append(value)
        state.wake(at(value))
        yield value
        if value < 0:
            raise ZeroDivisionError("picky")


def ring_badly(_: Any, state: State) -> list[Any]:
    state["seen"].append("rung")
    if state["seen"][0] == 2:
        raise KeyError("badly")
    return ["rung"]


def test_after_an_error_the_state_is_as_before_the_call_and_others_go_on(store: Store) -> None:
    clock = Clock()
    step = keyed(picky, store, on_timer=ring_badly, keep_on_error=True, clock=clock)
    list(step.on_rows([rows("a", 2)]))
    groups = iter([rows("b", 5), rows("a", 3, -1), rows("new", -1), rows("c", 7)])
    made, failed = [], []
    while True:
        try:
            made += list(step.on_rows(groups))
            break
        except ZeroDivisionError:
            failed.append(step.current)
    assert failed == ["a", "new"]
    assert made == [("c", 7)]
    assert store.values == {"a": {"seen": [2]}, "b": {"seen": [5]}, "c": {"seen": [7]}}
    assert store.values["a"].timer_us == 2 * SECOND
    clock.seconds = 5
    with pytest.raises(KeyError, match="badly"):
        list(step.due())
    assert step.current == "a"
    assert store.values["a"] == {"seen": [2]}
    assert list(step.due()) == [("b", "rung")]
    step.finish(0)
    again = Store(store.directory)
    again.open(0)
    assert again.values == store.values
    assert again.values["a"].timer_us is None


def test_without_keeping_an_error_fails_the_task_and_nothing_is_written(store: Store) -> None:
    step = keyed(picky, store, on_timer=ring_badly)
    with pytest.raises(ZeroDivisionError):
        list(step.on_rows([rows("a", 2, -1)]))
    with pytest.raises(FlowFailed, match="the batch has to be run again"):
        step.finish(0)
    store.open(-1)
    assert store.values == {}


def test_an_attempt_that_was_given_up_in_this_process_cannot_write(store: Store) -> None:
    given_up = keyed(count, store, initial={"n": 0})
    list(given_up.on_rows([rows("a", 1)]))
    store.open(-1)
    with pytest.raises(FlowFailed, match="did not reach the end"):
        given_up.finish(0)
    keyed(count, store, initial={"n": 0}).finish(0)
    assert store.values == {}


@pytest.mark.parametrize("keep_on_error", [False, True])
def test_a_value_that_cannot_be_kept_is_named_with_step_and_key(
    store: Store, keep_on_error: bool
) -> None:
    def hoard(_: Any, values: list[Any], state: State) -> None:
        state["bad"] = values[0]

    step = keyed(hoard, store, keep_on_error=keep_on_error)
    list(step.on_rows([rows("fine", 1), rows(("a", 1), object())]))
    with pytest.raises(StepFailed) as refused:
        step.finish(0)
    assert str(refused.value) == (
        "The state of step 'count', partition 0, for key ('a', 1) cannot be kept, because a value "
        "of type object is not plain data: keep numbers, texts, dates, lists, dicts and the like "
        "instead."
    )


def test_workers_import_no_more_than_the_standard_library() -> None:
    program = (
        "import sys, tailrace.state.keyed, tailrace.state.partitions\n"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'pandas'} & set(sys.modules)\n"
        "ours = {name for name in sys.modules if name.startswith('tailrace.')}\n"
        "print(sorted(heavy), sorted(n for n in ours if not n.startswith('tailrace.state')))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[] ['tailrace.errors']\n"
