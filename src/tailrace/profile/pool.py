"""The executors of a flow: how many are wanted, requested, there, and ready."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorPool:
    """The state of an executor pool, as one value.

    ``wanted`` is the number in the plan, ``requested`` the number that the cluster was asked for,
    ``there`` the number that have joined, and ``ready`` those of them that are warm and take tasks.
    Each has ``cores``. A plan that does not set the number of executors wants those that are there.
    """

    wanted: int
    requested: int
    there: int
    ready: int
    cores: int = 1

    @property
    def slots(self) -> int:
        """How many tasks run at once; if no executor is ready, one is expected."""
        return max(1, self.ready) * self.cores

    @property
    def held_slots(self) -> int:
        """How many tasks its executors have room for, including those that are still warming up."""
        return max(1, self.there) * self.cores
