from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import Trace
from tests.load.conftest import a_trace


def test_empty_payloads_are_filler_of_size_zero() -> None:
    assert a_trace(["", "", ""]).payloads is None
    assert a_trace(["", "", ""]).size.tolist() == [0, 0, 0]


def test_a_trace_knows_its_length_and_duration() -> None:
    assert len(a_trace()) == 3
    assert a_trace().duration_s == 5e-6


def test_a_trace_is_not_equal_to_one_that_differs_or_to_something_else() -> None:
    assert a_trace() == a_trace()
    assert a_trace() != a_trace(["a", "b", "c"])
    assert a_trace() != a_trace().speed(5)
    assert a_trace() != "a trace"


@given(st.floats(1e-3, 1e3))
def test_a_faster_trace_has_the_same_records_sooner(factor: float) -> None:
    due = np.array([0, 1, 10, 999, 10**9], np.int64)
    ones = np.zeros(5, np.int32)
    faster = Trace(due, ones, ones, ("k",)).speed(factor)
    np.testing.assert_allclose(faster.due_us, due / factor, atol=1.0)
    assert np.all(np.diff(faster.due_us) >= 0)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e-300])
def test_a_speed_that_means_nothing_is_refused(factor: float) -> None:
    with pytest.raises(LoadError, match="times as fast"):
        a_trace().speed(factor)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("due_us", np.array([0, 1, 2], np.int32), "flat arrays"),
        ("due_us", np.zeros((3, 1), np.int64), "flat arrays"),
        ("key", np.array([0, 1], np.int32), "one entry for each record"),
        ("key_names", (), "at least one record and one key"),
    ],
)
def test_a_table_of_the_wrong_form_is_refused(column: str, value: object, says: str) -> None:
    base = a_trace()
    names = ("due_us", "key", "size", "key_names")
    parts = {name: getattr(base, name) for name in names} | {column: value}
    with pytest.raises(LoadError, match=says):
        Trace(**parts)


def test_a_trace_without_records_is_refused() -> None:
    none = np.zeros(0, np.int32)
    with pytest.raises(LoadError, match="at least one record"):
        Trace(np.zeros(0, np.int64), none, none, ("k",))
