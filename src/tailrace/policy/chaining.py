"""Dynamic task chaining: run steps in one hand-over for as long as one core can carry them.

A chain saves a hand-over to Python for every step after its first, but runs on one core per
partition. So there should be as few chains as possible, none of them too busy, and the load
spread evenly over them (Lohrmann 2016, section 4.7.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.policy.decision import Alternative, Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.plan import Chains
    from tailrace.policy.decision import Observation

POLICY = "chaining"

SPLIT_ABOVE = 0.9
JOIN_UP_TO = 0.8
DWELL_INTERVALS = 3

_ROUNDING = 1e-9


def fewest_even(
    utilisations: Sequence[float], fits: Callable[[int, int], bool]
) -> tuple[tuple[int, ...], ...]:
    """The fewest chains ``first..end-1`` that fit; of these, the ones of least variance.

    Lohrmann 2016, algorithm 10, with two repairs. It takes the first partitioning of the smallest
    size whose variance is below that of no chaining at all. So steps of equal utilisation, whose
    variance is zero, are never chained; and the first is not the best.

    With the number of chains and the total utilisation given, the least variance is the least
    sum of squares. Both the number and the sum add up along the chain, so the best way to cut the
    first steps extends to the best way to cut all of them.
    """
    best: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for end in range(1, len(utilisations) + 1):
        best.append(
            min(
                (count + 1, squares + math.fsum(utilisations[first:end]) ** 2, (*starts, first))
                for first, (count, squares, starts) in enumerate(best)
                if fits(first, end)
            )
        )
    starts = best[-1][2]
    ends = (*starts[1:], len(utilisations))
    return tuple(tuple(range(*cut)) for cut in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What becomes of one primary chain, said in half a sentence."""

    chains: Chains
    busiest: float
    said: str = ""
    refused: Alternative | None = None


def decide(observation: Observation) -> Decision:
    """Split chains that one core cannot carry, and join those that it can carry again.

    A chain is split when it is more than 90 % busy. Steps of different chains are joined only up
    to 80 %, and not before 3 whole intervals under the present chains, so that a load near the
    limit does not chain and unchain in turn. A split needs a slot for every chain and partition;
    without them it would only add hand-overs.
    """
    outcomes = [_outcome(observation, primary) for primary in observation.graph.primary_chains()]
    said = "; ".join(outcome.said for outcome in outcomes if outcome.said)
    refused = tuple(outcome.refused for outcome in outcomes if outcome.refused)
    if said:
        reason = f"{said[0].upper()}{said[1:]}."
    else:
        busiest = max((outcome.busiest for outcome in outcomes), default=0.0)
        reason = f"The chains stay: the busiest of them is {busiest:.0%} busy."
    chains = tuple(chain for outcome in outcomes for chain in outcome.chains)
    plan = observation.plan
    if chains != plan.chains:
        plan = replace(plan, chains=chains)
    return Decision(POLICY, plan, reason, alternatives=refused)


def _outcome(observation: Observation, primary: tuple[str, ...]) -> _Outcome:
    in_plan = tuple(chain for chain in observation.plan.chains if chain[0] in primary)
    present = in_plan or (primary,)
    if any(name not in observation.steps for name in primary):
        return _Outcome(present, 0.0)
    busy = {name: observation.steps[name].utilisation for name in primary}
    loads = {chain: math.fsum(busy[name] for name in chain) for chain in present}
    busiest = max(loads, key=loads.__getitem__)
    top = loads[busiest]
    wanted = _wanted(observation, primary, present)
    overloaded = any(
        load > SPLIT_ABOVE + _ROUNDING and len(chain) > 1 for chain, load in loads.items()
    )
    if not overloaded and len(wanted) >= len(present):
        return _Outcome(present, top, _stuck(present, loads))
    after = max(math.fsum(busy[name] for name in chain) for chain in wanted)
    if len(wanted) < len(present):
        said = f"{_show(present)} become {_show(wanted)}, which is at most {after:.0%} busy"
        return _Outcome(wanted, top, said)
    said = f"chain {_show((busiest,))} is {top:.0%} busy, above {SPLIT_ABOVE:.0%}"
    partitions = max(observation.steps[name].partitions for name in primary)
    needed = len(wanted) * partitions
    if needed > observation.slots:
        lacking = f"{_show(wanted)} needs {needed} slots and there are {observation.slots}"
        refused = Alternative(f"split into {_show(wanted)}", None, f"{lacking}.")
        return _Outcome(present, top, f"{said}, but stays whole, as {lacking}", refused)
    split = f"{said}, so it becomes {_show(wanted)} with at most {after:.0%}"
    return _Outcome(wanted, top, split)


def _wanted(observation: Observation, primary: tuple[str, ...], present: Chains) -> Chains:
    """The best chains that hysteresis allows: within a present chain, or joined with care."""
    home = {name: number for number, chain in enumerate(present) for name in chain}
    loads = [observation.steps[name].utilisation for name in primary]
    may_join = observation.intervals_since_change >= DWELL_INTERVALS

    def fits(first: int, end: int) -> bool:
        if end - first == 1:
            return True
        together = home[primary[first]] == home[primary[end - 1]]
        limit = SPLIT_ABOVE if together else JOIN_UP_TO
        return (together or may_join) and math.fsum(loads[first:end]) <= limit + _ROUNDING

    return tuple(tuple(primary[i] for i in cut) for cut in fewest_even(loads, fits))


def _stuck(present: Chains, loads: dict[tuple[str, ...], float]) -> str:
    """What to say of a single step that is too busy, since chaining cannot help it."""
    busy = [chain for chain in present if loads[chain] > SPLIT_ABOVE + _ROUNDING]
    if not busy:
        return ""
    worst = max(busy, key=loads.__getitem__)
    return f"step {worst[0]} is {loads[worst]:.0%} busy by itself, which no chaining can change"


def _show(chains: Chains) -> str:
    return " | ".join("+".join(chain) for chain in chains)
