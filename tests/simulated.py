"""Simulated runs as tests drive them: by whatever says which plan comes after a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tailrace.control import Controller
from tailrace.control.actions import changes
from tailrace.control.events import BatchFinished, Started
from tailrace.control.realtime import RealTimeLoop
from tailrace.control.simulated import SimulatedBackend

if TYPE_CHECKING:
    import numpy as np

    from tailrace.control.events import Event
    from tailrace.graph import Graph
    from tailrace.load.trace import Trace
    from tailrace.model.simulator import Plant
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure


class Driver(Protocol):
    @property
    def plan(self) -> Plan: ...

    def on_batch(self, batch: BatchMeasure, /) -> Plan: ...


def started(
    controller: Controller, plan: Plan, at_us: int = 0, slots: int = 1, other_tasks: int = 1
) -> Controller:
    """A controller that has heard of the start."""
    controller.handle(Started(plan, at_us, slots, other_tasks))
    return controller


def plan_after(controller: Controller, event: Event) -> Plan:
    """The plan of a controller after an event."""
    controller.handle(event)
    return controller.plan


def loop_of(controller: Controller) -> RealTimeLoop:
    """The loop of a controller in real-time mode, for what only backends hear."""
    assert isinstance(controller._loop, RealTimeLoop)
    return controller._loop


def simulate(
    graph: Graph,
    plant: Plant,
    trace: Trace,
    driver: Driver | Controller,
    rng: np.random.Generator,
    *,
    until_us: int | None = None,
) -> list[BatchMeasure]:
    def tell(event: Event) -> None:
        plan = backend.plan
        if isinstance(driver, Controller):
            plan = plan_after(driver, event)
        elif isinstance(event, BatchFinished):
            plan = driver.on_batch(event.batch)
        for action in changes(backend.plan, plan):
            backend.apply(action)

    backend = SimulatedBackend(graph, plant, trace, driver.plan, tell, rng=rng)
    return backend.run(until_us)
