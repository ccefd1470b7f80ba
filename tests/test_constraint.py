"""Constraints as users write them, and the sentences they get for a wrong one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.constraint import Constraint, constraint, is_sink
from tailrace.errors import ConstraintError


def is_one_sentence(message: str) -> bool:
    return message.endswith(".") and re.search(r"[.!?]\s+[A-Z]", message) is None


def test_the_mean_has_no_quantile() -> None:
    assert constraint("mean", "400 ms") == Constraint(400.0, 5_000.0, None, ("source", "sink"))


@pytest.mark.parametrize(
    ("statistic", "quantile", "shown"),
    [
        ("p50", 0.5, "p50"),
        ("p99", 0.99, "p99"),
        ("p99_9", 0.999, "p99.9"),
        ("p99.9", 0.999, "p99.9"),
        ("p99_99", 0.9999, "p99.99"),
        ("p7", 0.07, "p7"),
        ("p0_1", 0.001, "p0.1"),
    ],
)
def test_a_quantile_is_read_and_shown(statistic: str, quantile: float, shown: str) -> None:
    read = constraint(statistic, "1 s")
    assert read.quantile == pytest.approx(quantile, rel=1e-12)
    assert read.statistic == shown


@given(st.integers(1, 99_999))
def test_a_shown_quantile_reads_back_as_itself(thousandths: int) -> None:
    read = constraint(f"p{thousandths / 1000:.3f}", 100)
    assert constraint(read.statistic, 100) == read
    assert constraint(read.statistic.replace(".", "_"), 100) == read


@pytest.mark.parametrize(
    ("bound", "bound_ms"),
    [("400 ms", 400.0), ("1.5 s", 1500.0), (250, 250.0), ("2 min", 120_000.0)],
)
def test_a_bound_is_read_in_any_unit(bound: str | float, bound_ms: float) -> None:
    assert constraint("mean", bound).bound_ms == bound_ms
    assert constraint("mean", "1 ms", every=bound).every_ms == bound_ms


@pytest.mark.parametrize(
    "statistic",
    [
        *("", "median", "Mean", "p", "99", "p9x", "p 99", "p-5", "p99_", "p99__9"),
        *("p0", "p00", "p0_0", "p100", "p99.99999999999999999999"),
    ],
)
def test_nonsense_is_not_a_statistic(statistic: str) -> None:
    with pytest.raises(ConstraintError, match="is not a statistic of latency") as caught:
        constraint(statistic, "1 s")
    assert type(caught.value) is ConstraintError
    assert is_one_sentence(str(caught.value))
    assert f"'{statistic}'" in str(caught.value)


@pytest.mark.parametrize(
    "duration",
    ["0 ms", 0, "-5 ms", -1.0, "fast", "", "5 parsecs", float("nan"), float("inf"), True],
)
def test_a_bound_or_a_span_that_is_no_duration_is_refused(duration: str | float) -> None:
    with pytest.raises(ConstraintError, match="the bound on the p99") as of_bound:
        constraint("p99", duration)
    with pytest.raises(ConstraintError, match="the span 'every'") as of_every:
        constraint("p99", "1 s", every=duration)
    for caught in (of_bound, of_every):
        assert type(caught.value) is ConstraintError
        assert is_one_sentence(str(caught.value))
        assert repr(duration) in str(caught.value)


@pytest.mark.parametrize("path", ["parse", "", ()])
def test_a_path_that_is_not_a_tuple_of_names_is_refused(path: tuple[str, ...]) -> None:
    with pytest.raises(ConstraintError, match="is not a tuple of step names") as caught:
        constraint("mean", "1 s", path=path)
    assert is_one_sentence(str(caught.value))


def test_only_a_path_from_the_source_counts_the_wait_at_the_source() -> None:
    assert constraint("mean", 1).from_source
    assert constraint("mean", 1, path=("source", "parse")).from_source
    assert not constraint("mean", 1, path=("parse", "sink")).from_source


def test_a_constraint_reads_as_a_person_would_say_it() -> None:
    assert str(constraint("mean", 400)) == "mean <= 400 ms in every 5 s"
    part = constraint("p99_9", "1.5 s", every="1 min", path=("parse", "score"))
    assert str(part) == "p99.9 <= 1.5 s in every 1 min on parse -> score"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("sink", True),
        ("sink:alerts", True),
        ("sinker", False),
        ("source", False),
        ("a:sink", False),
    ],
)
def test_a_sink_is_known_by_its_name(name: str, end: bool) -> None:
    assert is_sink(name) is end
