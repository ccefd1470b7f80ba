"""The simulated backend: the same events and actions as on Spark, in virtual time.

It replays a trace. A batch is cut when the interval of the plan has passed and the batch before it
is done, and takes every record that is due by then. An hour takes seconds, and the same generator
always gives the same outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.control.events import BatchFinished, Ended, PoolChanged, Started
from tailrace.errors import InputError
from tailrace.model.simulator import SimulatedBatch
from tailrace.profile.pool import ExecutorPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.graph import Graph
    from tailrace.load.trace import Trace
    from tailrace.model.simulator import Plant
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure


class SimulatedBackend:
    """Runs a trace through a plant, from time 0 until every record is through.

    Where no record is due when a batch could be cut, nothing is cut and the query looks again an
    interval later, as Spark does.
    """

    def __init__(
        self,
        graph: Graph,
        plant: Plant,
        trace: Trace,
        plan: Plan,
        tell: Callable[[Event], object],
        *,
        rng: np.random.Generator,
    ) -> None:
        """``tell`` gets the events; ``plan`` is what it begins with."""
        missing = [name for name in graph.names if name not in plant.steps]
        if missing:
            raise InputError(f"The plant has no cost for step '{missing[0]}': add it to its steps.")
        self.plan = plan
        self.batches: list[BatchMeasure] = []
        self._graph = graph
        self._plant = plant
        self._trace = trace
        self._tell = tell
        self._rng = rng
        self._pool = _Pool(plan.executors or 0, plant)

    def start(self) -> None:
        """Begin to run; nothing has happened yet."""
        self._tell(Started(self.plan, 0, self._plant.slots))

    def stop(self, within_s: float | None = None) -> None:  # noqa: ARG002 - no time passes
        """End between two batches."""
        self._tell(Ended())

    def can(self, action: Change) -> str | None:  # noqa: ARG002 - it has a plan like any other
        """It can do everything."""
        return None

    def apply(self, action: Change) -> None:
        """Change the plan of the batches to come."""
        self.plan = action.on(self.plan)

    def run(self, until_us: int | None = None) -> list[BatchMeasure]:
        """Let time pass until every record is through, or nothing is cut any more; every batch."""
        first, cut_us = 0, 0
        while first < len(self._trace):
            plan, due_us = self.plan, int(self._trace.due_us[first])
            cut_us = _first_cut_us(cut_us, due_us, plan.interval_ms, self._plant.poll_ms)
            if until_us is not None and cut_us > until_us:
                break
            first, batch = self._cut(first, cut_us)
            self.batches.append(batch)
            self._tell(BatchFinished(batch))
            same = (self.plan.chains, self.plan.partitions) == (plan.chains, plan.partitions)
            restart_ms = 0.0 if same else self._plant.restart_ms
            free_us = batch.ended_us + round(restart_ms * 1e3)
            cut_us = max(cut_us + round(self.plan.interval_ms * 1e3), free_us)
        return self.batches

    def _cut(self, first: int, cut_us: int) -> tuple[int, BatchMeasure]:
        """Run the batch that is cut now; the first record that it leaves."""
        plan, plant, number = self.plan, self._plant, len(self.batches)
        end = int(np.searchsorted(self._trace.due_us, cut_us, side="right"))
        end = min(end, first + (plant.most_records or end))
        engine = plant.slowed(plant.cold[number] if number < len(plant.cold) else 1.0)
        joining = (0, 0.0)
        if plan.executors is not None:
            size = self._pool.ready(plan.executors, cut_us)
            joining = (plan.executors - size) * plant.cores, (self._pool.from_us - cut_us) / 1e3
            slower = plant.starting if plan.executors > size else 1.0
            engine = replace(engine, slots=size * plant.cores).slowed(slower)
        records = np.arange(first, end)
        run = SimulatedBatch(self._graph, engine, self._trace, plan, records, self._rng, joining)
        batch = run.measure(number, cut_us)
        if plan.executors is None:
            return end, batch
        size = self._pool.ready(plan.executors, batch.ended_us)  # some came while it ran
        self._tell(PoolChanged(self._pool.state))
        return end, replace(batch, slots=size * plant.cores)


@dataclass(slots=True)
class _Pool:
    """The executors of a plant: those that run, and when those that were asked for will."""

    size: int
    plant: Plant
    wanted: int = 0
    from_us: float = 0.0

    def ready(self, wanted: int, now_us: int) -> int:
        """How many run now, if ``wanted`` are asked for."""
        if wanted != self.wanted:
            self.wanted, self.from_us = wanted, now_us + self.plant.start_ms * 1e3
        if wanted <= self.size or now_us >= self.from_us:
            self.size = wanted
        return self.size

    @property
    def state(self) -> ExecutorPool:
        """The pool as a value; what has come is ready here."""
        return ExecutorPool(self.wanted, self.wanted, self.size, self.size, self.plant.cores)


def _first_cut_us(cut_us: int, due_us: int, interval_ms: float, poll_ms: float) -> int:
    """The first moment at or after ``cut_us`` at which the query looks and finds the record."""
    step_us = max(1, round(max(interval_ms, poll_ms) * 1e3))
    return cut_us + max(0, math.ceil((due_us - cut_us) / step_us)) * step_us
