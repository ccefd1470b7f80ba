"""Alarms against brute force over the steps, and the rule of when scaling ahead is of use."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.forecasting.alarm import Alarm, Limit, scale_ahead, when_broken
from tailrace.model.forecasting.forecast import Forecast, Series, forecast

if TYPE_CHECKING:
    from collections.abc import Sequence

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000.0
HALF_PAST_FIVE = datetime(2026, 10, 1, 17, 30, tzinfo=BERLIN)


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def rising(
    means: Sequence[float], deviation: float = 0.0, step_ms: float = 10 * MINUTE_MS
) -> Forecast:
    """A forecast from half past five in Berlin on."""
    return Forecast(us(HALF_PAST_FIVE), step_ms, tuple(means), (deviation,) * len(means))


def test_the_alarm_names_the_time_the_distance_the_step_and_its_limit() -> None:
    ahead = rising([30_000, 35_000, 38_000, 40_000, 42_000, 50_000])
    alarm = when_broken(ahead, [Limit("step X", 41_000)], tz=BERLIN)
    assert alarm.first.expected_us is not None
    assert alarm.first.expected_us == us(datetime(2026, 10, 1, 18, 10, tzinfo=BERLIN))
    assert alarm.sentence == (
        "The bound breaks at 18:10, 40 min from now, because step X saturates at 41 k/s; the "
        "chance of it by then is 100%."
    )


def test_a_bound_is_told_from_a_saturation() -> None:
    alarm = when_broken(rising([1, 3]), [Limit("step X", 2, bound="p99 of 1 s")], tz=BERLIN)
    assert "because step X keeps p99 of 1 s only up to 2 /s" in alarm.sentence


def test_the_time_is_that_of_the_time_zone_and_of_now() -> None:
    ahead = rising([10, 10, 30])
    there = when_broken(ahead, 20, tz=ZoneInfo("Asia/Kolkata"))
    assert "breaks at 21:20, 20 min from now" in there.sentence
    later = when_broken(ahead, 20, now_us=ahead.start_us + 15 * 60_000_000, tz=BERLIN)
    assert "breaks at 17:50, 5 min from now" in later.sentence


def test_another_day_is_said_and_short_steps_have_seconds() -> None:
    hours = when_broken(rising([1] * 20 + [9], step_ms=60 * MINUTE_MS), 5, tz=BERLIN)
    assert "breaks tomorrow at 13:30, 20 h from now" in hours.sentence
    days = when_broken(rising([1] * 50 + [9], step_ms=60 * MINUTE_MS), 5, tz=BERLIN)
    assert "breaks on 2026-10-03 at 19:30, 50 h from now" in days.sentence
    seconds = when_broken(rising([1, 9], step_ms=5_000), 5, tz=BERLIN)
    assert "breaks at 17:30:05, 5 s from now" in seconds.sentence


def test_a_limit_that_is_exceeded_in_the_running_step_breaks_now() -> None:
    ahead = rising([9, 1, 1])
    alarm = when_broken(ahead, 5, now_us=ahead.start_us + 1, tz=BERLIN)
    assert alarm.sentence.startswith("The bound breaks now, because the flow saturates at 5 /s")


def test_steps_that_are_over_do_not_count() -> None:
    ahead = rising([9, 1, 1])
    alarm = when_broken(ahead, 5, now_us=ahead.at_us(1), tz=BERLIN)
    assert alarm.first.expected_us is None
    assert alarm.first.chance == 0
    assert alarm.sentence == (
        "Nothing breaks until 18:00: the flow saturates at 5 /s, and the chance of exceeding that "
        "by then is 0%."
    )


def test_the_upper_edge_of_the_band_exceeds_a_limit_before_the_mean_does() -> None:
    ahead = rising([100, 110, 120, 130], deviation=20)
    alarm = when_broken(ahead, 125, band=0.8)
    # The upper edge of 80 % is 1.2816 deviations up: 125.6 at the first step.
    assert alarm.first.possible_us == ahead.at_us(0)
    assert alarm.first.expected_us == ahead.at_us(3)
    narrow = when_broken(ahead, 125, band=0.1)
    assert narrow.first.possible_us == ahead.at_us(3)


def test_what_is_only_possible_is_said_with_its_chance_and_raises_no_alarm() -> None:
    alarm = when_broken(rising([100, 100], deviation=20), 120, band=0.8, tz=BERLIN)
    assert alarm.first.expected_us is None
    assert alarm.first.chance == pytest.approx(0.1587, abs=1e-3)
    assert alarm.sentence == (
        "The bound may break now, where the upper edge of the 80% band exceeds the limit (the flow "
        "saturates at 120 /s); the chance within the forecast is 16%."
    )


def test_of_several_limits_the_first_to_break_is_named_and_all_are_kept_in_order() -> None:
    ahead = rising([10, 20, 30, 40], deviation=4)
    limits = [
        Limit("never", math.inf),
        Limit("late", 35),
        Limit("perhaps", 42),
        Limit("soon", 15),
        Limit("as soon, but lower", 11),
    ]
    alarm = when_broken(ahead, limits)
    order = ["as soon, but lower", "soon", "late", "perhaps", "never"]
    assert [breach.limit.element for breach in alarm.breaches] == order
    assert alarm.first is alarm.breaches[0]
    assert alarm.breaches[-1].chance == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 1_000), min_size=1, max_size=20),
    st.floats(0, 100),
    st.lists(st.floats(0, 1_200), min_size=1, max_size=4),
    st.integers(0, 19),
    st.floats(0.05, 0.99),
)
def test_the_first_breach_is_the_one_that_a_search_of_every_step_finds(
    means: list[float], deviation: float, rates: list[float], passed: int, band: float
) -> None:
    ahead = rising(means, deviation)
    passed = min(passed, len(means) - 1)
    limits = [Limit(f"step {n}", rate) for n, rate in enumerate(rates)]
    alarm = when_broken(ahead, limits, band, now_us=ahead.at_us(passed))
    left = range(passed, len(means))
    expected = [n for n in left if any(means[n] > rate for rate in rates)]
    assert alarm.first.expected_us == (ahead.at_us(expected[0]) if expected else None)
    upper = [high for _, high in ahead.band(band)]
    possible = [n for n in left if any(upper[n] > rate for rate in rates)]
    found = [b.possible_us for b in alarm.breaches if b.possible_us is not None]
    assert min(found, default=None) == (ahead.at_us(possible[0]) if possible else None)
    for breach in alarm.breaches:
        last = len(means) - 1
        if breach.expected_us is not None:
            last = next(n for n in left if means[n] > breach.limit.rate_per_s)
            assert breach.chance >= 0.5 - 1e-9
        single = ahead.chance_above(breach.limit.rate_per_s)[passed : last + 1]
        assert breach.chance == pytest.approx(max(single))


def test_the_chance_is_as_often_right_as_it_says() -> None:
    told, came = [], []
    for seed in range(150):
        walk = 5_000 + 50 * np.cumsum(np.random.default_rng(seed).standard_normal(132))
        limit = float(walk[119]) + 120
        ahead = forecast(Series(tuple(walk[:120].tolist()), 1_000.0), 12)
        whole = ahead.chance_by(limit)
        alarm = when_broken(ahead, limit)
        assert alarm.first.chance <= whole[-1]
        told.append(whole[-1])
        came.append(walk[120:].max() > limit)
    # The standard error of the share that came is 0.04.
    assert np.mean(told) == pytest.approx(np.mean(came), abs=0.1)


# --- scaling ahead ----------------------------------------------------------------------------


def alarm_in(minutes: int, of: int = 60, deviation: float = 0.0) -> Alarm:
    """An alarm in so many minutes, from a forecast of 60 minutes."""
    means = [10.0] * minutes + [30.0] * (of - minutes)
    ahead = rising(means, deviation, MINUTE_MS)
    return when_broken(ahead, [Limit("step X", 20)], tz=BERLIN)


def test_scaling_ahead_is_advised_when_it_is_done_before_the_break() -> None:
    advice = scale_ahead(alarm_in(40), 30_000, 4 * MINUTE_MS, BERLIN)
    assert advice.advised
    assert advice.start_by_us == us(HALF_PAST_FIVE) + round(35.5 * 60) * 1_000_000
    assert advice.reason == (
        "Start to scale by 18:05:30: the bound breaks in 40 min, because step X saturates at "
        "20 /s, and finding a plan takes 30 s and scaling takes 4 min."
    )


def test_scaling_starts_early_enough_for_the_upper_edge_of_the_band() -> None:
    advice = scale_ahead(alarm_in(40, deviation=9), 30_000, 4 * MINUTE_MS, BERLIN)
    assert advice.advised
    assert advice.start_by_us == us(HALF_PAST_FIVE)
    assert advice.reason.startswith("Start to scale now: the bound breaks in 40 min")


def test_a_forecast_that_sees_less_far_than_scaling_takes_is_of_no_use() -> None:
    advice = scale_ahead(alarm_in(5, of=10), 0, 10 * MINUTE_MS)
    assert not advice.advised
    assert advice.start_by_us is None
    assert advice.reason == (
        "Do not scale ahead: the forecast sees 10 min ahead and finding a plan takes 0 ms and "
        "scaling takes 10 min; look further."
    )


def test_a_break_that_comes_sooner_than_scaling_is_done_is_for_reacting() -> None:
    advice = scale_ahead(alarm_in(5), MINUTE_MS, 4 * MINUTE_MS)
    assert not advice.advised
    assert advice.reason == (
        "Scaling ahead comes too late: the bound breaks in 5 min, because step X saturates at "
        "20 /s, and finding a plan takes 1 min and scaling takes 4 min; react at once."
    )
    assert "breaks now" in scale_ahead(alarm_in(0), 1, 1).reason


def test_without_an_expected_break_nothing_is_scaled() -> None:
    advice = scale_ahead(alarm_in(60, deviation=9), 1, 1)
    assert not advice.advised
    assert advice.reason == (
        "Do not scale ahead: within 1 h nothing is expected to break, and the chance that "
        "something does is 13%."
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 59), st.integers(0, 70), st.integers(0, 70))
def test_scaling_ahead_is_advised_iff_the_time_to_the_break_exceeds_that_of_acting(
    minutes: int, modelling: int, scaling: int
) -> None:
    advice = scale_ahead(alarm_in(minutes), modelling * MINUTE_MS, scaling * MINUTE_MS)
    assert advice.advised == (minutes > modelling + scaling)


# --- what cannot be ---------------------------------------------------------------------------


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    ahead = rising([1, 2])
    with pytest.raises(InputError, match="no limit to compare the forecast with"):
        when_broken(ahead, [])
    with pytest.raises(InputError, match=r"over at 17:50, which is past: forecast again"):
        when_broken(ahead, 5, now_us=ahead.at_us(2), tz=BERLIN)
    with pytest.raises(InputError, match="step X cannot have a limit of nan"):
        Limit("step X", math.nan)
    with pytest.raises(InputError, match=r"band of level 1\.5"):
        when_broken(ahead, 5, band=1.5)
    with pytest.raises(InputError, match="Modelling for -1 ms"):
        scale_ahead(when_broken(ahead, 5, tz=UTC), -1, 0)


@pytest.mark.parametrize(
    ("start_us", "step_ms"), [(0, 1e15), (253_402_300_799_000_000, 1.0), (-(10**17), 1.0)]
)
def test_a_forecast_beyond_the_calendar_is_refused(start_us: int, step_ms: float) -> None:
    with pytest.raises(InputError, match="leaves the years that have dates"):
        when_broken(Forecast(start_us, step_ms, (1.0,), (0.0,)), 2.0)
