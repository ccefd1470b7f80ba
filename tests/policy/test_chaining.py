"""Dynamic task chaining: the partitioning against brute force, and its hysteresis."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.plan import Chains, Plan
from tailrace.policy.chaining import SPLIT_ABOVE, decide, fewest_even
from tailrace.policy.decision import Observation, StepLoad

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Cuts = tuple[tuple[int, ...], ...]


def partitionings(n: int, chains: int) -> Iterator[Cuts]:
    for splits in combinations(range(1, n), chains - 1):
        yield tuple(tuple(range(*ends)) for ends in pairwise((0, *splits, n)))


def loads_of(cuts: Cuts, utilisations: Sequence[float]) -> list[float]:
    return [sum(utilisations[i] for i in cut) for cut in cuts]


def variance(loads: Sequence[float]) -> float:
    mean = sum(loads) / len(loads)
    return sum((load - mean) ** 2 for load in loads) / len(loads)


def partition_chain(utilisations: Sequence[float], limit: float = SPLIT_ABOVE) -> Cuts:
    """Within that limit; a step that is beyond it by itself stands alone."""

    def fits(first: int, end: int) -> bool:
        return end - first == 1 or math.fsum(utilisations[first:end]) <= limit + 1e-9

    return fewest_even(utilisations, fits)


def as_published(utilisations: Sequence[float], limit: float = 0.9) -> Cuts:
    """Lohrmann 2016, algorithm 10, to the letter."""
    n = len(utilisations)
    alone = tuple((i,) for i in range(n))
    for chains in range(1, n):
        for cuts in partitionings(n, chains):
            loads = loads_of(cuts, utilisations)
            if max(loads) <= limit and variance(loads) < variance(utilisations):
                return cuts
    return alone


def test_steps_of_equal_utilisation_are_chained_where_the_original_left_them_apart() -> None:
    assert as_published([0.2] * 4) == ((0,), (1,), (2,), (3,))
    assert partition_chain([0.2] * 4) == ((0, 1, 2, 3),)


def test_the_most_even_partitioning_is_taken_where_the_original_took_the_first() -> None:
    assert as_published([0.5, 0.1, 0.2, 0.6]) == ((0,), (1, 2, 3))
    assert partition_chain([0.5, 0.1, 0.2, 0.6]) == ((0, 1), (2, 3))


def test_a_step_that_is_too_busy_by_itself_stands_alone_and_the_others_are_still_chained() -> None:
    assert partition_chain([0.1, 0.2, 1.3, 0.1, 0.1]) == ((0, 1), (2,), (3, 4))


def test_rounding_does_not_break_a_chain_that_is_exactly_at_the_limit() -> None:
    assert partition_chain([0.1] * 9) == (tuple(range(9)),)
    assert partition_chain([0.3, 0.6]) == ((0, 1),)


def test_a_single_step_is_a_chain() -> None:
    assert partition_chain([0.4]) == ((0,),)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(0, 1.2), min_size=1, max_size=9), st.floats(0.3, 1.0))
def test_no_partitioning_has_fewer_chains_or_as_few_with_less_variance(
    utilisations: list[float], limit: float
) -> None:
    found = partition_chain(utilisations, limit)
    assert [i for cut in found for i in cut] == list(range(len(utilisations)))

    def feasible(cuts: Cuts) -> bool:
        loads = loads_of(cuts, utilisations)
        return all(
            len(cut) == 1 or load <= limit + 1e-9 for cut, load in zip(cuts, loads, strict=True)
        )

    assert feasible(found)
    for chains in range(1, len(found)):
        assert not any(map(feasible, partitionings(len(utilisations), chains)))
    best = min(
        variance(loads_of(cuts, utilisations))
        for cuts in partitionings(len(utilisations), len(found))
        if feasible(cuts)
    )
    assert variance(loads_of(found, utilisations)) == pytest.approx(best, abs=1e-9)


# --- decisions --------------------------------------------------------------------------------


def line(*names: str, unchained: str = "") -> Graph:
    steps = tuple(Step(name, "x int", chain=name != unchained) for name in names)
    streams = tuple(Stream(a, b) for a, b in pairwise((SOURCE, *names, SINK)))
    return graph(steps, streams)


def load(utilisation: float, partitions: int = 1) -> StepLoad:
    return StepLoad(1_000, 1.0, utilisation, utilisation, partitions)


def observed(
    flow: Graph,
    chains: Chains,
    loads: dict[str, float],
    *,
    since: int = 9,
    slots: int = 8,
    partitions: int = 1,
) -> Observation:
    steps = {name: load(value, partitions) for name, value in loads.items()}
    return Observation(flow, Plan(100.0, chains), (), 1_000, steps, slots, since)


ABC = line("a", "b", "c")
WHOLE: Chains = (("a", "b", "c"),)


def test_a_chain_that_is_too_busy_is_split_as_evenly_as_can_be() -> None:
    decision = decide(observed(ABC, WHOLE, {"a": 0.5, "b": 0.2, "c": 0.6}))
    assert decision.plan.chains == (("a", "b"), ("c",))
    assert decision.plan.interval_ms == 100
    assert decision.reason == (
        "Chain a+b+c is 130% busy, above 90%, so it becomes a+b | c with at most 70%."
    )


def test_a_split_does_not_wait() -> None:
    decision = decide(observed(ABC, WHOLE, {"a": 0.5, "b": 0.2, "c": 0.6}, since=0))
    assert decision.plan.chains == (("a", "b"), ("c",))


def test_chains_are_joined_only_after_three_intervals_and_only_up_to_eighty_percent() -> None:
    apart = (("a", "b"), ("c",))
    light, heavy = {"a": 0.3, "b": 0.2, "c": 0.3}, {"a": 0.3, "b": 0.2, "c": 0.35}
    assert decide(observed(ABC, apart, light, since=3)).plan.chains == WHOLE
    assert decide(observed(ABC, apart, light, since=2)).plan.chains == apart
    assert decide(observed(ABC, apart, heavy, since=9)).plan.chains == apart
    assert decide(observed(ABC, WHOLE, heavy, since=9)).plan.chains == WHOLE


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1.1), min_size=2, max_size=6), st.data())
def test_on_a_constant_load_one_decision_is_the_last(
    utilisations: list[float], data: st.DataObject
) -> None:
    names = tuple("abcdef"[: len(utilisations)])
    flow, loads = line(*names), dict(zip("abcdef", utilisations, strict=False))
    split = data.draw(st.integers(1, len(names)))
    start = tuple(chain for chain in (names[:split], names[split:]) if chain)
    seen = observed(flow, start, loads)
    first = decide(seen).plan
    assert decide(replace(seen, plan=first)).plan == first
    for chain in first.chains:
        assert len(chain) == 1 or sum(loads[name] for name in chain) <= 0.9 + 1e-9


def test_a_load_that_sways_around_the_limit_is_split_once() -> None:
    chains, changes, since = WHOLE, 0, 9
    for interval in range(40):
        sway = 1.0 if interval % 2 else 0.93
        loads = {"a": 0.31 * sway, "b": 0.31 * sway, "c": 0.31 * sway}
        after = decide(observed(ABC, chains, loads, since=since)).plan.chains
        changes += after != chains
        since = 0 if after != chains else since + 1
        chains = after
    assert changes == 1


def test_a_split_without_free_slots_is_not_made_and_the_reason_says_so() -> None:
    seen = observed(ABC, WHOLE, {"a": 0.5, "b": 0.2, "c": 0.6}, partitions=2, slots=3)
    decision = decide(seen)
    assert decision.plan is seen.plan
    assert "needs 4 slots and there are 3" in decision.reason
    assert decision.alternatives[0].what == "split into a+b | c"
    enough = decide(replace(seen, slots=4))
    assert len(enough.plan.chains) == 2


def test_a_step_that_may_not_be_chained_is_never_joined() -> None:
    flow = line("a", "b", "c", unchained="b")
    chains = (("a",), ("b",), ("c",))
    seen = observed(flow, chains, {"a": 0.01, "b": 0.01, "c": 0.01})
    assert decide(seen).plan.chains == chains


def test_a_chain_with_a_step_that_saw_no_records_is_left_alone() -> None:
    seen = observed(ABC, WHOLE, {"a": 0.9, "b": 0.9})
    assert decide(seen).plan == seen.plan


def test_a_single_step_that_is_too_busy_is_named_though_chaining_cannot_help_it() -> None:
    seen = observed(ABC, (("a",), ("b", "c")), {"a": 1.0, "b": 0.1, "c": 0.1})
    decision = decide(seen)
    assert decision.plan == seen.plan
    assert decision.reason == "Step a is 100% busy by itself, which no chaining can change."


def test_when_nothing_changes_the_reason_gives_the_busiest_chain() -> None:
    seen = observed(ABC, WHOLE, {"a": 0.2, "b": 0.2, "c": 0.22})
    assert decide(seen).reason == "The chains stay: the busiest of them is 62% busy."


def test_a_plan_without_chains_is_read_as_chained_throughout() -> None:
    seen = observed(ABC, (), {"a": 0.5, "b": 0.2, "c": 0.6})
    assert decide(seen).plan.chains == (("a", "b"), ("c",))
