"""The way through the steps ahead against exhaustive search; the rates against the recursion."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.forecasting.smoothing import Method, Weights
from tailrace.policy.scaling.horizon import Outlook, best_trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    At = tuple[int, int]


def squared(a: At, b: At) -> int:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2


def exhaustive(
    costs: Floats, sizes: list[int], present: At, gamma: float
) -> tuple[float, list[At]]:
    """Every sequence, in the order of De Matteis 2016, section 6.3.2; the first of the cheapest."""
    everything = [(row, kind) for row in range(len(sizes)) for kind in range(costs.shape[2])]
    best: tuple[float, list[At]] = (math.inf, [])

    def descend(step: int, at: At, spent: float, way: list[At]) -> None:
        nonlocal best
        if step == len(costs):
            if spent < best[0]:
                best = (spent, way)
            return
        near = sorted(everything, key=lambda c: (squared((sizes[c[0]], c[1]), at), c))
        for row, kind in near:
            to = (sizes[row], kind)
            cost = float(costs[step, row, kind]) + gamma * squared(to, at)
            descend(step + 1, to, spent + cost, [*way, to])

    descend(0, present, 0.0, [])
    return best


@st.composite
def problems(draw: st.DrawFn, *, whole: bool) -> tuple[Floats, list[int], At, float]:
    """Small ones; with whole numbers sums are exact, so that ties are ties."""
    steps, sizes, kinds = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    if (sizes * kinds) ** steps > 3_000:
        steps = 2
    number = st.integers(0, 6).map(float) if whole else st.floats(0, 100)
    count = steps * sizes * kinds
    drawn = draw(st.lists(number, min_size=count, max_size=count))
    least = draw(st.integers(1, 3))
    present = draw(st.integers(1, 10)), draw(st.integers(0, kinds - 1))
    gamma = float(draw(st.integers(0, 3))) if whole else draw(st.floats(0, 5))
    costs = np.array(drawn).reshape(steps, sizes, kinds)
    return costs, [*range(least, least + sizes)], present, gamma


@settings(max_examples=200, deadline=None)
@given(problems(whole=True))
def test_promise_19_the_plan_is_that_of_exhaustive_search_ties_included(
    problem: tuple[Floats, list[int], At, float],
) -> None:
    """Promise 19 of De Matteis 2016: the same plan."""
    cost, way = exhaustive(*problem)
    found = best_trajectory(*problem)
    assert found.cost == cost
    assert [*zip(found.sizes, found.grades, strict=True)] == way


@settings(max_examples=100, deadline=None)
@given(problems(whole=False))
def test_no_sequence_is_cheaper_and_the_cost_is_that_of_the_sequence_found(
    problem: tuple[Floats, list[int], At, float],
) -> None:
    costs, sizes, present, gamma = problem
    found = best_trajectory(*problem)
    assert found.cost == pytest.approx(exhaustive(*problem)[0], rel=1e-9, abs=1e-9)
    at, spent = present, 0.0
    for step, to in enumerate(zip(found.sizes, found.grades, strict=True)):
        spent += costs[step, sizes.index(to[0]), to[1]] + gamma * squared(to, at)
        at = to
    assert spent == pytest.approx(found.cost, rel=1e-9, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(problems(whole=False), st.data())
def test_the_cost_of_each_first_move_is_that_of_the_best_that_follows_it(
    problem: tuple[Floats, list[int], At, float], data: st.DataObject
) -> None:
    costs, sizes, present, gamma = problem
    row = data.draw(st.integers(0, len(sizes) - 1))
    kind = data.draw(st.integers(0, costs.shape[2] - 1))
    forced = costs.copy()
    forced[0] = 1e9
    forced[0, row, kind] = costs[0, row, kind]
    least, _ = exhaustive(forced, sizes, present, gamma)
    assert best_trajectory(*problem).firsts[row, kind] == pytest.approx(least, rel=1e-9, abs=1e-9)


def flat(steps: int, sizes: int, kinds: int = 1) -> Floats:
    return np.ones((steps, sizes, kinds))


def test_of_equal_ways_the_one_that_stays_is_taken_then_the_nearest_then_the_smaller() -> None:
    assert best_trajectory(flat(3, 5), [1, 2, 3, 4, 5], (4, 0), 0.0).sizes == (4, 4, 4)
    costs = flat(1, 5)
    costs[0, 3, 0] = 9.0
    assert best_trajectory(costs, [1, 2, 3, 4, 5], (4, 0), 0.0).sizes == (3,)
    costs[0, 2, 0] = 9.0
    assert best_trajectory(costs, [1, 2, 3, 4, 5], (4, 0), 0.0).sizes == (5,)


def test_a_difference_of_rounding_is_no_reason_to_move() -> None:
    costs = np.array([[[0.1 + 0.2], [0.3]]])
    assert best_trajectory(costs, [1, 2], (1, 0), 0.0).sizes == (1,)


def test_a_dear_move_is_spread_over_the_steps() -> None:
    """With squared distances two moves of 2 cost half of one move of 4."""
    costs = np.zeros((2, 5, 1))
    costs[1] = 1e6
    costs[1, 4, 0] = 0.0
    assert best_trajectory(costs, [1, 2, 3, 4, 5], (1, 0), 1.0).sizes == (3, 5)


def test_a_present_size_outside_the_limits_is_left_for_the_nearest_within() -> None:
    found = best_trajectory(flat(2, 3), [2, 3, 4], (9, 0), 0.5)
    assert found.sizes == (4, 4)
    assert found.cost == pytest.approx(2 + 0.5 * 25)


class Counted(np.ndarray):
    """An array that counts the numbers which are worked out from it and from what comes of it."""

    work = 0

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **how: object
    ) -> object:
        plain = [one.view(np.ndarray) if isinstance(one, Counted) else one for one in inputs]
        found = getattr(ufunc, method)(*plain, **how)
        Counted.work += np.size(found)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


def test_promise_19_each_step_further_ahead_takes_the_same_work_again() -> None:
    """Promise 19 of De Matteis 2016: fewer states than a search of all sequences.

    With 12 sizes and 9 grades there are ``108**steps`` sequences, of which branch and bound visits
    72,055 states for 3 steps (table 7.1). Counted are all numbers that are made on the way, and not
    what is told: ``explored`` is the size of the problem.
    """
    work = []
    for steps in range(1, 8):
        costs = np.random.default_rng(3).uniform(1, 9, (steps, 12, 9))
        Counted.work = 0
        best_trajectory(costs.view(Counted), range(1, 13), (6, 4), 0.1)
        work.append(Counted.work)
    (further,) = set(np.diff(work))
    assert 108 < further < 108**2
    assert all(made < 108**steps for steps, made in enumerate(work[1:], 2))
    assert work[2] < 72_055


def forwards(costs: Floats, sizes: range, present: At, gamma: float) -> float:
    """The least cost of a sequence, step by step from the first, each after every one before it."""
    grades = range(costs.shape[2])
    everything = np.array([(size, grade) for size in sizes for grade in grades])
    apart = ((everything[:, None] - everything) ** 2).sum(axis=2)
    spent = gamma * ((everything - present) ** 2).sum(axis=1) + costs[0].ravel()
    for step in costs[1:]:
        spent = (spent[:, None] + gamma * apart).min(axis=0) + step.ravel()
    return float(spent.min())


def test_promise_19_a_plan_over_many_configurations_takes_a_fraction_of_a_control_step() -> None:
    """Promise 19 of De Matteis 2016: the decision takes less than a control step (1 s).

    It is the best of 576**12 sequences.
    """
    costs = np.random.default_rng(3).uniform(1, 9, (12, 64, 9))
    began = time.process_time()
    found = best_trajectory(costs, range(1, 65), (30, 4), 0.1)
    assert time.process_time() - began < 0.05
    assert found.cost == pytest.approx(forwards(costs, range(1, 65), (30, 4), 0.1))


def test_promise_19_a_plan_of_twelve_steps_over_64_sizes_takes_less_than_5_ms() -> None:
    """Promise 19 of De Matteis 2016, with one grade; the least of five runs, of processor time."""
    costs = np.random.default_rng(3).uniform(1, 9, (12, 64, 1))
    problem = costs, range(1, 65), (30, 0), 0.5
    found = best_trajectory(*problem)
    taken_s = []
    for _ in range(5):
        began = time.process_time()
        assert best_trajectory(*problem) == found
        taken_s.append(time.process_time() - began)
    assert min(taken_s) < 0.005
    assert found.cost == pytest.approx(forwards(*problem))


def test_costs_that_cannot_be_searched_are_refused() -> None:
    with pytest.raises(InputError, match="do not fit 3 sizes"):
        best_trajectory(flat(2, 4), [1, 2, 3], (1, 0), 0.0)
    with pytest.raises(InputError, match="at least one of each"):
        best_trajectory(flat(0, 3), [1, 2, 3], (1, 0), 0.0)
    with pytest.raises(InputError, match="finite costs"):
        best_trajectory(np.full((1, 2, 1), np.inf), [1, 2], (1, 0), 0.0)
    with pytest.raises(InputError, match="switching weight from 0 up"):
        best_trajectory(flat(1, 2), [1, 2], (1, 0), -1.0)


# --- the rates --------------------------------------------------------------------------------

QUOTES = Weights(0.67, 0.26, 0.0, 1.0)


def after(outlook: Outlook, rates: list[float], steps: int = 3) -> tuple[float, ...]:
    """What is expected once all rates were seen, one forecast a step as a scaler makes them."""
    expected: tuple[float, ...] = ()
    for rate in rates:
        outlook.add(rate)
        expected = outlook.ahead(steps, 0, 1_000.0).mean_per_s
    return expected


def published_holt(rates: list[float], a: float, g: float, steps: int) -> list[float]:
    """De Matteis 2016 with the released constants: double exponential smoothing as it stands."""
    level, trend = rates[0], rates[1] - rates[0]
    for rate in rates[1:]:
        before = level
        level = a * rate + (1 - a) * (level + trend)
        trend = g * (level - before) + (1 - g) * trend
    return [level + (i + 1) * trend for i in range(steps)]


def walk(steps: int, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return [abs(300 + float(gone)) for gone in np.cumsum(rng.normal(0, 16, steps))]


@pytest.mark.parametrize(("a", "g"), [(0.67, 0.26), (0.5, 0.1)])
def test_holt_with_given_weights_is_the_published_recursion(a: float, g: float) -> None:
    rates = walk(110)
    found = after(Outlook(weights=Weights(a, g, 0.0, 1.0)), rates)
    assert found == pytest.approx(published_holt(rates, a, g, 3), rel=1e-3)


def test_the_last_rate_stays_until_there_are_ten() -> None:
    ramp = [100.0 + 10 * step for step in range(10)]
    for outlook in (Outlook(), Outlook(weights=QUOTES)):
        assert after(outlook, ramp[:9]) == pytest.approx((180, 180, 180))
        assert after(outlook, ramp[9:]) == pytest.approx((200, 210, 220))


def test_a_first_jump_is_not_mistaken_for_a_trend() -> None:
    jump = [100.0, 200.0, 200.0]
    assert published_holt(jump[:2], 0.67, 0.26, 1) == pytest.approx([300])
    assert after(Outlook(weights=QUOTES), jump) == (200, 200, 200)


def test_a_falling_rate_is_never_expected_to_be_zero() -> None:
    expected = after(Outlook(weights=QUOTES), [100.0 - 10 * step for step in range(11)])
    assert all(0 < rate < 1 for rate in expected)


@pytest.mark.parametrize(
    ("method", "season"),
    [
        (Method.NAIVE, None),
        (Method.SMOOTHING, None),
        (Method.HOLT, None),
        (Method.DAMPED_HOLT, None),
        (Method.ADDITIVE, 12),
        (Method.MULTIPLICATIVE, 12),
    ],
)
def test_promise_16_each_method_looks_ahead_and_reports_its_error(
    method: Method, season: int | None
) -> None:
    """Promise 16 of De Matteis 2016; a smoothing of weight 0.5 is as old as its moving mean."""
    outlook = Outlook(method, season=season)
    assert outlook.error_share is None
    rates = [500 + 200 * math.sin(step * math.tau / 12) for step in range(60)]
    expected = after(outlook, rates)
    assert len(expected) == 3
    assert outlook.error_share is not None
    if season:
        come = [500 + 200 * math.sin(step * math.tau / 12) for step in range(60, 63)]
        assert expected == pytest.approx(come, rel=0.02)
        assert outlook.ahead(3, 0, 1_000.0).season == 12


def test_the_error_is_the_mean_over_steps_of_what_the_next_rate_was_missed_by() -> None:
    outlook = Outlook(Method.NAIVE)
    after(outlook, [100.0, 200.0, 160.0])
    assert outlook.error_share == pytest.approx((100 / 200 + 40 / 160) / 2)
    assert outlook.add(160.0) == 160.0


@pytest.mark.parametrize("method", [Method.NAIVE, Method.HOLT])
def test_a_step_of_which_more_is_known_is_not_counted_twice(method: Method) -> None:
    rates = [400.0 + 3 * (step % 5) + 4 * step for step in range(30)]
    once, twice = Outlook(method), Outlook(method)
    for rate in rates:
        once.add(rate)
        twice.add(0.9 * rate)
        assert twice.add(rate, steps=0) is None
    assert twice.ahead(3, 0, 1_000.0).mean_per_s == once.ahead(3, 0, 1_000.0).mean_per_s


def test_steps_of_which_nothing_is_known_leave_the_trend_as_it_is() -> None:
    outlook = Outlook(Method.HOLT)
    for step in range(30):
        outlook.add(100.0 + 10 * step)
        outlook.ahead(1, 0, 1_000.0)
    before = outlook.error_share
    assert outlook.add(100.0 + 10 * 34, steps=5) is None
    assert outlook.error_share == before
    assert outlook.ahead(2, 0, 1_000.0).mean_per_s == pytest.approx((450.0, 460.0), rel=0.02)
    outlook.add(500.0, steps=10_000)
    assert outlook.ahead(2, 0, 1_000.0).mean_per_s == (500.0, 500.0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("later", [1, 2, 4])
def test_a_jump_after_a_calm_is_believed_at_once_and_is_no_trend(later: int, seed: int) -> None:
    """Fitted weights alone said anything from no rise to as much again at every step."""
    rng = np.random.default_rng(seed)
    rates = [*(rng.poisson(500, 12) / 5), *(rng.poisson(1_000, later) / 5)]
    assert after(Outlook(), rates) == pytest.approx((200, 200, 200), rel=0.15)


def test_a_jump_after_a_calm_is_believed_one_step_later() -> None:
    calm = [1_000.0 + 5 * (-1) ** step for step in range(40)]
    expected = after(Outlook(), [*calm, 3_000.0, 3_000.0, 3_000.0])
    assert expected[0] == pytest.approx(3_000, rel=0.15)


def test_a_jump_that_goes_on_is_a_trend() -> None:
    calm = [1_000.0 + 5 * (-1) ** step for step in range(40)]
    assert after(Outlook(), [*calm, 2_000.0, 3_000.0, 4_000.0, 5_000.0])[0] > 5_400


def test_on_a_ramp_holt_is_nearer_than_the_last_rate() -> None:
    ramp = [100.0 + 7 * step for step in range(60)]
    errors = {}
    for method in (Method.NAIVE, Method.HOLT):
        outlook = Outlook(method)
        after(outlook, ramp)
        errors[method] = outlook.error_share or 0.0
    assert errors[Method.HOLT] < 0.5 * errors[Method.NAIVE]


def test_bands_hold_about_as_many_rates_as_they_say() -> None:
    rates, outlook = walk(250, seed=5), Outlook()
    inside, bands = [], None
    for rate in rates:
        if bands is not None:
            inside.append(bands[0] <= rate <= bands[1])
        outlook.add(rate)
        bands = outlook.ahead(3, 0, 1_000.0).band(0.8)[0]
    assert 0.7 <= sum(inside[20:]) / len(inside[20:]) <= 0.9


def test_the_forecast_begins_when_it_is_told_and_widens_with_the_horizon() -> None:
    outlook = Outlook()
    after(outlook, walk(40))
    ahead = outlook.ahead(4, 7_000_000, 2_000.0)
    assert (ahead.start_us, ahead.at_us(1)) == (7_000_000, 9_000_000)
    widths = [high - low for low, high in ahead.band(0.8)]
    assert widths == sorted(widths)


def test_a_season_as_a_factor_gives_way_where_the_rate_falls_to_zero() -> None:
    outlook = Outlook(Method.MULTIPLICATIVE, season=3)
    assert after(outlook, [5.0, 0.0, 3.0] * 5) == (3.0, 3.0, 3.0)


def test_an_outlook_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="need a season"):
        Outlook(Method.ADDITIVE)
    with pytest.raises(InputError, match="have no season"):
        Outlook(Method.HOLT, season=12)
    with pytest.raises(InputError, match="give 2 to 60"):
        Outlook(Method.ADDITIVE, season=5_000)
    with pytest.raises(InputError, match="A rate of nan"):
        Outlook().add(math.nan)
