"""ETP: the published example, brute force over paths, and what more instances would change."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scale_out.etp import Dataflow, Operator, etp, projected
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = [str(number) for number in range(1, 11)]
SLIVER = {"1": "23", "2": "4", "3": "56", "5": "78", "6": ("9", "10")}


def operator(name: str, input_per_s: float, processed_per_s: float, **more: object) -> Operator:
    """One that emits what it processes."""
    return replace(Operator(name, input_per_s, processed_per_s, processed_per_s), **more)  # type: ignore[arg-type]


def sliver() -> Dataflow:
    """Xu 2021, figure 2.2: operators 1, 3, 4 and 6 are congested."""
    processed = (5000, 4000, 3000, 2000, 2000, 500, 1000, 1000, 250, 250)
    operators = tuple(
        operator(name, rate * (1.5 if name in {"1", "3", "4", "6"} else 1.0), rate)
        for name, rate in zip(NUMBERS, processed, strict=True)
    )
    edges = {(origin, target): 1.0 for origin, targets in SLIVER.items() for target in targets}
    return Dataflow(operators, edges, congested_above=1.0)


def diamond() -> Dataflow:
    """A source, three bolts side by side and a sink, none of them congested."""
    operators = [operator("source", 300, 300), *(operator(b, 100, 100) for b in "abc")]
    edges = {("source", b): 1 / 3 for b in "abc"} | {(b, "sink"): 1.0 for b in "abc"}
    return Dataflow((*operators, operator("sink", 300, 300)), edges)


def paths(flow: Dataflow, name: str) -> Iterator[tuple[str, ...]]:
    onwards = flow.children()[name]
    if not onwards:
        yield (name,)
    for child in onwards:
        for path in paths(flow, child):
            yield (name, *path)


def by_paths(flow: Dataflow, name: str) -> float:
    """Xu 2021, eq. 2.1, word for word: every path is walked."""
    slow = {o.name for o in flow.operators if o.congestion > flow.congested_above}
    open_ends = {path[-1] for path in paths(flow, name) if not slow.intersection(path[1:])}
    worth = {sink.name: sink.weight * sink.processed_per_s for sink in flow.sinks()}
    total = sum(worth.values())
    return sum(worth[end] for end in open_ends) / total if total else 0.0


def as_published(flow: Dataflow, name: str) -> float:
    """Xu 2021, algorithm 2.1: the ETP of the children that are not congested, added up."""
    total = sum(sink.processed_per_s for sink in flow.sinks())
    children = flow.children()[name]
    if not children:
        return flow[name].processed_per_s / total
    slow = {o.name for o in flow.congested()}
    return sum(as_published(flow, child) for child in children if child not in slow)


@st.composite
def dataflows(draw: st.DrawFn, most: int = 7) -> Dataflow:
    """Edges lead from lower to higher numbers, so that there is no circle."""
    size = draw(st.integers(1, most))
    rates = st.one_of(st.just(0.0), st.floats(1, 1e4))
    operators = []
    for number in range(size):
        processed, emitted = draw(rates), draw(rates)
        operators.append(
            Operator(
                f"o{number}",
                draw(st.sampled_from((0.5, 1.0, 1.1, 1.3, 2.0))) * processed,
                processed,
                emitted,
                draw(st.integers(1, 4)),
                weight=draw(st.sampled_from((0.0, 1.0, 2.5))),
            )
        )
    pairs = [(f"o{a}", f"o{b}") for b in range(size) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Dataflow(tuple(operators), {edge: draw(st.floats(0, 1)) for edge in edges})


# --- ETP --------------------------------------------------------------------------------------


def test_the_published_example_has_44_44_11_and_0_percent() -> None:
    """Promise 3 of Xu 2021: ETP of figure 2.2; the order is 3, 4, 6, 1, ties by lower id."""
    shares = etp(sliver())
    assert sliver().throughput_per_s == 4500
    assert {o.name for o in sliver().congested()} == {"1", "3", "4", "6"}
    assert [round(100 * shares[name]) for name in "3461"] == [44, 44, 11, 0]
    congested = [o.name for o in sliver().congested()]
    assert sorted(congested, key=lambda name: -shares[name]) == ["3", "4", "6", "1"]


def test_a_sink_that_several_paths_lead_to_counts_once_where_the_original_counted_each() -> None:
    """Promise 3 of Xu 2021: sinks on several paths count once."""
    assert as_published(diamond(), "source") == pytest.approx(3.0)
    assert etp(diamond())["source"] == 1.0


def test_the_recursion_is_right_where_no_sink_is_reached_twice() -> None:
    assert etp(sliver()) == pytest.approx({name: as_published(sliver(), name) for name in NUMBERS})


@settings(max_examples=200, deadline=None)
@given(dataflows())
def test_etp_is_a_share_and_is_what_walking_every_path_finds(flow: Dataflow) -> None:
    shares = etp(flow)
    assert all(0 <= share <= 1 for share in shares.values())
    assert shares == pytest.approx({name: by_paths(flow, name) for name in flow.names})


def test_a_ladder_with_more_paths_than_could_be_walked_is_no_trouble() -> None:
    rungs = 60
    names = [f"{side}{rung}" for rung in range(rungs) for side in "ab"]
    edges = {
        (f"{side}{rung}", f"{other}{rung + 1}"): 0.5
        for rung in range(rungs - 1)
        for side in "ab"
        for other in "ab"
    }
    shares = etp(Dataflow(tuple(operator(name, 1, 1) for name in names), edges))
    assert shares["a0"] == 1.0
    assert shares["a59"] == 0.5


def test_what_a_sink_weighs_changes_the_shares() -> None:
    heavy = tuple(replace(o, weight=4.0) if o.name == "4" else o for o in sliver().operators)
    shares = etp(replace(sliver(), operators=heavy))
    assert shares["4"] == pytest.approx(8000 / 10500)
    assert shares["3"] == pytest.approx(2000 / 10500)


def test_without_throughput_every_share_is_zero() -> None:
    idle = Dataflow((operator("a", 5, 0), operator("b", 0, 0)), {("a", "b"): 1.0})
    assert etp(idle) == {"a": 0.0, "b": 0.0}


# --- congestion -------------------------------------------------------------------------------


def congested(flow: Dataflow) -> set[str]:
    return {o.name for o in flow.congested()}


def test_the_threshold_of_congestion_is_1_2_and_can_be_set() -> None:
    """Promise 4 of Xu 2021: a configurable threshold, 1.2 unless told."""
    at = Dataflow((operator("at", 120, 100), operator("above", 121, 100)), {})
    assert congested(at) == {"above"}
    assert congested(replace(at, congested_above=1.0)) == {"at", "above"}
    assert congested(replace(at, congested_above=1.5)) == set()


def test_a_filter_never_looks_congested() -> None:
    """Promise 4 of Xu 2021: input is compared with what is processed, not with what is emitted."""
    assert congested(Dataflow((Operator("filter", 100, 100, 1),), {})) == set()


def test_one_that_processes_nothing_of_what_comes_is_congested_and_an_idle_one_is_not() -> None:
    assert operator("stuck", 1, 0).congestion == math.inf
    assert operator("idle", 0, 0).congestion == 0.0
    assert congested(Dataflow((operator("stuck", 1, 0), operator("idle", 0, 0)), {})) == {"stuck"}


# --- projection -------------------------------------------------------------------------------


def line(*operators: Operator) -> Dataflow:
    names = [o.name for o in operators]
    return Dataflow(operators, dict.fromkeys(pairwise(names), 1.0))


def test_another_instance_processes_and_emits_one_kth_more_which_comes_to_the_children() -> None:
    slow = Operator("slow", 400, 200, 100, instances=4)
    after = projected(line(slow, operator("next", 100, 100)), {"slow": 1})
    assert (after["slow"].processed_per_s, after["slow"].emitted_per_s) == (250, 125)
    assert after["slow"].instances == 5
    assert (after["next"].input_per_s, after["next"].processed_per_s) == (125, 100)


def test_no_more_is_emitted_than_the_input_supports_and_what_is_left_over_serves_later() -> None:
    first, second = operator("first", 900, 300, instances=1), operator("second", 300, 200)
    flow = line(first, second, operator("third", 200, 200))
    after = projected(flow, {"second": 1})
    assert after["second"].processed_per_s == after["second"].emitted_per_s == 300
    assert after["third"].input_per_s == 300
    further = projected(after, {"first": 1})
    assert further["second"].processed_per_s == 400
    assert further == projected(flow, {"first": 1, "second": 1})


def test_only_its_share_of_more_comes_to_a_child() -> None:
    flow = Dataflow(
        (operator("a", 400, 200), operator("b", 150, 150), operator("c", 50, 50)),
        {("a", "b"): 0.75, ("a", "c"): 0.25},
    )
    after = projected(flow, {"a": 1})
    assert (after["b"].input_per_s, after["c"].input_per_s) == (300, 100)


def test_a_source_that_takes_all_there_is_sets_the_pace_and_one_with_a_queue_is_bounded() -> None:
    paced, queued = operator("paced", 100, 100), operator("queued", 130, 100)
    after = projected(Dataflow((paced, queued), {}), {"paced": 1, "queued": 1})
    assert (after["paced"].input_per_s, after["paced"].processed_per_s) == (200, 200)
    assert (after["queued"].input_per_s, after["queued"].processed_per_s) == (130, 130)


def test_a_child_that_could_do_more_does_so_where_the_original_calls_it_congested() -> None:
    slow, rate = operator("slow", 400, 100), {"slow": 1}
    unknown = projected(line(slow, operator("next", 100, 100)), rate)
    assert congested(unknown) == {"slow", "next"}
    assert etp(unknown)["slow"] == 0.0
    known = projected(line(slow, operator("next", 100, 100, able_per_s=500.0)), rate)
    assert congested(known) == {"slow"}
    assert (etp(known)["slow"], known.throughput_per_s) == (1.0, 200)


@settings(max_examples=100, deadline=None)
@given(dataflows(), st.data())
def test_more_instances_never_lower_a_rate_and_none_emits_beyond_its_selectivity(
    flow: Dataflow, data: st.DataObject
) -> None:
    more = {name: data.draw(st.integers(0, 3), name) for name in flow.names}
    after = projected(flow, more)
    for old, new in zip(flow.operators, after.operators, strict=True):
        assert new.input_per_s >= old.input_per_s
        assert new.processed_per_s >= old.processed_per_s
        assert new.processed_per_s <= max(old.processed_per_s, new.input_per_s)
        assert new.instances == old.instances + more[old.name]
        assert new.emitted_per_s * old.processed_per_s == pytest.approx(
            old.emitted_per_s * new.processed_per_s
        )


# --- what is refused --------------------------------------------------------------------------


def test_a_circle_is_refused_by_the_names_on_it() -> None:
    with pytest.raises(InputError, match="cycle"):
        Dataflow((operator("a", 1, 1), operator("b", 1, 1)), {("a", "b"): 1, ("b", "a"): 1})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Dataflow((), {}), "needs operators"),
        (lambda: Dataflow((operator("a", 1, 1),) * 2, {}), "unique names"),
        (lambda: Dataflow((operator("a", 1, 1),), {("a", "b"): 1}), "from 'a' to 'b'"),
        (lambda: Dataflow((operator("a", 1, 1),), {("a", "a"): -1}), "cannot carry -1"),
        (lambda: Dataflow((operator("a", 1, 1),), {}, 0.9), "threshold of 0.9"),
        (lambda: operator("a", -1, 1), "not negative"),
        (lambda: operator("a", 1, math.nan), "finite"),
        (lambda: operator("a", 1, 1, instances=0), "0 of at most None"),
        (lambda: operator("a", 1, 1, instances=3, most=2), "3 of at most 2"),
        (lambda: operator("a", 1, 5, able_per_s=4.0), "able"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(wrong, said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()
