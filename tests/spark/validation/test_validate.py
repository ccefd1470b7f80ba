"""How predictions are judged: on made-up runs, and on the committed ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.errors import InputError
from tailrace.model.capacity import capacity
from tailrace.model.predict import Predictor
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.profile import Latency, Profile, StepProfile
from tailrace.spark.validation.cross_validation import Case, Overloaded, Runs, judged
from tailrace.spark.validation.validate import SHAPES, UTILISATIONS, again, table

BATCH, HAND_OVER = BatchCosts(40.0, 0.01), HandOverCosts(0.2, 0.002)
CHAINS = (("parse", "score"),)
COMMITTED = Path(__file__).parents[3] / "bench" / "results" / "validate.json"


def flow(plan: Plan, rate: float) -> Profile:
    """A profile of one flow in one backend, which measured exactly what the model says."""
    live = plan.backend is Backend.REALTIME
    bare = Profile(
        "flow",
        (StepProfile("parse", 0.1, ratio=2.0), StepProfile("score", 0.2)),
        (("source", "parse"), ("parse", "score"), ("score", "sink")),
        rate,
        plan,
        cores=4,
        batch=None if live else BATCH,
        hand_over=HAND_OVER if live else None,
    )
    said = Predictor(bare)()
    return replace(bare, latency=Latency(said.mean_ms, said.p50_ms, said.p95_ms, said.p99_ms))


def runs(*, longer: float = 1.0) -> Runs:
    """Three runs; the last took ``longer`` times as long as the model says."""
    plans = (Plan(0.0, CHAINS), Plan(300.0, CHAINS), Plan(60_000.0, CHAINS, {}, Backend.REALTIME))
    *found, last = (
        Case("one", flow(plan, 900.0), 0.5, {"parse": 1.0, "score": 2.0}) for plan in plans
    )
    assert last.profile.latency is not None
    latency = replace(last.profile.latency, mean_ms=last.profile.latency.mean_ms * longer)
    engine = {backend: flow(Plan(0.0, CHAINS, {}, backend), 100.0) for backend in Backend}
    last = replace(last, profile=replace(last.profile, latency=latency))
    return Runs((*found, last), engine, (), 0)


def test_runs_that_do_what_the_model_says_are_predicted_without_error() -> None:
    result = judged(runs())
    assert (result["predictions"], result["configurations"]) == (6, 3)
    for name in ("mean", "p99"):
        assert result[name]["p90_abs_error"] == pytest.approx(0.0, abs=1e-3)
    assert result["arrivals"]["max_abs_error"] == 0.0
    assert result["other_backend"]["mean"]["median_abs_error"] == pytest.approx(0.0, abs=1e-3)
    assert table(result).row_count


def test_a_run_that_took_longer_is_an_error_of_all_that_predicted_it() -> None:
    result = judged(runs(longer=1.25))
    assert sum("(-20%)" in line for line in result["made"]) == 2
    assert result["mean"]["p90_abs_error"] == pytest.approx(0.2, abs=1e-3)


def test_rates_that_were_counted_otherwise_are_errors() -> None:
    counted = [replace(case, arrivals={"parse": 1.0, "score": 2.5}) for case in runs().cases]
    result = judged(replace(runs(), cases=tuple(counted)))
    assert result["arrivals"]["max_abs_error"] == pytest.approx(0.2)


def test_what_is_busier_than_nine_tenths_counts_apart() -> None:
    one, two, three = runs(longer=2.0).cases
    result = judged(replace(runs(), cases=(one, two, replace(three, utilisation=0.93))))
    assert result["predictions"] == 4
    assert result["mean"]["p90_abs_error"] == pytest.approx(0.0, abs=1e-3)
    assert result["above_nine_tenths"]["mean"]["median_abs_error"] == pytest.approx(0.5, abs=0.01)


def test_a_plan_that_is_wrongly_called_impossible_is_off_by_all_of_it() -> None:
    first, *others = runs().cases
    slow = tuple(replace(step, service_ms=9.0) for step in first.profile.steps)
    wrong = replace(first, profile=replace(first.profile, steps=slow))
    result = judged(replace(runs(), cases=(wrong, *others)))
    assert any("never of" in line for line in result["made"])
    assert result["mean"]["p90_abs_error"] == 1.0


def test_the_worst_saturation_counts() -> None:
    profile = runs().cases[0].profile
    limit = capacity(profile).saturation_per_s
    slow = replace(profile, steps=tuple(replace(s, service_ms=9.0) for s in profile.steps))
    overloads = (Overloaded("one", profile, limit), Overloaded("one", slow, limit / 0.9))
    result = judged(replace(runs(), overloads=overloads))["saturation"]
    assert result["max_abs_error"] == pytest.approx(0.1)  # most profiles say so
    assert result["of_every_profile"]["max_abs_error"] > 0.9  # one does not
    assert len(result["made"]) == 2


def test_every_backend_has_a_shape_for_every_utilisation() -> None:
    assert {len(shapes) for shapes in SHAPES.values()} == {len(UTILISATIONS)}


def test_runs_are_judged_again_from_a_file() -> None:
    made = runs(longer=1.25)
    overload = Overloaded("one", made.cases[0].profile, 500.0)
    data = {"runs": replace(made, overloads=(overload,)).as_json(), "machine": {}}
    result = again(json.loads(json.dumps(data)))
    assert result["made"] == judged(made)["made"]
    assert result["runs"] == data["runs"]


def test_some_topologies_may_be_run_anew() -> None:
    made = runs()
    other = [replace(case, topology="two") for case in made.cases]
    overload = Overloaded("two", made.cases[0].profile, 500.0)
    both = replace(made, cases=(*made.cases, *other), overloads=(overload,))
    better = replace(other[0], utilisation=0.4)
    found = both.replaced({"two"}, [better], [replace(overload, measured_per_s=600.0)])
    assert found.cases == (*made.cases, better)
    assert [o.measured_per_s for o in found.overloads] == [600.0]
    with pytest.raises(InputError, match="no topology 'three': choose from fields-to-fields"):
        again({"runs": made.as_json(), "machine": {}}, anew=["three"])


def test_the_committed_runs_are_predicted_as_well_as_promised() -> None:
    """The bars of the project, by the model as it is now."""
    result = again(json.loads(COMMITTED.read_text("utf-8")))
    assert result["mean"]["median_abs_error"] <= 0.10
    assert result["mean"]["p90_abs_error"] <= 0.20
    assert result["p99"]["median_abs_error"] <= 0.25
    assert result["arrivals"]["max_abs_error"] <= 0.025
    assert result["saturation"]["max_abs_error"] <= 0.10
    assert result["misplaced_keys"] == 0
