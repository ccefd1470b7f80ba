"""The executors of a flow: how many are wanted, asked for, there, and ready."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorPool:
    """The state of an executor pool, as one value.

    ``wanted`` is what the plan says and ``requested`` what the cluster was asked for; ``there`` are
    the executors that have come, of which ``ready`` have warmed up and take tasks. Each has
    ``cores``. A plan that says nothing of executors wants what is there.
    """

    wanted: int
    requested: int
    there: int
    ready: int
    cores: int = 1

    @property
    def slots(self) -> int:
        """How many tasks run at once: at least one executor is awaited, if none is ready."""
        return max(1, self.ready) * self.cores

    @property
    def held_slots(self) -> int:
        """How many tasks its executors could hold, those that warm up among them."""
        return max(1, self.there) * self.cores
