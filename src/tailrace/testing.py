"""For tests of flows, policies and scalers: a simulated backend, and a fake one.

Your own scaler or policy, under the same control loop as on Spark, in virtual time::

    from tailrace.testing import Plant, StepCost, simulate

    plant = Plant(planning_ms=40, sink_ms=20, steps={"score": StepCost(5.0)}, start_ms=4_000)
    log = simulate(("score",), plant, load, mean="1 s", scaler=MyScaler(), executors=(1, 8))
    assert log.verdicts[-1].fulfilled
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.constraint import SINK, SOURCE, only_constraint
from tailrace.control.simulated import SimulatedBackend
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import first_plan
from tailrace.policy.scaling.sizing import Limits
from tailrace.rehearsal import Elastic, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.control import Log
    from tailrace.control.actions import Change
    from tailrace.load.trace import Trace
    from tailrace.policy.scaling.sizing import Scaler

__all__ = ["FakeBackend", "Plant", "SimulatedBackend", "StepCost", "simulate"]


class FakeBackend:
    """Does nothing, and remembers what it was asked for.

    ``cannot`` says what it refuses: kinds of actions, each with the reason.
    """

    def __init__(self, cannot: Mapping[type[Change], str] | None = None) -> None:
        """Nothing was asked for yet."""
        self.cannot = dict(cannot or {})
        self.actions: list[Change] = []
        self.running = False

    def start(self) -> None:
        """Pretend to run."""
        self.running = True

    def stop(self, within_s: float | None = None) -> None:  # noqa: ARG002 - there is no batch
        """Stop running."""
        self.running = False

    def can(self, action: Change) -> str | None:
        """None, or the reason given for actions of this kind."""
        return self.cannot.get(type(action))

    def apply(self, action: Change) -> None:
        """Remember it."""
        self.actions.append(action)


def simulate(
    steps: Sequence[str] | Graph,
    plant: Plant,
    load: Trace,
    *,
    mean: str | float,
    scaler: str | Scaler | None = None,
    executors: tuple[int, int] = (1, 1),
    seed: int = 1,
) -> Log:
    """Run a load through a plant, with its mean latency under control; returns the log.

    ``steps`` are the names of steps in a row, or a graph. A ``scaler`` also decides on the number
    of executors, within the limits of ``executors``.
    """
    flow = steps if isinstance(steps, Graph) else _line(steps)
    bound = only_constraint({"mean": str(mean)}, "5 s")
    elastic = None
    if scaler is not None:
        elastic = Elastic(scaler, Limits(*executors, plant.cores))
    goals = () if bound is None else (bound,)
    plan = first_plan(flow, 0.0, plant.slots)
    return run(flow, plant, load, plan, goals, elastic=elastic, seed=seed).log


def _line(names: Sequence[str]) -> Graph:
    ends = (SOURCE, *names, SINK)
    steps = tuple(Step(name, "x int", scale=(1, 1_024)) for name in names)
    return graph(steps, tuple(Stream(*pair) for pair in pairwise(ends)))
