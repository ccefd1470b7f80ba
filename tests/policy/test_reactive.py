from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.policy.scaling.reactive import Reactive
from tailrace.policy.scaling.sizing import Limits, Load, Move, Scaler

# --- a load and its model ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches back to back: ``1.5*a/(1 - c*rate/size)``, with c for a single unit."""

    fixed_ms: float = 100.0
    per_record_ms: float = 2.0

    def utilisation(self, size: int, rate_per_s: float) -> float:
        return self.per_record_ms * rate_per_s / 1_000.0 / size

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        rho = self.utilisation(size, rate_per_s)
        return 1.5 * self.fixed_ms / (1 - rho) if rho < 1 else math.inf


@dataclass(frozen=True, slots=True)
class Crowded(Batches):
    """Each further unit costs every batch something, so that too many are worse than enough."""

    per_unit_ms: float = 10.0

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        rho = self.utilisation(size, rate_per_s)
        return (1.5 * self.fixed_ms + self.per_unit_ms * size) / (1 - rho) if rho < 1 else math.inf


MODEL = Batches()
STEP_MS = 5_000.0


def seen(
    size: int,
    rate_per_s: float,
    *,
    bound_ms: float = 400.0,
    limits: tuple[int, int] = (1, 40),
    model: Batches = MODEL,
    backlog: float = 0.0,
    done_per_s: float | None = None,
    busy: float | None = None,
    latency_ms: float | None = None,
    wanted: int | None = None,
    since_move: int = 99,
) -> Load:
    predicted_ms = model.latency_ms(size, rate_per_s)
    return Load(
        at_us=0,
        step_ms=STEP_MS,
        size=size,
        limits=Limits(*limits),
        bound_ms=bound_ms,
        rate_per_s=rate_per_s,
        done_per_s=rate_per_s if done_per_s is None else done_per_s,
        service_ms=model.per_record_ms,
        busy=min(1.0, model.utilisation(size, rate_per_s)) if busy is None else busy,
        latency_ms=min(predicted_ms, 9e9) if latency_ms is None else latency_ms,
        backlog=backlog,
        model=model,
        wanted=wanted,
        since_move=since_move,
    )


def least_by_force(load: Load, margin: float, rate_per_s: float | None = None) -> int | None:
    """Every size in turn, the bound and the 90 % held against each."""
    rate = load.rate_per_s if rate_per_s is None else rate_per_s
    for size in range(load.limits.least, load.limits.most + 1):
        kept = load.model.latency_ms(size, rate) <= (1 - margin) * load.bound_ms
        if kept and load.model.utilisation(size, rate) <= 0.9:
            return size
    return None


LOADS = st.builds(
    lambda size, rate, bound, least, more, backlog, since: seen(
        size,
        rate,
        bound_ms=bound,
        limits=(least, least + more),
        backlog=backlog,
        since_move=since,
    ),
    st.integers(1, 60),
    st.floats(0, 20_000),
    st.floats(100, 3_000),
    st.integers(1, 20),
    st.integers(0, 40),
    st.floats(0, 1e6),
    st.integers(0, 9),
)


# --- the least size ---------------------------------------------------------------------------


def test_it_is_a_scaler_by_the_name_of_reactive() -> None:
    scaler: Scaler = Reactive()
    assert scaler.name == "reactive"


@pytest.mark.parametrize(
    ("rate_per_s", "size"),
    # c*rate/(1 - 150/368) units keep 400 ms less 8 %, rounded up: 3.38, 6.76, 33.8.
    [(1_000, 4), (2_000, 7), (10_000, 34)],
)
def test_the_size_is_that_of_the_closed_form(rate_per_s: float, size: int) -> None:
    assert size == math.ceil(2 * rate_per_s / 1_000 / (1 - 150 / 368))
    # From below, and not from so far below that it is a bottleneck.
    assert Reactive().decide(seen(size - 1, rate_per_s)).size == size
    assert Reactive().decide(seen(size, rate_per_s)).size == size


@settings(max_examples=200, deadline=None)
@given(LOADS, st.floats(0, 0.949), st.floats(0, 0.5))
def test_a_rise_without_a_bottleneck_is_to_the_least_size_that_brute_force_finds(
    load: Load, rho: float, margin: float
) -> None:
    """Promise 12 of Lohrmann 2016, for a single size."""
    size = load.limits.within(load.size)
    rate_per_s = rho * size * 500
    load = replace(load, size=size, rate_per_s=rate_per_s, done_per_s=rate_per_s, busy=rho)
    least = least_by_force(load, margin) or load.limits.most
    chosen = Reactive(margin=margin).decide(load).size
    if least > load.size:
        assert chosen == least
    else:
        assert least <= chosen <= load.size


@settings(max_examples=200, deadline=None)
@given(LOADS, st.floats(0, 0.949), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_fall_is_to_the_least_size_that_would_bear_a_higher_rate(
    load: Load, rho: float, margin: float, ease: float
) -> None:
    size = load.limits.most
    rate_per_s = rho * size * 500
    load = replace(load, size=size, rate_per_s=rate_per_s, done_per_s=rate_per_s, busy=rho)
    load = replace(load, backlog=0.0, latency_ms=1.0)
    higher = load.rate_per_s * (1 + ease)
    least = least_by_force(load, margin, higher) or load.limits.most
    assert Reactive(margin=margin, ease=ease).decide(load).size == least


@settings(max_examples=200, deadline=None)
@given(LOADS, st.booleans())
def test_no_size_is_ever_outside_the_limits(load: Load, moving: bool) -> None:
    scaler = Reactive()
    load = replace(load, wanted=load.size + 1) if moving else load
    for _ in range(3):
        move = scaler.decide(load)
        assert load.limits.least <= move.size <= load.limits.most
        for other in move.alternatives:
            assert load.limits.least <= int(other.what.split()[0]) <= load.limits.most
        load = replace(load, size=move.size, wanted=None, rate_per_s=load.rate_per_s * 1.5)


@settings(max_examples=200, deadline=None)
@given(LOADS, st.floats(0, 20_000))
def test_a_higher_rate_never_gets_a_smaller_size(load: Load, more_per_s: float) -> None:
    load = replace(load, backlog=0.0, latency_ms=None)
    higher = replace(load, rate_per_s=load.rate_per_s + more_per_s)
    assert Reactive().decide(load).size <= Reactive().decide(higher).size


@settings(max_examples=200, deadline=None)
@given(LOADS, st.floats(1, 3))
def test_a_looser_bound_never_gets_a_larger_size(load: Load, looser: float) -> None:
    """Promise 19 of Lohrmann 2016, for one decision."""
    loose = replace(load, bound_ms=load.bound_ms * looser)
    assert Reactive().decide(loose).size <= Reactive().decide(load).size


@settings(max_examples=300, deadline=None)
@given(LOADS)
def test_no_size_is_chosen_at_which_units_would_be_too_busy_unless_it_is_the_most(
    load: Load,
) -> None:
    """Promise 14 of Lohrmann 2016: at most 90 % busy by prediction, unless the limits force it."""
    size = Reactive().decide(load).size
    assert load.model.utilisation(size, load.rate_per_s) <= 0.9 or size == load.limits.most


def test_a_model_in_which_too_many_units_are_worse_still_gets_the_least_that_do() -> None:
    crowded = seen(85, 1_000, bound_ms=1_000, limits=(1, 90), model=Crowded(), latency_ms=500)
    assert least_by_force(replace(crowded, limits=Limits(80, 90)), 0.08) is None
    least = least_by_force(crowded, 0.08)
    assert least is not None
    assert Reactive(ease=0.0).decide(crowded).size == least


# --- bottlenecks ------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 30), st.floats(0.95, 4), st.integers(30, 200), st.floats(200, 2_000))
def test_a_bottleneck_at_least_doubles_unless_the_limits_end_first(
    size: int, rho: float, most: int, bound_ms: float
) -> None:
    """Promise 15 of Lohrmann 2016: twice the tasks or more, and half busy at most."""
    rate_per_s = size * 500 * rho
    load = seen(size, rate_per_s, bound_ms=bound_ms, limits=(1, most))
    assume(load.model.utilisation(size, rate_per_s) >= 0.95)
    chosen = Reactive().decide(load).size
    assert chosen >= min(most, 2 * size * max(1.0, load.model.utilisation(size, rate_per_s)))
    assert chosen == most or load.model.utilisation(chosen, rate_per_s) <= 0.5 + 1e-9


def test_doubling_is_for_bottlenecks_only() -> None:
    assert Reactive().decide(seen(10, 4_700, bound_ms=2_000)).size == 11  # 94 % busy
    assert Reactive().decide(seen(10, 4_750, bound_ms=2_000)).size == 20  # 95 % busy


def test_measured_units_that_are_busy_while_the_backlog_grows_are_a_bottleneck_too() -> None:
    """The model may be wrong: here it says 40 % busy."""
    busy: dict[str, Any] = {"busy": 0.97, "done_per_s": 1_900.0, "latency_ms": 300.0}
    scaler = Reactive()
    assert scaler.decide(seen(10, 2_000, backlog=500, **busy)).size == 20
    scaler = Reactive()
    assert scaler.decide(seen(10, 2_000, backlog=0, **busy)).size < 20
    assert scaler.decide(seen(10, 2_000, backlog=500, **busy)).size == 20
    shrinking = Reactive()
    shrinking.decide(seen(10, 2_000, backlog=900, busy=0.5))
    assert shrinking.decide(seen(10, 2_000, backlog=500, **busy)).size < 20
    idle = busy | {"busy": 0.9}
    assert Reactive().decide(seen(10, 2_000, backlog=500, **idle)).size < 20


def test_a_bottleneck_at_the_limit_gives_nothing_back() -> None:
    load = seen(10, 2_000, backlog=500, busy=0.97, done_per_s=1_900, limits=(1, 10))
    assert least_by_force(load, 0.08) == 7
    assert Reactive().decide(load).size == 10


def test_a_bottleneck_gets_more_than_double_only_to_drain_its_backlog_in_three_steps() -> None:
    # 5,000 records a second are 10 units of work; 75,000 that wait are 5,000 a second for 15 s.
    drained = Reactive().decide(seen(9, 5_000, backlog=75_000, bound_ms=2_000)).size
    assert drained == 2 * 10 == math.ceil(2 * 9 * (10 / 9))
    assert Reactive().decide(seen(9, 5_000, backlog=150_000, bound_ms=2_000)).size == 30
    assert Reactive(drain_steps=6).decide(seen(9, 5_000, backlog=150_000)).size == 20
    assert Reactive().decide(seen(9, 5_000, backlog=9e9, bound_ms=2_000)).size == 40


def test_a_bottleneck_with_a_tight_bound_gets_what_keeps_it() -> None:
    # 160 ms less 8 % need 1 - rho >= 150/147.2: no size; 170 ms need rho <= 4.1 %: 489 units.
    load = seen(10, 10_000, bound_ms=170, limits=(1, 600))
    assert Reactive().decide(load).size == math.ceil(20 / (1 - 150 / (0.92 * 170)))


# --- the pause after a rise -------------------------------------------------------------------


def risen(rate_per_s: float = 2_000) -> tuple[Reactive, int]:
    """A scaler that has just asked for more, and for how much."""
    scaler = Reactive()
    size = scaler.decide(seen(6, rate_per_s)).size
    assert size == 7
    return scaler, size


def test_after_a_rise_nothing_is_decided_until_it_has_been_complete_for_three_steps() -> None:
    """Promise 16 of Lohrmann 2016: no new decision for 3 intervals, upwards or downwards."""
    for rate_per_s in (2_150, 500):
        scaler, size = risen()
        under_way = seen(6, rate_per_s, wanted=size, since_move=50)
        assert scaler.decide(under_way).size == size
        for since in range(3):
            assert scaler.decide(seen(size, rate_per_s, since_move=since)).size == size
        assert scaler.decide(seen(size, rate_per_s, since_move=3)).size != size


def test_the_length_of_the_pause_can_be_chosen() -> None:
    for pause in (0, 1, 5):
        scaler = Reactive(pause=pause)
        size = scaler.decide(seen(6, 2_000)).size
        for since in range(pause):
            assert scaler.decide(seen(size, 500, since_move=since)).size == size
        assert scaler.decide(seen(size, 500, since_move=pause)).size < size


def test_after_a_fall_decisions_go_on() -> None:
    """Promise 16 of Lohrmann 2016: a scale-down is followed by no pause."""
    scaler = Reactive()
    first = scaler.decide(seen(20, 2_000)).size
    second = scaler.decide(seen(first, 1_000, since_move=0)).size
    assert 20 > first > second
    assert scaler.decide(seen(second, 2_000, since_move=0)).size > second


def test_a_fall_ends_what_was_left_of_the_rise_before_it() -> None:
    scaler, size = risen()
    first = scaler.decide(seen(size, 1_000, since_move=3)).size
    assert scaler.decide(seen(first, 300, since_move=0)).size < first < size


@pytest.mark.parametrize(
    ("rate_per_s", "latency_ms", "leaves"),
    [
        (2_400, 500.0, True),
        (2_400, 390.0, False),  # the bound is kept still
        (2_190, 500.0, False),  # the rate is less than a tenth above 2 k/s
    ],
)
def test_the_pause_ends_early_only_for_a_missed_bound_at_a_clearly_higher_rate_that_needs_more(
    rate_per_s: float, latency_ms: float, leaves: bool
) -> None:
    scaler, size = risen()
    move = scaler.decide(seen(size, rate_per_s, latency_ms=latency_ms, since_move=0))
    assert (move.size > size) == leaves
    assert move.size >= size


def test_in_the_pause_a_missed_bound_at_a_higher_rate_changes_nothing_if_no_more_is_needed() -> (
    None
):
    scaler = Reactive()
    assert scaler.decide(seen(4, 2_000)).size == 8
    calm = seen(8, 2_300, latency_ms=500, since_move=0)
    assert least_by_force(calm, 0.08) == 8
    assert scaler.decide(calm).size == 8


def test_the_way_out_of_the_pause_is_open_while_the_rise_is_under_way() -> None:
    scaler, size = risen()
    again = scaler.decide(seen(6, 2_600, wanted=size, latency_ms=900))
    assert again.size > size
    # It was made for 2.6 k/s now, so the same rate is no reason to leave the pause again.
    assert scaler.decide(seen(6, 2_600, wanted=again.size, latency_ms=900)).size == again.size


# --- down, with hysteresis --------------------------------------------------------------------


@pytest.mark.parametrize(
    "obstacle",
    [{"wanted": 21}, {"wanted": 19}, {"backlog": 10_001.0}, {"latency_ms": 401.0}],
)
def test_nothing_is_given_back_while_something_is_amiss(obstacle: dict[str, Any]) -> None:
    calm = seen(20, 2_000)
    assert Reactive().decide(calm).size < 20
    amiss = replace(calm, **obstacle)
    assert Reactive().decide(amiss).size == (amiss.wanted or 20)


def test_a_backlog_of_one_step_of_arrivals_is_no_obstacle() -> None:
    assert Reactive().decide(seen(20, 2_000, backlog=10_000.0)).size < 20


def test_a_rise_does_not_wait_for_a_fall_to_be_complete() -> None:
    scaler = Reactive()
    down = scaler.decide(seen(20, 2_000)).size
    assert scaler.decide(seen(20, 7_000, wanted=down, latency_ms=300)).size > 20


@settings(max_examples=100, deadline=None)
@given(st.floats(50, 9_000), st.integers(1, 40), st.lists(st.floats(0.957, 1.043), max_size=30))
def test_a_rate_that_sways_within_the_ease_never_brings_back_what_was_given_up(
    rate_per_s: float, size: int, sways: list[float]
) -> None:
    """Rates up to 9 % apart, after a first decision at the highest of them."""
    scaler = Reactive()
    sizes = [scaler.decide(seen(size, rate_per_s * 1.043)).size]
    for sway in sways:
        sizes.append(scaler.decide(seen(sizes[-1], rate_per_s * sway)).size)
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=100, deadline=None)
@given(LOADS)
def test_on_a_constant_load_the_second_decision_changes_nothing_more_than_a_fall(
    load: Load,
) -> None:
    """After one rise and the fall that corrects a doubling, the size stands."""
    load = replace(load, backlog=0.0, since_move=99)
    scaler, sizes = Reactive(), []
    for _ in range(4):
        measured_ms = load.model.latency_ms(load.size, load.rate_per_s)
        size = scaler.decide(replace(load, latency_ms=min(measured_ms, 9e9))).size
        sizes.append(size)
        load = replace(load, size=size)
    assert len(set(sizes[1:])) == 1


def staircase(bound_ms: float) -> tuple[int, float]:
    """Unit steps, and the share of steps within the bound, over the staircase of PrimeTest.

    Lohrmann 2016, section 5.1.2: up in eight steps and down again, 12 control steps on each. A rise
    is complete after one control step, a fall at once. What is not done waits.
    """
    scaler, size, wanted, backlog, since, units, kept = Reactive(), 4, 4, 0.0, 99, 0, 0
    rates = [1_000.0 * level for level in (*range(1, 9), *range(7, 0, -1)) for _ in range(12)]
    for rate_per_s in rates:
        coming = (rate_per_s * STEP_MS) / 1_000
        done = min(backlog + coming, size * 500 * STEP_MS / 1_000)
        backlog += coming - done
        latency_ms = min(MODEL.latency_ms(size, rate_per_s), 9e9) + backlog / rate_per_s * 1_000
        units, kept = units + size, kept + (latency_ms <= bound_ms)
        move = scaler.decide(
            seen(
                size,
                rate_per_s,
                bound_ms=bound_ms,
                limits=(1, 64),
                backlog=backlog,
                done_per_s=done / STEP_MS * 1_000,
                latency_ms=latency_ms,
                wanted=wanted,
                since_move=since,
            )
        )
        since = 0 if wanted != size or move.size < size else since + 1
        size, wanted = (min(move.size, wanted), move.size) if move.size > size else (move.size,) * 2
    return units, kept / len(rates)


def test_a_looser_bound_takes_no_more_unit_hours_over_a_staircase() -> None:
    """Promises 17 and 19 of Lohrmann 2016: the shape of table 5.1, with 90 % of steps kept."""
    bounds_ms = (200, 300, 400, 500, 1_000)
    runs = [staircase(bound_ms) for bound_ms in bounds_ms]
    units = [run[0] for run in runs]
    assert units == sorted(units, reverse=True)
    assert units[0] > units[-1]
    for _, kept in runs:
        assert kept >= 0.9


# --- what cannot be kept, and what is said ----------------------------------------------------


def test_a_bound_beyond_the_limits_gets_the_most_and_the_size_that_would_do() -> None:
    """Promise 13 of Lohrmann 2016: the most, and an alert."""
    load = seen(8, 4_000, limits=(1, 10), latency_ms=900)
    move = Reactive().decide(load)
    assert move.size == 10
    would = least_by_force(replace(load, limits=Limits(11, 4_096)), 0.08)
    assert would == 14
    assert "No more than 10 are allowed" in move.reason
    assert "14 would take 350 ms at 57% busy, the fewest that keep it" in move.reason


@settings(max_examples=150, deadline=None)
@given(st.floats(1, 400_000), st.floats(140, 1_000), st.integers(1, 100))
def test_the_size_that_would_do_is_the_least_above_the_limits(
    rate_per_s: float, bound_ms: float, most: int
) -> None:
    load = seen(most, rate_per_s, bound_ms=bound_ms, limits=(1, most))
    assume(least_by_force(load, 0.08) is None)
    move = Reactive().decide(load)
    would = least_by_force(replace(load, limits=Limits(most, 4_096)), 0.08)
    assert move.size == most
    assert ("no number of units does" in move.reason) == (would is None)
    if would is not None:
        assert f": {would} would take" in move.reason


class Narrow:
    """Units that help up to a number, beyond which each costs more than it brings."""

    def latency_ms(self, size: int, _: float) -> float:
        return 100.0 if 9 <= size <= 11 else 1e6

    def utilisation(self, _: int, __: float) -> float:
        return 0.5


def test_units_that_only_help_up_to_a_number_are_found_too() -> None:
    load = replace(seen(8, 4_000, limits=(1, 8)), model=Narrow())
    assert ": 9 would take 100 ms" in Reactive().decide(load).reason


def test_a_bound_below_the_fixed_cost_is_kept_by_no_number_and_that_is_said() -> None:
    move = Reactive().decide(seen(8, 4_000, bound_ms=140, limits=(1, 10)))
    assert move.size == 10
    assert "no number of units does, 4096 still take 150 ms" in move.reason


def test_the_reason_of_a_rise_compares_the_sizes_in_plain_words() -> None:
    move = Reactive().decide(seen(6, 2_000))
    assert move.reason == (
        "At 2 k/s 6 units take 450 ms at 67% busy; 7 take 350 ms at 57% busy, the fewest that keep "
        "368 ms (400 ms less 8%) at up to 90% busy."
    )
    assert move.predicted_ms == pytest.approx(350)
    smaller, larger = move.alternatives
    assert (smaller.what, larger.what) == ("6 units", "8 units")
    assert smaller.predicted_ms == pytest.approx(450)
    assert larger.predicted_ms == pytest.approx(300)
    assert smaller.why_not == "more than 368 ms (400 ms less 8%) at up to 90% busy."
    assert larger.why_not == "7 keep 368 ms (400 ms less 8%) at up to 90% busy already."


def test_the_reason_of_a_bottleneck_says_that_it_is_one() -> None:
    move = Reactive().decide(seen(4, 2_000))
    assert move.size == 8
    assert move.reason == (
        "At 2 k/s 4 units take inf at 100% busy; 8 take 300 ms at 50% busy, as a bottleneck at "
        "least doubles and drains in 3 steps."
    )
    assert move.alternatives[0].why_not == "a bottleneck at least doubles and drains in 3 steps."


def test_the_reason_of_a_fall_names_the_rate_that_it_would_bear() -> None:
    move = Reactive().decide(seen(20, 2_000))
    assert move.size == 8
    assert move.reason.endswith(
        "8 take 300 ms at 50% busy and keep 368 ms (400 ms less 8%) at up to 90% busy even at "
        "2.2 k/s."
    )
    assert move.alternatives[0].why_not.endswith("busy at 2.2 k/s.")


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (Reactive().decide(seen(8, 2_000)), "7 would take 350 ms at 57% busy: it would not keep"),
        (Reactive().decide(seen(7, 2_000)), "6 would take 450 ms at 67% busy: more than 368 ms"),
        (Reactive().decide(seen(20, 2_000, wanted=20, backlog=12_345)), "12,345 records wait"),
        (Reactive().decide(seen(20, 2_000, wanted=19)), "a move is under way"),
        (Reactive().decide(seen(20, 2_000, latency_ms=500)), "the bound is being missed"),
        (Reactive().decide(seen(1, 10)), "there may not be fewer"),
    ],
)
def test_staying_has_a_reason_as_well(move: Move, said: str) -> None:
    assert said in move.reason
    assert move.reason.startswith("At ")


def test_the_reason_of_a_pause_says_what_it_would_have_taken_and_how_long_it_lasts() -> None:
    scaler, size = risen()
    move = scaler.decide(seen(size, 2_150, since_move=1))
    assert "8 would take 324 ms at 54% busy" in move.reason
    assert "the last rise has been complete for 1 of 3 steps" in move.reason
    moving = scaler.decide(seen(6, 2_150, wanted=size))
    assert "the last rise is still under way" in moving.reason


@pytest.mark.parametrize(
    "wrong", [{"margin": 1.0}, {"margin": -0.1}, {"ease": -1}, {"pause": -1}, {"drain_steps": 0}]
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"give|counted"):
        Reactive(**wrong)
