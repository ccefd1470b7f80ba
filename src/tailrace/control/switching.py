"""Which backend a flow with ``backend="auto"`` runs on: chosen at the start, and again as it runs.

The policy (``tailrace.policy.backend``) compares what both would do, from what was measured of
the one that runs and from what is usual for the one that was not tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.plan import Backend
from tailrace.policy.backend import NO_STREAKS, Calibration, choose

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.goals import Constraint
    from tailrace.policy.backend import Choice, MicroBatchCosts, RealTimeCosts

UNKNOWN_RATE_PER_S = 1_000.0
"""What is assumed before the first interval."""


class Switching:
    """Chooses the backend of a run, with what it has learnt of both."""

    def __init__(
        self,
        constraints: tuple[Constraint, ...],
        slots: Callable[[], int],
        obstacles: tuple[str, ...] = (),
        recovery_ms: float = 60_000.0,
    ) -> None:
        """``slots`` counts those that the flow may hold, as others of its session come and go.

        ``obstacles`` say why the flow cannot run in real-time mode, a sentence each.
        """
        self._constraints = constraints
        self._slots = slots
        self._obstacles = obstacles
        self._recovery_ms = recovery_ms
        self._microbatch: MicroBatchCosts | None = None
        self._realtime: RealTimeCosts | None = None
        self._streaks = NO_STREAKS
        self.choice = self._choose(UNKNOWN_RATE_PER_S, None)

    @property
    def chosen(self) -> Backend:
        """The backend that was chosen last; at first, the one to begin with."""
        return Backend(self.choice.backend)

    def choose(
        self,
        rate_per_s: float,
        present: Backend,
        microbatch: MicroBatchCosts | None,
        realtime: RealTimeCosts | None,
    ) -> Backend:
        """The backend to run on, now that an interval is over and these costs were measured."""
        self._microbatch = microbatch or self._microbatch
        self._realtime = realtime or self._realtime
        self.choice = self._choose(rate_per_s, present)
        self._streaks = self.choice.streaks
        return self.chosen

    def refuse(self, reason: str) -> None:
        """Take in that real-time mode could not run: the next choice says why it is not tried."""
        self._obstacles += (reason,)

    def _choose(self, rate_per_s: float, present: Backend | None) -> Choice:
        return choose(
            Calibration(
                self._constraints,
                rate_per_s,
                self._slots(),
                self._microbatch,
                self._realtime,
                self._obstacles,
                None if present is None else str(present),
                self._recovery_ms,
            ),
            self._streaks,
        )
