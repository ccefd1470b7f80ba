"""The state of one key: its timer, and how keys are looked up and shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import StepFailed
from tailrace.state.state import EPOCH, State, canonical, hidden, shown


class Row(NamedTuple):
    """A tuple of a class of its own, as Spark's rows are."""

    user: str
    day: int


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


def test_every_nan_is_one_key_and_a_row_is_its_values() -> None:
    nan, other = float("nan"), -float("nan")
    assert canonical(nan) is canonical(other)
    assert {canonical((nan, 1)), canonical((other, 1))} == {canonical((nan, 1))}
    row = Row("anna", 1)
    assert type(canonical(row)) is tuple
    assert canonical(row) == ("anna", 1)


@given(st.text(max_size=300))
def test_a_key_in_a_message_stands_on_one_short_line(text: str) -> None:
    assert len(shown(text)) <= 80
    assert "\n" not in shown(text)
    if len(repr(text)) <= 80:
        assert shown(text) == repr(text)
    assert shown(text) != hidden(text)


def test_a_hidden_key_does_not_tell_which_it_is() -> None:
    assert hidden("anna") == hidden(("otto", 7))


def test_a_state_holds_a_copy_and_sleeps_until_it_is_woken() -> None:
    given_contents = {"n": 1}
    state = State(given_contents)
    state["n"] += 1
    assert given_contents == {"n": 1}
    state.wake(EPOCH + timedelta(seconds=2))
    assert state.timer_us == 2_000_000
    state.sleep()
    assert state.timer_us is None
