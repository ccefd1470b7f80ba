"""Costs of running: each formula by hand, and what they refuse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.policy.scaling.costs import (
    STANDARD,
    Cores,
    ExecutorCount,
    Grade,
    Price,
    Watts,
    check_grades,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.policy.scaling.costs import Cost

SLOW = Grade("slow", 0.5, price_per_h=0.05, ghz=1.0, volts=0.8)
FAST = Grade("fast", 1.0, price_per_h=0.12, ghz=2.0, volts=1.0)


def test_executors_count_units_and_cores_count_what_they_hold() -> None:
    assert ExecutorCount().of(3, SLOW) == ExecutorCount().of(3, FAST) == 3
    assert Cores(4).of(3, SLOW) == 12
    assert (ExecutorCount().unit, Cores().unit) == ("executors", "cores")


def test_a_price_is_that_of_the_grade_by_the_unit_and_hour() -> None:
    assert Price("EUR").of(5, FAST) == pytest.approx(0.6)
    assert Price("EUR").of(5, SLOW) == pytest.approx(0.25)
    assert Price("EUR").unit == "EUR/h"


def test_power_is_that_of_equation_6_11_with_the_voltage_of_the_grade() -> None:
    assert Watts().of(5, FAST) == pytest.approx(5 * 2.0 * 1.0**2)
    assert Watts(capacitance=3.0, base_w=20.0).of(5, SLOW) == pytest.approx(20 + 3 * 5 * 0.8**2)


def test_voltage_may_be_a_table_or_a_function_of_active_cores_and_frequency() -> None:
    table = {(7, 2.0): 1.1, (7, 1.0): 0.9}
    assert Watts(table, beside=3).of(4, FAST) == pytest.approx(7 * 2.0 * 1.1**2)
    assert Watts(lambda n, f: 0.1 * n + f / 2).of(4, FAST) == pytest.approx(4 * 2.0 * 1.4**2)


def test_power_tells_apart_what_utilisation_cannot() -> None:
    """De Matteis 2016, section 6.2.2: 5 units at 2 GHz are as busy as 10 at 1 GHz."""
    assert 5 * FAST.speed == 10 * SLOW.speed
    assert Watts().of(10, SLOW) < Watts().of(5, FAST)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 200), st.sampled_from([ExecutorCount(), Cores(2), Price(), Watts(base_w=5.0)])
)
def test_every_cost_is_above_zero_and_rises_with_the_size(size: int, cost: Cost) -> None:
    for grade in (SLOW, FAST):
        assert 0 < cost.of(size, grade) < cost.of(size + 1, grade) < math.inf


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Grade("g", speed=0.0), "'g' has a speed of 0.0: give a finite number above 0"),
        (lambda: Grade("g", price_per_h=0.0), "'g' has a price_per_h of 0.0"),
        (lambda: Grade("g", price_per_h=-1.0), "'g' has a price_per_h of -1.0"),
        (lambda: Grade("g", ghz=math.inf), "'g' has a ghz of inf"),
        (lambda: Grade("g", volts=math.nan), "'g' has a volts of nan"),
        (lambda: check_grades(()), "no grade to choose from: give at least one"),
        (lambda: check_grades((FAST, SLOW)), "'slow' is not faster than 'fast' before it"),
        (lambda: Cores(0), "A unit with 0 cores runs nothing"),
        (lambda: Watts(capacitance=0.0), "A capacitance of 0.0 cannot be"),
        (lambda: Watts(base_w=-1.0), "A base of -1.0 W and 0 cores"),
        (lambda: Price().of(1, Grade("bare")), "'bare' has no price: give it a price_per_h"),
        (lambda: Watts().of(1, Grade("bare")), "'bare' has no frequency: give it ghz"),
        (lambda: Watts().of(2, Grade("bare", ghz=2.0)), "2 active cores at 2 GHz"),
        (lambda: Watts({(1, 2.0): 1.0}).of(2, FAST), "2 active cores at 2 GHz"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(made: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        made()
    assert str(caught.value).count(". ") == 0


def test_grades_that_can_be_chosen_from_are_given_back() -> None:
    assert check_grades([SLOW, FAST]) == (SLOW, FAST)
    assert check_grades(STANDARD) == (Grade("standard", 1.0),)
