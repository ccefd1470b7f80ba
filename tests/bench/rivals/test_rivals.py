"""The rivals: what each was published to do, and never a size outside the limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.rivals import rivals
from bench.rivals.ds2 import Ds2
from bench.rivals.dynamic_allocation import DynamicAllocation
from bench.rivals.rules import Constant, LatencyRule, Peak, ThresholdRule
from bench.rivals.spl import Spl
from tailrace.errors import InputError
from tailrace.policy.scaling.sizing import Limits, Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.policy.scaling.sizing import Scaler


@dataclass(frozen=True)
class Line:
    """A model that knows only the utilisation."""

    service_ms: float = 10.0

    def utilisation(self, size: int, rate_per_s: float) -> float:
        return rate_per_s * self.service_ms / 1e3 / size

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        busy = self.utilisation(size, rate_per_s)
        return self.service_ms / (1 - busy) if busy < 1 else math.inf


CALM = Load(
    at_us=0,
    step_ms=1_000.0,
    size=4,
    limits=Limits(1, 10, 2),
    bound_ms=100.0,
    rate_per_s=340.0,
    done_per_s=340.0,
    service_ms=10.0,
    busy=0.85,
    latency_ms=90.0,
    backlog=0.0,
    model=Line(),
)


def sizes(scaler: Scaler, loads: Iterable[Load]) -> list[int]:
    return [scaler.decide(load).size for load in loads]


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "size"), [(361, 5), (360, 4), (320, 4), (319, 3), (900, 5), (0, 3)]
)
def test_the_threshold_rule_steps_up_above_ninety_percent_and_down_below_eighty(
    rate: float, size: int
) -> None:
    """The last but one: a rule has no idea how far it should go, whatever the overload."""
    assert ThresholdRule().decide(replace(CALM, rate_per_s=rate, busy=0.1)).size == size


def test_the_threshold_rule_sees_a_backlog_in_the_units_that_work_it_off() -> None:
    assert ThresholdRule().decide(replace(CALM, rate_per_s=10, busy=0.99)).size == 5


@pytest.mark.parametrize("name", ["Th-Rule", "Lat-Rule", "SPL"])
def test_whoever_goes_by_what_was_measured_waits_until_it_is_of_the_new_size(name: str) -> None:
    worse = replace(CALM, rate_per_s=999, latency_ms=999, blocked=0.9, since_move=0)
    assert rivals()[name]().decide(worse).size == 4
    assert rivals()[name]().decide(replace(worse, since_move=1)).size == 5


@pytest.mark.parametrize(("latency", "size"), [(121, 5), (120, 4), (80, 4), (79, 3), (1e9, 5)])
def test_the_latency_rule_steps_up_only_a_fifth_beyond_the_bound(latency: float, size: int) -> None:
    assert LatencyRule().decide(replace(CALM, latency_ms=latency)).size == size


def test_without_a_latency_the_latency_rule_goes_by_what_waits() -> None:
    nothing = replace(CALM, latency_ms=None)
    assert LatencyRule().decide(nothing).size == 4
    assert LatencyRule().decide(replace(nothing, backlog=1.0)).size == 5


def test_a_rule_says_what_it_went_by() -> None:
    assert ThresholdRule().decide(replace(CALM, rate_per_s=380)).reason == (
        "The units are 95% busy, above 90%."
    )
    assert LatencyRule().decide(CALM).reason == (
        "The latency of 90 ms is 90% of its bound, between 80% and 120%."
    )


def test_rules_take_larger_steps_when_told() -> None:
    assert ThresholdRule(step=3).decide(replace(CALM, rate_per_s=999)).size == 7
    assert LatencyRule(step=3).decide(replace(CALM, latency_ms=1)).size == 1


def test_peak_and_constant_do_not_look_at_the_load() -> None:
    for rate in (0.0, 340.0, 1e6):
        assert Peak().decide(replace(CALM, rate_per_s=rate)).size == 10
        assert Constant(6).decide(replace(CALM, rate_per_s=rate)).size == 6
    assert Constant(60).decide(CALM).size == 10


# --- SPL ------------------------------------------------------------------------------------------


def spl_run(
    spl: Spl, capacity: float, rates: Sequence[float], size: int, most: int = 10
) -> list[int]:
    """Periods against units that each carry so much, blocked for what they cannot take."""
    taken = []
    for rate in rates:
        given_per_s = min(rate, capacity * size)
        blocked = 1 - given_per_s / rate if rate else 0.0
        load = replace(
            CALM,
            size=size,
            limits=Limits(1, most),
            rate_per_s=rate,
            done_per_s=given_per_s,
            blocked=blocked,
        )
        size = spl.decide(load).size
        taken.append(size)
    return taken


def test_spl_climbs_one_level_a_period_until_nothing_is_blocked_and_stays() -> None:
    assert spl_run(Spl(), 100, [450] * 8, size=1) == [2, 3, 4, 5, 5, 5, 5, 5]


def test_spl_tolerates_a_tenth_of_congestion() -> None:
    assert spl_run(Spl(), 100, [440] * 8, size=1)[-1] == 4


def test_spl_goes_down_only_after_it_has_seen_less_load() -> None:
    """Levels below are taken to be congested until the load falls; then each is tried in turn."""
    unspoilt = spl_run(Spl(), 100, [150] * 4, size=5)
    assert unspoilt == [5, 5, 5, 5]
    fallen = spl_run(Spl(), 100, [490] * 2 + [190] * 6, size=5)
    assert fallen == [5, 5, 4, 3, 2, 1, 2, 2]


def test_spl_finds_the_level_again_that_it_fell_below() -> None:
    spl = Spl()
    assert spl_run(spl, 100, [290] * 3 + [230] * 5, size=3) == [3, 3, 3, 2, 3, 3, 3, 3]


def test_spl_forgets_upper_levels_when_the_load_rises() -> None:
    taken = spl_run(Spl(), 100, [250] * 6 + [650] * 6, size=1)
    assert taken == [2, 3, 3, 3, 3, 3, 4, 5, 6, 6, 6, 6]


def test_spl_backs_away_from_a_bottleneck_that_is_not_its_own() -> None:
    """Promise 22's rival sees remote congestion: blocked all the time, and no more for one more."""
    spl, size, taken = Spl(), 3, []
    for _ in range(8):
        load = replace(CALM, size=size, done_per_s=200.0, blocked=0.5)
        size = spl.decide(load).size
        taken.append(size)
    assert taken == [4, 3, 3, 3, 3, 3, 3, 3]


def test_spl_waits_while_a_move_is_under_way_and_remembers_nothing_of_it() -> None:
    spl = Spl()
    congested = replace(CALM, blocked=0.5, done_per_s=300.0)
    assert spl.decide(congested).size == 5
    for _ in range(3):
        starting = replace(congested, wanted=5, done_per_s=1.0)
        assert spl.decide(starting).size == 5
    arrived = replace(congested, size=5, done_per_s=400.0, blocked=0.0)
    assert spl.decide(arrived).size == 5


def test_spl_waits_for_the_end_of_a_batch_that_outlasts_the_control_step() -> None:
    """Three steps with 900 records at the end of the last are 300 a second in each."""
    spl = Spl()
    batch = replace(CALM, blocked=0.5, backlog=10.0, done_per_s=0.0)
    assert sizes(spl, [batch, batch]) == [4, 4]
    assert spl.decide(replace(batch, done_per_s=900.0)).reason == (
        "Blocked for 50% of the time at 300 /s, and one more is not known."
    )


# --- DS2 and Flink --------------------------------------------------------------------------------


def ds2_load(
    at_s: float, rate: float, size: int, backlog: float = 0.0, since_move: int = 1_000
) -> Load:
    """Units that each handle 100 records a second when busy."""
    done = min(rate, 100.0 * size)
    return replace(
        CALM,
        at_us=round(at_s * 1e6),
        rate_per_s=rate,
        done_per_s=done,
        size=size,
        busy=done / (100.0 * size),
        backlog=backlog,
        since_move=since_move,
    )


@pytest.mark.parametrize(
    ("rate", "size"), [(350, 5), (351, 6), (70, 1), (71, 2), (5_000, 10), (700, 10)]
)
def test_ds2_is_right_in_one_step_from_any_size(rate: float, size: int) -> None:
    """Sized by the true rate: 100 records a second and unit, 70 of which are to be used."""
    for present in (1, 3, 10):
        assert rivals()["DS2"]().decide(ds2_load(1, rate, present)).size == size


def test_ds2_does_nothing_where_no_record_was_handled() -> None:
    assert rivals()["DS2"]().decide(ds2_load(1, 0.0, 4)).size == 4


def test_flink_waits_for_its_window_and_acts_outside_its_boundaries_only() -> None:
    flink = Ds2(window_ms=3_000, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=0)
    over = [ds2_load(at, 450, 4) for at in range(1, 5)]
    assert sizes(flink, over) == [4, 4, 7, 7]
    inside = Ds2(window_ms=0, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=0)
    assert sizes(inside, [ds2_load(1, rate, 4) for rate in (399, 161)]) == [4, 4]
    assert sizes(inside, [ds2_load(1, rate, 4) for rate in (401, 159)]) == [6, 3]


def test_flink_means_the_rate_over_its_window() -> None:
    flink = Ds2(window_ms=2_000, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=0, boundary=0)
    assert sizes(flink, [ds2_load(1, 100, 4), ds2_load(2, 600, 4)]) == [4, 5]


def test_flink_rests_after_a_move_and_measures_anew() -> None:
    flink = Ds2(window_ms=1_000, stabilisation_ms=2_000, scale_down_ms=0, catch_up_ms=0)
    loads = [ds2_load(at, 900, 4, since_move=at) for at in range(4)]
    assert sizes(flink, loads) == [4, 4, 10, 10]


def test_flink_scales_down_by_the_largest_size_that_an_hour_called_for() -> None:
    flink = Ds2(window_ms=0, stabilisation_ms=0, scale_down_ms=3_000, catch_up_ms=0)
    rates = [210, 140, 280, 140, 140, 140, 140, 140]
    loads = [ds2_load(at, rate, 8) for at, rate in enumerate(rates)]
    assert sizes(flink, loads) == [8, 8, 8, 4, 4, 4, 4, 4]
    broken = [ds2_load(at, 560 if at == 2 else 140, 8) for at in range(6)]
    patient = Ds2(window_ms=0, stabilisation_ms=0, scale_down_ms=3_000, catch_up_ms=0)
    assert sizes(patient, broken) == [8, 8, 8, 8, 8, 8]


def test_flink_goes_down_by_at_most_sixty_percent_at_once() -> None:
    flink = Ds2(window_ms=0, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=0)
    assert flink.decide(ds2_load(1, 10, 10)).size == 4
    careful = Ds2(window_ms=0, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=0, max_up=0.5)
    assert careful.decide(ds2_load(1, 900, 2)).size == 3


def test_flink_adds_what_it_takes_to_catch_up_with_a_backlog_and_a_restart() -> None:
    """350/0.7 + 350*2/10 + 1,000/10 = 670 records a second, which takes 7 units."""
    flink = Ds2(
        window_ms=0, stabilisation_ms=0, scale_down_ms=0, catch_up_ms=10_000, restart_ms=2_000
    )
    assert flink.decide(ds2_load(1, 350, 3, backlog=1_000.0)).size == 7


def test_flink_as_published_does_not_move_within_its_first_quarter_of_an_hour() -> None:
    """In a hurry of 60 its 15 minutes are 15 seconds, for a load that is played as fast."""
    over = [ds2_load(at, 900, 4) for at in range(1, 901)]
    moved = sizes(rivals()["Flink"](), over)
    assert set(moved[:899]) == {4}
    assert moved[899] == 10
    hurried = sizes(rivals(60)["Flink"](), over[:15])
    assert set(hurried[:14]) == {4}
    assert hurried[14] == 10


# --- Spark ----------------------------------------------------------------------------------------


def test_dynamic_allocation_adds_one_two_four_eight_while_tasks_wait() -> None:
    spark, size, taken = DynamicAllocation(), 1, []
    for _ in range(6):
        blocked = replace(CALM, size=size, limits=Limits(1, 40), blocked=1.0)
        size = spark.decide(blocked).size
        taken.append(size)
    assert taken == [2, 4, 8, 16, 32, 40]


def test_dynamic_allocation_begins_with_one_again_when_no_task_waits_any_more() -> None:
    spark = DynamicAllocation()
    waiting = replace(CALM, limits=Limits(1, 40), blocked=1.0)
    assert sizes(spark, [waiting, waiting]) == [5, 6]
    assert sizes(spark, [replace(waiting, blocked=0.0), waiting]) == [4, 5]


def test_dynamic_allocation_counts_the_time_that_tasks_waited_and_not_the_steps() -> None:
    """A fifth of each second comes to a second with the fifth; five seconds at once to 5 rounds."""
    now_and_then = replace(CALM, blocked=0.2)
    assert sizes(DynamicAllocation(), [now_and_then] * 5) == [4, 4, 4, 4, 5]
    long = replace(CALM, limits=Limits(1, 99), blocked=1.0, step_ms=5_000.0)
    assert DynamicAllocation().decide(long).size == 4 + 1 + 2 + 4 + 8 + 16


def test_dynamic_allocation_asks_for_no_more_than_its_tasks_can_use() -> None:
    waiting = replace(CALM, size=1, blocked=1.0, step_ms=60_000.0)
    assert DynamicAllocation(tasks=9).decide(waiting).size == 5
    assert "all they can use" in DynamicAllocation(tasks=2).decide(waiting).reason


def test_dynamic_allocation_gives_nothing_back_while_records_flow() -> None:
    spark = DynamicAllocation()
    hardly = replace(CALM, size=8, busy=0.01)
    assert set(sizes(spark, [hardly] * 300)) == {8}
    resting = replace(CALM, size=8, busy=0.0, done_per_s=0.0, rate_per_s=0.0)
    assert sizes(spark, [resting] * 60) == [8] * 59 + [1]


# --- all of them ----------------------------------------------------------------------------------


def test_every_rival_is_built_in_and_each_maker_makes_a_fresh_one() -> None:
    """Promise 22 of De Matteis 2016: Th-Rule, Lat-Rule, SPL and peak; DS2, Flink, Spark beside."""
    made = rivals()
    assert set(made) == {"peak", "Th-Rule", "Lat-Rule", "SPL", "DS2", "Flink", "Spark"}
    assert all(fresh().name == name for name, fresh in made.items())
    assert made["SPL"]() is not made["SPL"]()


loads = st.builds(
    lambda size, rate, done, busy, latency, backlog, blocked, least, width, wanted, since: replace(
        CALM,
        size=size,
        limits=Limits(least, least + width),
        rate_per_s=rate,
        done_per_s=done,
        busy=busy,
        latency_ms=latency,
        backlog=backlog,
        blocked=blocked,
        wanted=wanted,
        since_move=since,
    ),
    st.integers(1, 30),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e7),
    st.floats(0, 1e9),
    st.floats(0, 1),
    st.integers(1, 5),
    st.integers(0, 20),
    st.none() | st.integers(1, 30),
    st.integers(0, 9),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(loads, min_size=1, max_size=12), st.sampled_from([*rivals(), "hurried"]))
def test_no_rival_ever_asks_for_a_size_outside_the_limits(seen: list[Load], name: str) -> None:
    """Promise 20 of De Matteis 2016, for the rivals too."""
    scaler = rivals(1e6)["Flink"]() if name == "hurried" else rivals()[name]()
    for number, load in enumerate(seen):
        move = scaler.decide(replace(load, at_us=number * 1_000_000))
        assert load.limits.least <= move.size <= load.limits.most
        assert move.reason.endswith(".")


@settings(max_examples=100, deadline=None)
@given(st.lists(loads, min_size=1, max_size=12), st.sampled_from([*rivals()]))
def test_no_rival_overtakes_its_own_move(seen: list[Load], name: str) -> None:
    scaler = rivals()[name]()
    for load in seen:
        limits = load.limits
        starting = replace(load, size=limits.least, wanted=limits.most)
        if starting.moving:
            assert scaler.decide(starting).size == limits.most


@settings(max_examples=50, deadline=None)
@given(st.lists(loads, min_size=1, max_size=10), st.sampled_from([*rivals()]))
def test_the_same_loads_give_the_same_moves(seen: list[Load], name: str) -> None:
    first, second = rivals()[name](), rivals()[name]()
    assert [first.decide(load) for load in seen] == [second.decide(load) for load in seen]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: ThresholdRule(upper=0.5, lower=0.6), r"down below 0\.6, up above 0\.5 .*: give"),
        (lambda: LatencyRule(step=0), "by 0 at a time: give"),
        (lambda: Spl(congestion=1.5), r"congestion=1\.5 .*: give two shares"),
        (lambda: Ds2(target=0.0), r"utilisation of 0\.0 .*: give a target above 0"),
        (lambda: Ds2(max_down=1.1), r"go down by 1\.1 at once: give"),
        (lambda: DynamicAllocation(backlog_ms=0), "timeout of .* must be above 0 ms"),
        (lambda: rivals(0), "cannot pass 0 times as fast: give"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()
