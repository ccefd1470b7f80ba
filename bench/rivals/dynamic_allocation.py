"""Spark's own dynamic allocation.

The documented core of the original, with its default values, on the figures that every scaler gets
here. It has no latency bound: its goal is that no task waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.moves import ask, stay, wait
from tailrace.units import show_duration

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Load, Move


@dataclass(slots=True)
class DynamicAllocation:
    """Adds executors while tasks wait, and removes one only when it is idle.

    Tasks wait while records are blocked (``load.blocked``). When they have waited for
    ``backlog_ms`` one executor is added, then 2, 4, 8 after every further ``sustained_ms``, up to
    what all tasks can use at once: ``ceil(tasks/cores)``, with ``tasks`` those of a batch, or one
    for each possible core. When no task waits any more it starts with 1 again.

    An executor is removed when it has run no task for ``idle_ms``. Spark assigns the tasks of each
    batch to executors at random, so in a running stream no executor is idle for a minute, and none
    is ever removed: this is SPARK-24815. Only an idle stream shrinks.
    """

    backlog_ms: float = 1_000.0
    sustained_ms: float = 1_000.0
    idle_ms: float = 60_000.0
    tasks: int | None = None
    name: str = "Spark"
    _waited_ms: float = field(default=0.0, init=False, repr=False)
    _idle_ms: float = field(default=0.0, init=False, repr=False)
    _rounds: int = field(default=0, init=False, repr=False)
    _next: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse timeouts that Spark also refuses."""
        if min(self.backlog_ms, self.sustained_ms, self.idle_ms) <= 0:
            raise InputError("A timeout of dynamic allocation must be above 0 ms.")

    def decide(self, load: Load) -> Move:
        """More executors while tasks wait, the minimum when nothing ran for long enough."""
        passed_ms = load.steps * load.step_ms
        self._idle_ms = 0.0 if load.busy else self._idle_ms + passed_ms
        self._waited_ms += load.blocked * passed_ms
        if not load.blocked:
            self._waited_ms, self._rounds, self._next = 0.0, 0, 1
        if load.moving:
            return wait(load)
        if self._idle_ms >= self.idle_ms:
            idle = show_duration(self._idle_ms)
            return ask(load, load.limits.least, f"No executor ran a task for {idle}.")
        if not load.blocked:
            return stay(load, "No task waits.")
        return self._added(load)

    def _added(self, load: Load) -> Move:
        past_ms = self._waited_ms - self.backlog_ms
        due = 0 if past_ms < 0 else 1 + math.floor(past_ms / self.sustained_ms)
        cores = load.limits.cores
        tasks = load.limits.most * cores if self.tasks is None else self.tasks
        usable = min(math.ceil(tasks / cores), load.limits.most)
        said = f"Tasks have waited for {show_duration(self._waited_ms)}"
        size = load.size
        for _ in range(self._rounds, due):
            if size >= usable:
                self._next = 1
                break
            size, self._next = min(size + self._next, usable), self._next * 2
        self._rounds = due
        if load.size >= usable:
            return stay(load, f"{said}, and {usable} executors are all they can use.")
        if size == load.size:
            return stay(load, f"{said}, and more executors are not due yet.")
        return ask(load, size, f"{said}, so {size - load.size} more executors are added.")
