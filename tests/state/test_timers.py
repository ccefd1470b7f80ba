"""The timers of a partition, against a dict that is searched."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.state.state import State
from tailrace.state.timers import Timers


def test_timers_that_are_replaced_again_and_again_do_not_pile_up() -> None:
    states = {"a": State({"n": 1})}
    timers = Timers(states)
    for moment in range(1_000, 0, -1):
        states["a"].timer_us = moment
        timers.add(moment, "a")
    assert len(timers) < 100
    assert timers.take(2_000) == [(1, "a")]


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 50)),
            st.integers(0, 60),
        ),
        max_size=80,
    )
)
def test_timers_are_taken_in_order_of_time_as_from_a_dict(story: list[Any]) -> None:
    states: dict[Any, State] = {}
    timers = Timers(states)
    for turn, event in enumerate(story):
        if isinstance(event, int):
            set_to = [(s.timer_us, k) for k, s in states.items() if s.timer_us is not None]
            due = sorted(each for each in set_to if each[0] <= event)
            taken = timers.take(event)
            assert sorted(taken) == due
            assert [timer_us for timer_us, _ in taken] == [timer_us for timer_us, _ in due]
            for _, key in due:
                states[key].timer_us = None
        else:
            key, timer_us = event
            states[key] = State({"n": turn}, timer_us)
            if timer_us is not None:
                timers.add(timer_us, key)
                assert timers.holds(timer_us, key)


def test_timers_of_states_that_were_read_are_found() -> None:
    states: dict[Any, State] = {"a": State({}, 3), "b": State({}), "c": State({}, 1)}
    timers = Timers(states)
    assert len(timers) == 2
    assert timers.take(5) == [(1, "c"), (3, "a")]
