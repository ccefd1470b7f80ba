"""The published laws of model-predictive scaling, on random walks, beside its rivals.

The load has the statistics of De Matteis 2016's random walk (section 7.2, A3): 180 seconds from 300
thousand quotes a second, steps with a standard deviation of 16.5 thousand and no larger than 45,
between 135 and 458 thousand. Every 25th quote triggers the operator, on at most 12 workers, with a
bound of 1.5 ms. Its service time is not published; here it is such that 6.5 to 7 workers are used.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.rivals import rivals
from bench.simulation.elastic import ElasticPlant
from bench.simulation.rehearsal import compare
from tailrace.model.forecasting.forecast import Forecast
from tailrace.policy.scaling.calibration import CostWeights, Goal, Strategy
from tailrace.policy.scaling.horizon import Outlook
from tailrace.policy.scaling.predictive import Predictive
from tailrace.policy.scaling.sizing import Limits
from tailrace.report.saso import Saso, saso

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tailrace.policy.scaling.sizing import Scaler

WALKS = 20
LIMITS = Limits(1, 12)
LOW, HIGH = 135e3, 458e3


@cache
def walk(seed: int) -> NDArray[np.float64]:
    """Triggers a second, for each of 180 seconds; reflected where it would leave its band."""
    moves = np.random.default_rng(seed).normal(0.0, 16.5e3, 179).clip(-45e3, 45e3)
    offset = np.mod(np.cumsum([300e3 - LOW, *moves]), 2 * (HIGH - LOW))
    rates: NDArray[np.float64] = (LOW + np.minimum(offset, 2 * (HIGH - LOW) - offset)) / 25
    return rates


class Holt(Outlook):
    """Holt's method with the weights (1, 0.015) of the random walk, and nothing else: fast."""

    def __init__(self) -> None:
        super().__init__()
        self.level: float | None = None
        self.trend: float | None = None

    def add(self, rate_per_s: float, steps: int = 1) -> float | None:
        assert steps == 1
        expected = None
        if self.level is not None:
            expected = self.level + (self.trend or 0.0)
            moved = rate_per_s - self.level
            self.trend = moved if self.trend is None else self.trend + 0.015 * (moved - self.trend)
        self.level = rate_per_s
        return expected

    def ahead(self, steps: int, start_us: int, step_ms: float) -> Forecast:
        level, trend = self.level or 0.0, self.trend or 0.0
        rates = tuple(max(1.0, level + step * trend) for step in range(1, steps + 1))
        return Forecast(start_us, step_ms, rates, (0.0,) * steps)


def predictive(horizon: int, weights: CostWeights, goal: Goal = Goal.LATENCY) -> Predictive:
    strategy = Strategy(goal=goal, weights=weights, horizon=horizon, delay_steps=0)
    return Predictive(strategy, Holt())


LATENCY = CostWeights(alpha=2.0, beta=0.5, gamma=0.4)
THROUGHPUT = CostWeights(alpha=1.0, beta=0.5, gamma=0.4)

OURS: dict[str, Callable[[], Scaler]] = {
    "NoSw": partial(predictive, 1, CostWeights(2.0, 0.5, 0.0)),
    "h=1": partial(predictive, 1, LATENCY),
    "h=2": partial(predictive, 2, LATENCY),
    "h=3": partial(predictive, 3, LATENCY),
}
RULES = {name: rivals()[name] for name in ("Th-Rule", "Lat-Rule", "SPL", "peak")}


def figures(
    named: dict[str, Callable[[], Scaler]],
    step_ms: float = 1_000.0,
    noise: float = 0.05,
    goal: Goal = Goal.LATENCY,
) -> dict[str, Saso]:
    """The figures of each over all walks, which start with 8 workers: two steps go unasked."""
    plant = ElasticPlant(service_ms=0.415, start_ms=0.0, noise=noise)
    found: dict[str, list[Saso]] = {name: [] for name in named}
    for seed in range(WALKS):
        runs = compare(
            named,
            plant,
            walk(seed),
            LIMITS,
            bound_ms=1.5,
            step_ms=step_ms,
            seed=seed,
            size=8,
            goal=goal,
        )
        for name, run in runs.items():
            found[name].append(saso(run.steps))
    return {name: total(each) for name, each in found.items()}


def total(runs: list[Saso]) -> Saso:
    """All walks as if they were one."""
    return Saso(
        steps=sum(run.steps for run in runs),
        reconfigurations=sum(run.reconfigurations for run in runs),
        violations=sum(run.violations for run in runs),
        settling_s=float(np.mean([run.settling_s for run in runs])),
        amplitude=float(np.mean([run.amplitude for run in runs])),
        overshoot_mean=None,
        overshoot_max=None,
        mean_size=float(np.mean([run.mean_size for run in runs])),
        core_seconds=sum(run.core_seconds for run in runs),
    )


@pytest.fixture(scope="module")
def every_second() -> dict[str, Saso]:
    return figures(OURS | RULES)


def test_the_walks_have_the_published_statistics() -> None:
    quotes = np.array([walk(seed) for seed in range(200)]) * 25
    assert quotes.shape == (200, 180)
    assert quotes.min() >= LOW
    assert quotes.max() <= HIGH
    assert quotes.mean() == pytest.approx(297e3, rel=0.03)
    assert np.diff(quotes).std() == pytest.approx(16.5e3, rel=0.05)
    assert np.abs(np.diff(quotes)).max() == pytest.approx(44.7e3, rel=0.01)


def test_a_longer_horizon_moves_more_often_and_without_a_switching_cost_it_moves_most(
    every_second: dict[str, Saso],
) -> None:
    """Promise 21 of De Matteis 2016: reconf(NoSw) > reconf(h=3) >= reconf(h=2) > reconf(h=1)."""
    moves = {name: every_second[name].reconfigurations for name in OURS}
    assert moves["NoSw"] > 1.2 * moves["h=3"]
    assert moves["h=3"] >= moves["h=2"] > 1.2 * moves["h=1"]


def test_a_switching_cost_buys_accuracy_with_cores(every_second: dict[str, Saso]) -> None:
    """Promise 21: violations(h=1) <= violations(NoSw) and cores(h=1) >= cores(NoSw)."""
    still, restless = every_second["h=1"], every_second["NoSw"]
    assert still.violations <= restless.violations
    assert restless.violations > 0, "or nothing is compared"
    assert still.core_seconds >= restless.core_seconds
    sizes = [every_second[name].mean_size for name in ("h=1", "h=2", "h=3", "NoSw")]
    assert sizes == sorted(sizes, reverse=True)


def test_a_switching_cost_makes_moves_rare_and_small(every_second: dict[str, Saso]) -> None:
    """De Matteis 2016, results 1 and 4: better stability, worse settling, which is amplitude there.

    Nearly every move on a walk is by one unit: the amplitude is 1.04 without a switching cost, and
    1.000, 1.000 and 1.003 with it, too close to tell horizons apart. ``settling_s`` says nothing on
    a walk: it ends with the last move before the next change, so whoever moves seldom is soon done.
    """
    restless = every_second["NoSw"]
    for name in ("h=1", "h=2", "h=3"):
        assert every_second[name].reconfigurations < restless.reconfigurations
        assert every_second[name].amplitude - 1 < (restless.amplitude - 1) / 5


def test_after_a_sudden_fall_a_switching_cost_makes_it_settle_later() -> None:
    """De Matteis 2016, result 4: the load falls once, from the top of its band to the bottom.

    Counted are the steps until the size is within one unit of where it then stays: 1 in every run
    without a switching cost, which gives all back at once, and 2 to 5 with it. On a rise it is no
    slower, as there the bound leaves no choice.
    """
    plant = ElasticPlant(service_ms=0.415, start_ms=0.0, noise=0.05)
    fall = np.repeat([HIGH, LOW], 30) / 25
    for seed in range(WALKS):
        runs = compare(OURS, plant, fall, LIMITS, bound_ms=1.5, step_ms=1_000.0, seed=seed, size=10)
        settled = {}
        for name, run in runs.items():
            after = np.array([step.size for step in run.steps[30:]])
            settled[name] = int(np.argmax(after <= np.median(after[-10:]) + 1))
        assert settled.pop("NoSw") == 1
        assert min(settled.values()) >= 2


def test_a_horizon_of_two_is_the_best_compromise(every_second: dict[str, Saso]) -> None:
    """De Matteis 2016, table 7.9: with h = 2 nothing is worst.

    Of each strategy its worst figure is taken, after every figure was scaled from 0 for the best of
    the four to 1 for the worst: moves (stability), violations (accuracy), mean size (overshoot, as
    the thesis measures it) and core-seconds (cost). It is 0.51 for h = 2 and 1 for the others: NoSw
    moves most, h = 1 holds and costs most, h = 3 is late most often. On 200 walks it is 0.73 and 1.
    The worst and not the sum, since a compromise is to have no bad side; and whether h = 1 or h = 2
    has the least sum depends on whether what is held is counted once or twice. Settling is left
    out: by amplitude h = 1 and h = 2 are the worst, by 0.003 units, which scaling would make a 1.
    """
    found = [every_second[name] for name in OURS]
    table = np.array(
        [(f.reconfigurations, f.violations, f.mean_size, f.core_seconds) for f in found]
    )
    scaled = (table - table.min(axis=0)) / np.ptp(table, axis=0)
    worst = dict(zip(OURS, scaled.max(axis=1), strict=True))
    assert worst.pop("h=2") < 0.75 * min(worst.values())


def test_fewer_moves_and_fewer_violations_than_the_rules_every_second(
    every_second: dict[str, Saso],
) -> None:
    """Promise 22 of De Matteis 2016, with a control step of 1 s and every horizon."""
    for ours in ("h=1", "h=2", "h=3"):
        for rival in ("Th-Rule", "Lat-Rule", "SPL"):
            assert every_second[ours].reconfigurations < every_second[rival].reconfigurations
            assert every_second[ours].violations < every_second[rival].violations


def test_fewer_moves_and_fewer_violations_than_the_rules_every_four_seconds() -> None:
    """Promise 22 as published: a control step of 4 s and a horizon of 2."""
    found = figures({"h=2": OURS["h=2"]} | RULES, step_ms=4_000.0)
    for rival in ("Th-Rule", "Lat-Rule", "SPL"):
        assert found["h=2"].reconfigurations < found[rival].reconfigurations
        assert found["h=2"].violations < found[rival].violations


def test_a_goal_of_throughput_moves_less_than_the_rules_and_keeps_up_as_well() -> None:
    """Promise 22 for Th-Node: against Th-Rule and SPL, by the share of triggers that is done.

    With a gamma of 0.2, which is published for several machines, Th-Rule has fewer violations.
    """
    ours = {"Th-Node": partial(predictive, 2, THROUGHPUT, Goal.THROUGHPUT)}
    found = figures(ours | RULES, step_ms=4_000.0, goal=Goal.THROUGHPUT)
    for rival in ("Th-Rule", "SPL"):
        assert found["Th-Node"].reconfigurations < found[rival].reconfigurations
        assert found["Th-Node"].violations <= found[rival].violations
        assert found[rival].violations > 0, "or nothing is compared"


def test_far_less_than_the_peak_is_used_for_a_few_more_violations(
    every_second: dict[str, Saso],
) -> None:
    """Promise 23 of De Matteis 2016, where it was 7 more in a run."""
    ours, peak = every_second["h=2"], every_second["peak"]
    assert ours.core_seconds < 0.65 * peak.core_seconds
    assert ours.violations - peak.violations <= 7 * WALKS
