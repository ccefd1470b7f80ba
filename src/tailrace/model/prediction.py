"""A prediction: what a plan would do under a workload, and how sure that is."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from tailrace.model.distribution import Distribution
from tailrace.model.latencies import Latencies
from tailrace.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.plan import Plan


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model says of a plan, before anybody asks how often it was right.

    ``parts`` are the independent parts of the latency of a record, where a result of several
    counts for the one that completed it, and ``explain`` says where its mean goes.
    ``highest_per_s`` is the rate at which the plan saturates, ``cores_used`` what it keeps busy.
    ``window_ms`` is how much longer the records of count windows wait for the one that completes
    theirs. ``obstacle`` says in one sentence why the plan cannot work, None if it can; ``assumed``
    what the model rests on without measurement; ``known`` whether the engine's costs are measured.
    """

    parts: tuple[Distribution, ...]
    explain: Callable[[], Mapping[str, float]]
    highest_per_s: float
    cores_used: float
    utilisation: Mapping[str, tuple[float, ...]]
    window_ms: float = 0.0
    obstacle: str | None = None
    assumed: tuple[str, ...] = ()
    known: bool = True

    @cached_property
    def breakdown_ms(self) -> Mapping[str, float]:
        """The elements of the mean latency, which they add up to."""
        return self.explain()

    @property
    def mean_ms(self) -> float:
        """The mean latency, which needs no distribution."""
        return math.fsum(part.mean_ms for part in self.parts)

    @cached_property
    def latency(self) -> Distribution:
        """The distribution of the latency; adding parts takes time, so only when asked for."""
        return reduce(operator.add, self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction(Latencies):
    """What would happen under ``plan`` at ``rate_per_s``.

    ``low_ms`` and ``high_ms`` hold the mean latency with nine chances in ten, by the errors of
    past predictions. A plan that cannot work has infinite latencies and an ``obstacle``.
    """

    plan: Plan
    rate_per_s: float
    cores: int
    outcome: Outcome = field(repr=False)
    low_ms: float
    high_ms: float

    @property
    def works(self) -> bool:
        """Whether the plan can run, and keeps up with the rate."""
        return self.outcome.obstacle is None

    @property
    def mean_ms(self) -> float:
        """The mean latency."""
        return self.outcome.mean_ms

    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""
        return self.outcome.latency.quantile_ms(quantile)

    @property
    def throughput_per_s(self) -> float:
        """The records that get through: all that come, or as many as the plan can take."""
        return min(self.rate_per_s, self.outcome.highest_per_s)

    @property
    def obstacle(self) -> str | None:
        """Why the plan cannot work, None if it can."""
        return self.outcome.obstacle

    def as_json(self) -> dict[str, Any]:
        """The prediction as plain data."""
        return {
            "plan": self.plan.as_json(),
            "rate_per_s": self.rate_per_s,
            "works": self.works,
            "obstacle": self.obstacle,
            "mean_ms": finite(self.mean_ms, 4),
            "p50_ms": finite(self.p50_ms, 4),
            "p95_ms": finite(self.p95_ms, 4),
            "p99_ms": finite(self.p99_ms, 4),
            "interval_ms": [finite(self.low_ms, 4), finite(self.high_ms, 4)],
            "throughput_per_s": finite(self.throughput_per_s, 4),
            "highest_per_s": finite(self.outcome.highest_per_s, 4),
            "cores": self.cores,
            "cores_used": finite(self.outcome.cores_used, 4),
            "utilisation": {
                name: [round(share, 4) for share in shares]
                for name, shares in self.outcome.utilisation.items()
            },
            "breakdown_ms": {k: finite(ms, 4) for k, ms in self.outcome.breakdown_ms.items()},
            "window_ms": finite(self.outcome.window_ms, 4),
            "assumed": list(self.outcome.assumed),
        }


def impossible(
    obstacle: str,
    utilisation: Mapping[str, tuple[float, ...]],
    highest_per_s: float = 0.0,
    cores_used: float = 0.0,
) -> Outcome:
    """The outcome of a plan that cannot work."""
    never = Distribution.constant(math.inf)
    return Outcome((never,), dict, highest_per_s, cores_used, utilisation, obstacle=obstacle)
