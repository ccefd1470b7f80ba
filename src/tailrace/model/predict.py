"""What would happen: latency, throughput and cost of any plan under any load, from a profile.

The steps of a profile hold under every plan; what the engine takes is known for the backend that
the flow was seen in, and taken from elsewhere for the other, which the prediction says.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.model.keys.keytypes import REDACTED
from tailrace.model.keys.pseudonyms import SLOTS
from tailrace.model.loads import Router
from tailrace.model.outcome_microbatch import Cycle, micro_batch
from tailrace.model.outcome_realtime import real_time
from tailrace.model.prediction import Prediction
from tailrace.model.score import UNTRIED
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import USUAL_BATCH, USUAL_HAND_OVER
from tailrace.units import rate_per_s as read_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.model.loads import Loads
    from tailrace.model.score import Accuracy
    from tailrace.profile.profile import Profile

LEAST_RATE_PER_S = 1e-3
"""A flow into which nothing comes has no latency to predict; this is next to nothing."""


class Predictor:
    """Predicts what one flow would do under any plan.

    ``accuracy`` is how right past predictions were, which makes the intervals of confidence.
    """

    def __init__(self, profile: Profile, accuracy: Accuracy = UNTRIED) -> None:
        """For the flow of that profile."""
        self.profile = profile
        self.accuracy = accuracy
        self._router = Router(profile)

    def __call__(self, plan: Plan | None = None, rate_per_s: float | None = None) -> Prediction:
        """What would happen; plan and rate are those that were measured where not given."""
        profile = self.profile
        chosen = completed(plan or profile.plan, profile)
        rate = profile.rate_per_s if rate_per_s is None else rate_per_s
        if not 0 <= rate < math.inf:
            raise InputError(f"A rate of {rate:g} records a second cannot be: give one from 0 up.")
        loads = self.loads(chosen, rate)
        if chosen.backend is Backend.REALTIME:
            outcome = real_time(profile, chosen, loads, profile.hand_over or USUAL_HAND_OVER)
            known = profile.hand_over is not None
        else:
            outcome = micro_batch(profile, chosen, loads, profile.batch or USUAL_BATCH)
            known = profile.batch is not None
        chance = _fall_by_chance(profile, loads)
        said = (*_assumed(loads, chosen, known=known), *chance)
        outcome = replace(outcome, assumed=said, known=known)
        low, high = self.accuracy.band(chosen.backend, known=known)
        mean_ms = outcome.mean_ms
        return Prediction(chosen, rate, loads.cores, outcome, mean_ms * low, mean_ms * high)

    def loads(self, plan: Plan, rate_per_s: float) -> Loads:
        """How a rate falls on the stages of a plan that says all of its chains and partitions."""
        return self._router.loads(plan, max(rate_per_s, LEAST_RATE_PER_S))

    def row_limit(self, plan: Plan, rate_per_s: float, within_ms: float) -> int:
        """The most records of a micro-batch that takes no longer than that under a plan."""
        return self._cycle(replace(plan, row_limit=None), rate_per_s).records_within(within_ms)

    def drain_ms(self, plan: Plan | None, rate_per_s: float | None, backlog: float) -> float:
        """How long a plan takes to work off a backlog of this many records while others arrive.

        In real-time mode what is free of the highest rate does it.
        """
        if not 0 <= backlog < math.inf:
            raise InputError(f"A backlog of {backlog:g} records cannot be: give one from 0 up.")
        found = self(plan, rate_per_s)
        if not found.works:
            return math.inf
        if found.plan.backend is Backend.REALTIME:
            return backlog / (found.outcome.highest_per_s - found.rate_per_s) * 1e3
        return self._cycle(found.plan, found.rate_per_s).drain_ms(backlog)

    def _cycle(self, plan: Plan, rate_per_s: float) -> Cycle:
        chosen, costs = completed(plan, self.profile), self.profile.batch or USUAL_BATCH
        loads = self.loads(chosen, rate_per_s)
        return Cycle(loads, costs, chosen.interval_ms, chosen.row_limit)


def predict(
    profile: Profile,
    plan: Plan | None = None,
    rate: str | float | None = None,
    *,
    accuracy: Accuracy = UNTRIED,
) -> Prediction:
    """What a flow would do under a plan and a rate; those that it was measured under if not given.

    >>> predict(profile, Plan(interval_ms=500, cores=4), "20 k/s").p99_ms  # doctest: +SKIP
    """
    return Predictor(profile, accuracy)(plan, None if rate is None else read_rate(rate))


def _assumed(loads: Loads, plan: Plan, *, known: bool) -> Iterator[str]:
    """What a prediction rests on that was not measured."""
    for name in loads.assumed_even:
        yield f"The keys of step '{name}' were not counted: its partitions are assumed to be alike."
    if not known:
        where = "real-time mode" if plan.backend is Backend.REALTIME else "micro-batches"
        yield (
            f"The flow was never measured in {where}, so what the engine takes there is what it "
            "took on another machine."
        )


def _fall_by_chance(profile: Profile, loads: Loads) -> Iterator[str]:
    """Keyed steps whose keys are pseudonyms, over partitions that these do not know exactly."""
    for stage in (load.stage for load in loads.stages):
        redacted = profile.step(stage.steps[0]).key_type == REDACTED
        if stage.keyed and redacted and SLOTS % stage.partitions:
            yield (
                f"The keys of step '{stage.steps[0]}' were redacted, so where they fall on "
                f"{stage.partitions} partitions is partly chance: a number that divides {SLOTS} is "
                "known exactly."
            )


def completed(plan: Plan, profile: Profile) -> Plan:
    """A plan with what it leaves open as it was measured: chains, partitions of keyed steps."""
    chains = plan.chains or profile.plan.chains or profile.graph.primary_chains()
    keyed = {step.name for step in profile.steps if step.keyed_by}
    partitions = {
        name: count
        for name, count in profile.plan.partitions.items()
        if name not in plan.partitions and name in keyed
    }
    return replace(plan, chains=chains, partitions=partitions | plan.partitions)
