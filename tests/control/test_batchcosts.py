"""Costs of the engine, of restarts and of starts, read from batches of a plant that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.constraint import SINK, SOURCE, constraint
from tailrace.graph import Step, Stream
from tailrace.graph import graph as made
from tailrace.load import Staircase, generate
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import first_plan
from tailrace.policy.scaling.sizing import Limits
from tailrace.profile.file import as_json, from_json
from tailrace.rehearsal import Elastic, rehearse, run

if TYPE_CHECKING:
    from tailrace.profile.profile import Profile

PLANT = Plant(
    planning_ms=40.0,
    sink_ms=30.0,
    steps={"test": StepCost(5.0)},
    per_record_ms=0.02,
    per_task_ms=12.0,
    slots=1,
    arrow_records=10_000,
    most_records=2_000,
    restart_ms=350.0,
    start_ms=8_000.0,
    starting=1.8,
)
STAIRS = Staircase(100, 700, steps=3, step_s=40)


@pytest.fixture(scope="module")
def profile() -> Profile:
    graph = made(
        (Step("test", "x int", scale=(1, 8)),), (Stream(SOURCE, "test"), Stream("test", SINK))
    )
    elastic = Elastic("predictive", Limits(1, 8))
    goals = (constraint("mean", "1 s"),)
    plan = first_plan(graph, 300.0, 1)
    load = generate(STAIRS, seed=1)
    found = run(graph, PLANT, load, plan, goals, elastic=elastic).profile("plant")
    assert found is not None
    return found


def test_what_batches_on_many_sizes_tell_is_what_the_plant_was_made_of(profile: Profile) -> None:
    costs = profile.batch
    assert costs is not None
    assert profile.executors is not None
    assert costs.fixed_ms == pytest.approx(PLANT.planning_ms + PLANT.sink_ms, rel=0.1)
    assert costs.task_ms == pytest.approx(PLANT.per_task_ms, rel=0.15)
    assert costs.restart_ms == pytest.approx(PLANT.restart_ms, rel=0.15)
    assert costs.noise < 0.02
    assert profile.executors.start_ms == pytest.approx(PLANT.start_ms, rel=0.2)
    assert profile.executors.slowdown == pytest.approx(PLANT.starting, rel=0.15)
    assert profile.plan.row_limit == PLANT.most_records


def test_what_was_measured_travels_in_the_file_and_into_the_next_rehearsal(
    profile: Profile,
) -> None:
    assert from_json(as_json(profile), "again") == profile
    assert profile.executors is not None

    def share(coming: str | float | None) -> float:
        return rehearse(
            profile, STAIRS, mean="1 s", scaler="predictive", executors=(1, 8), coming=coming
        ).fulfilled_share

    assert share(None) == share(profile.executors.start_ms) > share("30 s")


def test_an_earlier_file_without_these_costs_is_read(profile: Profile) -> None:
    data = as_json(profile)
    del data["executors"], data["batch"]["restart_ms"]
    found = from_json(data, "earlier")
    assert found.executors is None
    assert found.batch is not None
    assert found.batch.restart_ms == 300.0
