"""Which backend a flow with ``backend="auto"`` runs on: chosen at the start, and again as it runs.

The policy (``tailrace.policy.backend``) compares what both would do, from what was measured of
the one that runs and from what is usual for the one that was not tried. Here is what it observes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.plan import Plan
from tailrace.policy import backend
from tailrace.policy.decision import NO_STREAKS, BackendState, Observation, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.constraint import Constraint
    from tailrace.graph import Graph
    from tailrace.policy.backend import MicroBatchCosts, RealTimeCosts
    from tailrace.policy.decision import Decision

UNKNOWN_RATE_PER_S = 1_000.0
"""What is assumed before the first interval."""


class Switching:
    """Remembers what was measured of both backends, and has the policy choose between them.

    ``decision`` is the last one; at first, the one to begin with.
    """

    def __init__(
        self,
        graph: Graph,
        constraints: tuple[Constraint, ...],
        slots: Callable[[], int],
        obstacles: tuple[str, ...] = (),
        recovery_ms: float = 60_000.0,
    ) -> None:
        """``slots`` counts those that the flow may hold, as others of its session come and go.

        ``obstacles`` say why the flow cannot run in real-time mode, a sentence each.
        """
        self._graph = graph
        self._readings = tuple(Reading(goal) for goal in constraints)
        self._slots = slots
        self._obstacles = obstacles
        self._recovery_ms = recovery_ms
        self._microbatch: MicroBatchCosts | None = None
        self._realtime: RealTimeCosts | None = None
        self._streaks = NO_STREAKS
        self.decision = self._decide(UNKNOWN_RATE_PER_S, Plan(), running=False)

    def decide(
        self,
        rate_per_s: float,
        plan: Plan,
        microbatch: MicroBatchCosts | None,
        realtime: RealTimeCosts | None,
    ) -> Decision:
        """What to run on, now that an interval is over and these costs were measured."""
        self._microbatch = microbatch or self._microbatch
        self._realtime = realtime or self._realtime
        self.decision = self._decide(rate_per_s, plan, running=True)
        self._streaks = self.decision.streaks
        return self.decision

    def refuse(self, reason: str) -> None:
        """Take in that real-time mode could not run: the next decision says why it is not tried."""
        self._obstacles += (reason,)

    def _decide(self, rate_per_s: float, plan: Plan, *, running: bool) -> Decision:
        return backend.decide(
            Observation(
                self._graph,
                plan,
                self._readings,
                rate_per_s,
                steps={},
                slots=self._slots(),
                intervals_since_change=0,
                backends=BackendState(
                    self._microbatch,
                    self._realtime,
                    self._obstacles,
                    running,
                    self._recovery_ms,
                    self._streaks,
                ),
            )
        )
