"""Reports of simulated runs: one under control, the same load on plain Spark, and odd ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.control import Controller, Mode
from tailrace.control.events import Ended
from tailrace.control.scaling import Scaling
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.load import Burst, Constant, RateProfile, generate
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import first_plan
from tailrace.policy.scaling.choice import scaler_of
from tailrace.policy.scaling.sizing import Limits
from tailrace.report.data import Report, Usage, report_of
from tailrace.report.saso import SizedStep
from tests.simulated import simulate, started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.profile.batch import BatchMeasure

GOALS = (Constraint(400.0), Constraint(700.0, quantile=0.99, path=("parse", SINK)))
CALM = Constant("300 /s", "30 s")
BURST = Burst("400 /s", "950 /s", "60 s", "30 s", "150 s")


def pipeline() -> Graph:
    names = (SOURCE, "parse", "enrich", "sentiment", SINK)
    steps = tuple(Step(name, "text string") for name in names[1:-1])
    return graph(steps, tuple(Stream(*ends) for ends in pairwise(names)))


def plant() -> Plant:
    return Plant(
        planning_ms=45.0,
        sink_ms=30.0,
        steps={
            "parse": StepCost(0.1, cv=0.5),
            "enrich": StepCost(0.4, cv=0.8),
            "sentiment": StepCost(0.6, cv=1.0, selectivity=0.5),
        },
        per_record_ms=0.02,
        per_chain_ms=4.0,
        noise=0.08,
        cold=(8.0, 4.0, 2.0),
        restart_ms=300.0,
    )


def simulated(
    load: RateProfile,
    goals: tuple[Constraint, ...] = GOALS,
    mode: Mode = Mode.ENFORCE,
    notes: tuple[str, ...] = (),
    restarts_ms: tuple[float, ...] = (),
) -> tuple[Report, list[BatchMeasure]]:
    """The report of a simulated run, its usage taken from the work that was done."""
    flow, trace = pipeline(), generate(load, seed=3)
    plan = first_plan(flow, 100.0 if mode is Mode.ENFORCE else 0.0, 2)
    controller = started(Controller(flow, goals, mode=mode), plan)
    batches = simulate(flow, plant(), trace, controller, np.random.default_rng(5))
    controller.handle(Ended())
    cpu_s = sum(batch.duration_ms for batch in batches) / 1e3
    elapsed_s = batches[-1].ended_us / 1e6
    usage = Usage(elapsed_s, 2 * elapsed_s, cpu_s)
    report = report_of(
        "sentiments",
        controller.log,
        usage,
        warm_up_ms=10_000.0,
        profile=controller.profile("sentiments", 10_000.0),
        restarts_ms=restarts_ms,
        notes=notes,
    )
    return report, batches


@pytest.fixture(scope="session")
def run() -> tuple[Report, list[BatchMeasure]]:
    notes = ("The clock of the source is ahead by [3 ms].",)
    return simulated(BURST, notes=notes, restarts_ms=(300.0, 300.0))


@pytest.fixture(scope="session")
def controlled(run: tuple[Report, list[BatchMeasure]]) -> Report:
    return run[0]


@pytest.fixture(scope="session")
def plain() -> Report:
    return simulated(BURST, mode=Mode.OBSERVE)[0]


@pytest.fixture(scope="session")
def advised() -> Report:
    return simulated(CALM, mode=Mode.ADVISE)[0]


@pytest.fixture(scope="session")
def unbound() -> Report:
    return simulated(CALM, goals=())[0]


@pytest.fixture(scope="session")
def impossible() -> Report:
    return simulated(CALM, goals=(Constraint(20.0),))[0]


@pytest.fixture(scope="session")
def empty() -> Report:
    controller = started(Controller(pipeline(), GOALS), first_plan(pipeline(), 100.0, 2))
    return report_of("sentiments", controller.log, Usage(0.4, 0.8, 0.9), warm_up_ms=10_000.0)


@pytest.fixture(scope="session")
def elastic() -> Report:
    """A burst that one executor cannot take."""
    flow = graph(
        (Step("wait", "x int", scale=(1, 8)),), (Stream(SOURCE, "wait"), Stream("wait", SINK))
    )
    plan = replace(first_plan(flow, 300.0, 1), executors=1)
    scaling = Scaling(flow, scaler_of("predictive"), Limits(1, 4))
    controller = started(Controller(flow, (Constraint(1_000.0),), scaling=scaling), plan)
    machine = Plant(planning_ms=60.0, sink_ms=20.0, steps={"wait": StepCost(5.0)}, start_ms=4_000.0)
    trace = generate(Burst("100 /s", "300 /s", "40 s", "40 s", "120 s"), seed=3)
    simulate(flow, machine, trace, controller, np.random.default_rng(5))
    controller.handle(Ended())
    return report_of("waits", controller.log, Usage(120.0, 240.0, 9.0), warm_up_ms=10_000.0)


def steps_of(
    sizes: Sequence[int],
    rates: Sequence[float] | None = None,
    violated: Sequence[int] = (),
    least: Sequence[int | None] | None = None,
    step_ms: float = 1_000.0,
) -> list[SizedStep]:
    """Control steps of these sizes, at equal times."""
    return [
        SizedStep(
            at_us=round((number + 1) * step_ms * 1e3),
            step_ms=step_ms,
            size=size,
            rate_per_s=100.0 if rates is None else rates[number],
            latency_ms=50.0,
            violated=number in violated,
            least_size=None if least is None else least[number],
        )
        for number, size in enumerate(sizes)
    ]
