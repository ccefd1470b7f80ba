"""A report of a simulated run, for commands to deliver."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.control import Controller
from tailrace.control.events import Ended
from tailrace.flow import Step, Stream, graph
from tailrace.goals import SINK, SOURCE, Constraint
from tailrace.load import Constant, generate
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import first_plan
from tailrace.report.data import Report, Usage, report_of
from tests.simulated import simulate, started


@pytest.fixture(scope="session")
def report() -> Report:
    """Half a minute of a flow with one step; too short for a profile, and with a name to print."""
    flow = graph((Step("zähle", "x int"),), (Stream(SOURCE, "zähle"), Stream("zähle", SINK)))
    goals = (Constraint(400.0),)
    controller = started(Controller(flow, goals), first_plan(flow, 100.0, 2))
    plant = Plant(planning_ms=40.0, sink_ms=20.0, steps={"zähle": StepCost(0.5)})
    trace = generate(Constant("100 /s", "30 s"), seed=3)
    simulate(flow, plant, trace, controller, np.random.default_rng(5))
    controller.handle(Ended())
    made = report_of("fluß", controller.log, Usage(30.0, 60.0, 9.0), warm_up_ms=10_000.0)
    return Report(made.data)
