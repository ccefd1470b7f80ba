"""The cheapest plan that keeps a bound, and the runners-up.

Several planners propose (N-version planning: Cooper 2020, section 1.3.4), the model ranks. A
planner only has to think of cores, partitions and chains: the wait of a plan, the interval of
micro-batches or the lifetime of hand-overs, is the longest that the bound affords, for waiting is
what saves; the row limit of micro-batches is the highest whose batch ends within the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.constraint import only_constraint
from tailrace.errors import InputError
from tailrace.model.loads import Router
from tailrace.model.predict import Predictor, completed
from tailrace.model.stages import stages_of
from tailrace.plan import Backend, Plan, chain_name
from tailrace.units import rate_per_s as read_rate
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.constraint import Constraint
    from tailrace.model.prediction import Prediction
    from tailrace.profile.profile import Profile

MARGIN = 0.08
"""Below the bound by this share, for what predictions do not see."""

BATCH_LENGTH_MS = 60_000.0
"""Of a real-time batch: what a crash repeats at most, and how rare the gaps are."""

BUSY = 0.8
"""How busy the rule of true rates wants a task to be."""

DRAIN = 1.1
"""How much more than what comes a row limit must let through, so that a backlog drains."""

SHOWN = 5

MOST_CORES = 1_000
"""The most cores that plans are looked for on."""

MOST_COMBINATIONS = 150
"""The most combinations of partitions of several steps that are tried."""


class Planner(Protocol):
    """Proposes plans for a flow at a rate with at most this many cores."""

    def __call__(self, profile: Profile, rate_per_s: float, most_cores: int) -> Iterator[Plan]:
        """Plans without waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan that was proposed, by whom, what it would do and what it costs."""

    planner: str
    prediction: Prediction
    cost: float

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.prediction.plan


@dataclass(frozen=True, slots=True, eq=False)
class Sizing:
    """The cheapest plan that keeps the bound, None if none does, and the next best.

    ``tried`` counts the plans that were looked at.
    """

    constraint: Constraint
    rate_per_s: float
    best: Candidate | None
    others: tuple[Candidate, ...]
    tried: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """The sizing as plain data."""
        return {
            "bound": str(self.constraint),
            "rate_per_s": self.rate_per_s,
            "tried": self.tried,
            "reason": self.reason,
            "best": None if self.best is None else _shown(self.best),
            "others": [_shown(candidate) for candidate in self.others],
        }


def by_cores(prediction: Prediction) -> float:
    """The usual price: a core that is held costs 1, and what it computes a little."""
    return prediction.cores + prediction.outcome.cores_used / 100


def size(
    profile: Profile,
    rate: str | float | None = None,
    *,
    every: str | float = "5 s",
    most_cores: int = 16,
    price: Callable[[Prediction], float] = by_cores,
    planners: Sequence[Planner] | None = None,
    **bound: str | float,
) -> Sizing:
    """The cheapest plan under which a flow keeps a bound, as ``p99="1 s"``, at a rate."""
    constraint = only_constraint(bound, every)
    if constraint is None:
        raise InputError("There is no bound to size for: write mean='500 ms' or p99='1 s'.")
    at = profile.rate_per_s if rate is None else read_rate(rate)
    return size_for(profile, constraint, at, most_cores, price=price, planners=planners)


def size_for(
    profile: Profile,
    constraint: Constraint,
    rate_per_s: float,
    most_cores: int = 16,
    *,
    price: Callable[[Prediction], float] = by_cores,
    planners: Sequence[Planner] | None = None,
) -> Sizing:
    """The same for a constraint.

    Plans are priced without their waits first, as waits only lower what is computed; the cheapest
    that keep the bound are then given the longest waits that it affords. Quantiles, which take
    longer than means, are asked for in the order of the price, until there are enough.
    """
    if not 1 <= most_cores <= MOST_CORES:
        raise InputError(
            f"A flow cannot be sized for {most_cores} cores: allow at least 1, and {MOST_CORES:,} "
            "at most."
        )
    proposed: dict[str, tuple[str, Plan]] = {}
    for planner in planners or PLANNERS:
        for plan in planner(profile, rate_per_s, most_cores):
            whole = completed(plan, profile)
            proposed.setdefault(repr(whole), (planner.__name__, whole))  # type: ignore[attr-defined]
    search = _Search(Predictor(profile), constraint, rate_per_s, price)
    found = [search.candidate(*item) for item in proposed.values()]
    hopeful = sorted((c for c in found if search.hopeful(c)), key=_order)
    kept = list(islice((c for c in hopeful if search.kept(c)), SHOWN + 1))
    if not kept:
        nearest = sorted(found, key=lambda c: c.prediction.statistic_ms(constraint.quantile))
        reason = _none(constraint, rate_per_s, nearest, most_cores)
        return Sizing(constraint, rate_per_s, None, tuple(nearest[:SHOWN]), len(found), reason)
    best, *others = sorted((search.waiting(c) for c in kept), key=_order)
    reason = _reason(best, constraint, rate_per_s)
    return Sizing(constraint, rate_per_s, best, tuple(others), len(found), reason)


def _order(candidate: Candidate) -> tuple[float, float]:
    """The cheaper first, of equals the faster."""
    return candidate.cost, candidate.prediction.mean_ms


# --- planners -----------------------------------------------------------------------------------


def every_plan(profile: Profile, rate_per_s: float, most_cores: int) -> Iterator[Plan]:  # noqa: ARG001
    """Both backends, chained and not, on any partitions, and on cores that these can use.

    More cores than partitions would idle; real-time mode takes a core for every task.
    """
    graph = profile.graph
    free = [step.name for step in profile.steps if step.keyed_by or step.name in _own(profile)]
    chains = [graph.primary_chains()]
    apart = tuple((name,) for name in graph.names)
    if apart != chains[0]:
        chains.append(apart)
    counts = _counts(most_cores)
    for chained, numbers in product(chains, _combinations(counts, len(free))):
        partitions = dict(zip(free, numbers, strict=True))
        widest = max(profile.source_partitions, *numbers) if numbers else profile.source_partitions
        for cores in (count for count in counts if count <= widest):
            yield Plan(0.0, chained, partitions, cores=cores)
        stages = stages_of(graph, Plan(0.0, chained, partitions), 1, profile.source_partitions)
        slots = sum(stage.partitions for stage in stages)
        if slots <= most_cores:
            yield Plan(BATCH_LENGTH_MS, chained, partitions, Backend.REALTIME, cores=slots)


def true_rates(profile: Profile, rate_per_s: float, most_cores: int) -> Iterator[Plan]:
    """As many tasks as the work asks for at 80 % busy: the rule of DS2 (Kalavri et al. 2018)."""
    plan = completed(profile.plan, profile)
    loads = Router(profile).loads(plan, max(rate_per_s, 1e-3))
    needed = {
        load.stage.chains[0][0]: max(
            1, math.ceil(sum(float(busy.sum()) for busy in load.busy.values()) / BUSY)
        )
        for load in loads.stages
    }
    partitions = {name: needed[name] for name in plan.partitions if name in needed}
    for backend, cores in (
        (Backend.MICROBATCH, max(needed.values())),
        (Backend.REALTIME, sum(needed.values())),
    ):
        if cores <= most_cores:
            length_ms = BATCH_LENGTH_MS if backend is Backend.REALTIME else 0.0
            yield Plan(length_ms, plan.chains, partitions, backend, cores=cores)


def as_measured(profile: Profile, rate_per_s: float, most_cores: int) -> Iterator[Plan]:  # noqa: ARG001
    """The plan that runs already, which is best if it is good enough."""
    if profile.cores <= most_cores:
        yield (
            replace(profile.plan, interval_ms=0.0, lifetimes_ms={}, cores=profile.cores)
            if (profile.backend is Backend.MICROBATCH)
            else replace(profile.plan, lifetimes_ms={}, cores=profile.cores)
        )


PLANNERS: tuple[Planner, ...] = (as_measured, true_rates, every_plan)


def _own(profile: Profile) -> set[str]:
    return set(profile.plan.partitions)


def _combinations(counts: list[int], steps: int) -> list[tuple[int, ...]]:
    """Which numbers several steps may have: all combinations, or of doubled ones, or each the same.

    Their number grows with a power of the steps, and a user waits for the answer.
    """
    doubled = sorted({*(2**power for power in range(counts[-1].bit_length())), counts[-1]})
    for numbers in (counts, doubled):
        if len(numbers) ** steps <= MOST_COMBINATIONS:
            return list(product(numbers, repeat=steps))
    return [(number,) * steps for number in counts]


def _counts(most: int) -> list[int]:
    """Every number up to 8, then in steps of a quarter: 10, 12, 15, 18, 22 and so on."""
    found = list(range(1, min(most, 8) + 1))
    while found[-1] * 1.25 <= most:
        found.append(int(found[-1] * 1.25))
    return found


# --- judging ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Search:
    """What plans are judged by."""

    predict: Predictor
    constraint: Constraint
    rate_per_s: float
    price: Callable[[Prediction], float]

    @property
    def target_ms(self) -> float:
        return self.constraint.bound_ms * (1 - MARGIN)

    def candidate(self, planner: str, plan: Plan) -> Candidate:
        """A plan, predicted and priced."""
        prediction = self.predict(plan, self.rate_per_s)
        return Candidate(planner, prediction, self.price(prediction))

    def hopeful(self, candidate: Candidate) -> bool:
        """Whether the mean is within the target, which is soon found out."""
        return candidate.prediction.works and candidate.prediction.mean_ms <= self.target_ms

    def kept(self, candidate: Candidate) -> bool:
        """Whether the plan keeps the bound."""
        quantile = self.constraint.quantile
        return (
            self.hopeful(candidate)
            and candidate.prediction.statistic_ms(quantile) <= self.target_ms
        )

    def waiting(self, candidate: Candidate) -> Candidate:
        """The same plan with the longest wait that the bound affords, to a hundredth of it."""
        low_ms, high_ms, best = 0.0, self.target_ms / (self.constraint.quantile or 0.5), candidate
        while high_ms - low_ms > 0.01 * self.target_ms:
            middle_ms = (low_ms + high_ms) / 2
            tried = self.candidate(candidate.planner, _waits(candidate.plan, middle_ms))
            if self.kept(tried):
                best, low_ms = tried, middle_ms
            else:
                high_ms = middle_ms
        return self._limited(best)

    def _limited(self, candidate: Candidate) -> Candidate:
        """With a row limit: after a stall no batch takes longer than the bound.

        Without one the first batch holds all that waited, however long it takes. A limit that
        would not let a backlog drain is left out.
        """
        plan, bound_ms = candidate.plan, self.constraint.bound_ms
        if plan.backend is not Backend.MICROBATCH:
            return candidate
        limit = self.predict.row_limit(plan, self.rate_per_s, bound_ms)
        drains = limit / max(plan.interval_ms, bound_ms) * 1e3 >= DRAIN * self.rate_per_s
        limited = self.candidate(candidate.planner, replace(plan, row_limit=limit))
        return limited if drains and self.kept(limited) else candidate


def _waits(plan: Plan, wait_ms: float) -> Plan:
    if plan.backend is Backend.MICROBATCH:
        return replace(plan, interval_ms=math.floor(wait_ms))
    wait_ms = math.floor(wait_ms * 100) / 100
    return replace(plan, lifetimes_ms={chain_name(chain): wait_ms for chain in plan.chains})


def _reason(best: Candidate, constraint: Constraint, rate_per_s: float) -> str:
    prediction, plan = best.prediction, best.plan
    value = show_duration(prediction.statistic_ms(constraint.quantile))
    bound = show_duration(constraint.bound_ms)
    longest_ms = max(plan.lifetimes_ms.values(), default=0.0)
    how = (
        f"real-time mode with lifetimes of {show_duration(longest_ms)}"
        if plan.backend is Backend.REALTIME
        else f"micro-batches every {show_duration(plan.interval_ms)}"
    )
    cores = "1 core" if prediction.cores == 1 else f"{prediction.cores} cores"
    return (
        f"At {show_rate(rate_per_s)} {how} on {cores} keep the {constraint.statistic} at {value} "
        f"of {bound}, with {prediction.outcome.cores_used:.2g} cores busy."
    )


def _none(
    constraint: Constraint, rate_per_s: float, nearest: Sequence[Candidate], most_cores: int
) -> str:
    best = nearest[0].prediction
    if not best.works:
        return f"No plan on up to {most_cores} cores takes {show_rate(rate_per_s)}. {best.obstacle}"
    value = show_duration(best.statistic_ms(constraint.quantile))
    return (
        f"No plan on up to {most_cores} cores keeps the {constraint.statistic} within "
        f"{show_duration(constraint.bound_ms)} at {show_rate(rate_per_s)}; the nearest comes to "
        f"{value}: allow more cores, or loosen the bound."
    )


def _shown(candidate: Candidate) -> dict[str, Any]:
    return {
        "planner": candidate.planner,
        "cost": round(candidate.cost, 3),
        **candidate.prediction.as_json(),
    }
