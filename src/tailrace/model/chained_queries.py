"""Queries in a row: each reads what the one before wrote to a log, such as a topic of Kafka.

Every query cuts its batches, or hands records over, by a clock of its own. So the moment at which
results of one reach the next falls anywhere in its cycle, and their latencies add like independent
ones, although results are written many at a time.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.model.latencies import Latencies
from tailrace.model.predict import Predictor
from tailrace.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model.distribution import Distribution
    from tailrace.model.prediction import Prediction
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile


@dataclass(frozen=True, eq=False)
class ChainedPrediction(Latencies):
    """What queries in a row would do together, from the arrival at the first to the last result."""

    predictions: tuple[Prediction, ...]

    @property
    def works(self) -> bool:
        """Whether every query keeps up with what reaches it."""
        return all(one.works for one in self.predictions)

    @property
    def mean_ms(self) -> float:
        """The mean latency of all together."""
        return sum(one.mean_ms for one in self.predictions)

    @cached_property
    def _latency(self) -> Distribution:
        return reduce(operator.add, (one.outcome.latency for one in self.predictions))

    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""
        return self._latency.quantile_ms(quantile)

    def as_json(self) -> dict[str, Any]:
        """The prediction as plain data."""
        return {
            "works": self.works,
            "mean_ms": finite(self.mean_ms, 3),
            "p50_ms": finite(self.p50_ms, 3),
            "p95_ms": finite(self.p95_ms, 3),
            "p99_ms": finite(self.p99_ms, 3),
            "queries": [one.as_json() for one in self.predictions],
        }


def chain_queries(
    profiles: Sequence[Profile],
    plans: Sequence[Plan | None] = (),
    rate_per_s: float | None = None,
) -> ChainedPrediction:
    """Predict queries in a row, each at the rate that the one before sends.

    Plans that are not given are those that were measured, and so is the rate of the first.
    """
    if not profiles:
        raise InputError("There are no queries to predict: give the profile of at least one.")
    if len(plans) > len(profiles):
        raise InputError(f"There are {len(plans)} plans for {len(profiles)} queries: give no more.")
    made = []
    rate = rate_per_s
    for number, profile in enumerate(profiles):
        ask = Predictor(profile)
        found = ask(plans[number] if number < len(plans) else None, rate)
        made.append(found)
        rate = ask.loads(found.plan, found.throughput_per_s).leaving_per_s
    return ChainedPrediction(tuple(made))
