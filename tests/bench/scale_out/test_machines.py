"""Scaling machines out and in: who gets the slots, who goes, and how long it disturbs."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scale_out.dataflow import Change, FluidFlow, FluidOperator, FluidRun, run
from bench.scale_out.etp import Dataflow, Operator, etp
from bench.scale_out.interruption import convergence_s, downtime_s
from bench.scale_out.machines import STRATEGIES, ScalePlan, etp_sums, scale_in, scale_out
from bench.scale_out.placement import Placement, link_loads
from bench.scale_out.rankings import RANKINGS
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def chain(*rates: tuple[float, float], instances: int = 4, most: int | None = None) -> Dataflow:
    """Operators a, b, c... in a row, each with its input and what it processes and emits."""
    names = "abcdefgh"[: len(rates)]
    operators = tuple(
        Operator(name, come, done, done, instances, most)
        for name, (come, done) in zip(names, rates, strict=True)
    )
    return Dataflow(operators, dict.fromkeys(pairwise(names), 1.0))


def spread(flow: Dataflow, machines: int) -> Placement:
    """Dealt in turn, as Storm does."""
    names = [o.name for o in flow.operators for _ in range(o.instances)]
    return Placement.dealt(names, [f"m{number}" for number in range(1, machines + 1)])


def without(placement: Placement, machines: Iterable[str]) -> Placement:
    """The same without these machines, and without what runs on them."""
    gone = set(machines)
    return Placement({name: at for name, at in placement.instances.items() if name not in gone})


@st.composite
def placed(draw: st.DrawFn) -> tuple[Dataflow, Placement]:
    """A dataflow in which anything may be congested, on machines in any way."""
    size = draw(st.integers(1, 6))
    operators = tuple(
        Operator(
            f"o{number}",
            draw(st.floats(0, 1e4)),
            draw(st.floats(1, 1e4)),
            draw(st.floats(0, 1e4)),
            draw(st.integers(1, 4)),
        )
        for number in range(size)
    )
    pairs = [(f"o{a}", f"o{b}") for b in range(size) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    flow = Dataflow(operators, dict.fromkeys(edges, 1.0))
    machines = [f"m{number}" for number in range(1, 1 + draw(st.integers(1, 5)))]
    here: dict[str, tuple[str, ...]] = dict.fromkeys(machines, ())
    for one in (o.name for o in operators for _ in range(o.instances)):
        here[draw(st.sampled_from(machines))] += (one,)
    return flow, Placement(here)


# --- scaling out ------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(placed(), st.integers(1, 4))
def test_so_many_machines_get_n_instances_each_and_no_other_instance_is_touched(
    what: tuple[Dataflow, Placement], many: int
) -> None:
    """Promise 1 of Xu 2021: exactly N * N_instances assignments; no existing one changes."""
    flow, placement = what
    new = [f"new{number}" for number in range(many)]
    plan = scale_out(flow, placement, new)
    per_machine = max(1, sum(o.instances for o in flow.operators) // len(placement.machines))
    assert len(plan.assignments) == many * per_machine
    assert plan.idle == 0
    assert all(each.origin is None for each in plan.assignments)
    assert {name: len(plan.after.instances[name]) for name in new} == dict.fromkeys(
        new, per_machine
    )
    assert without(plan.after, new) == placement
    added = Counter(each.operator for each in plan.assignments)
    assert plan.after.counts() == placement.counts() + added


def plainly_projected(
    flow: Dataflow, more: Counter[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """What comes to each operator and what it processes with so many more instances of it.

    Xu 2021, section 2.2.5, on plain numbers, where parents stand before their children: one more
    than k instances do (k+1)/k of the work, but no more than comes, and emit as much more, which
    comes to the children. A source that takes all there is sets its own pace.
    """
    come, done = {o.name: o.input_per_s for o in flow.operators}, {}
    for o in flow.operators:
        could = o.processed_per_s * ((o.instances + more[o.name]) / o.instances)
        if all(child != o.name for _, child in flow.edges) and come[o.name] <= o.processed_per_s:
            come[o.name] = could
        done[o.name] = max(o.processed_per_s, min(could, come[o.name]))
        emitted = o.emitted_per_s * (done[o.name] / o.processed_per_s)
        for parent, child in flow.edges:
            come[child] += (emitted - o.emitted_per_s) * (parent == o.name)
    return come, done


def plain_etp(flow: Dataflow, done: dict[str, float], congested: set[str]) -> dict[str, float]:
    """Xu 2021, eq. 2.1: all ways to all sinks, and those that nothing behind their start blocks."""

    def ways(name: str) -> list[tuple[str, ...]]:
        children = [child for parent, child in flow.edges if parent == name]
        return [(name, *way) for child in children for way in ways(child)] or [(name,)]

    total = math.fsum(done[name] for name in done if ways(name) == [(name,)])
    free = {name: {w[-1] for w in ways(name) if not congested & {*w[1:]}} for name in done}
    return {name: math.fsum(done[sink] for sink in sinks) / total for name, sinks in free.items()}


@settings(max_examples=100, deadline=None)
@given(placed(), st.integers(1, 2))
def test_every_slot_goes_to_the_congested_operator_of_greatest_projected_etp(
    what: tuple[Dataflow, Placement], many: int
) -> None:
    """Promise 2 of Xu 2021: the greatest projected ETP among the congested, else a source."""
    flow, placement = what
    more: Counter[str] = Counter()
    for each in scale_out(flow, placement, ["x", "y"][:many]).assignments:
        come, done = plainly_projected(flow, more)
        congested = [name for name in done if come[name] / done[name] > 1.2]
        shares = plain_etp(flow, done, set(congested))
        fed = {child for _, child in flow.edges}
        candidates = congested or [name for name in done if name not in fed]
        best = max(shares[name] for name in candidates)
        assert each.operator == next(name for name in candidates if shares[name] == best)
        assert each.etp == pytest.approx(best)
        assert each.congestion == pytest.approx(come[each.operator] / done[each.operator])
        more[each.operator] += 1


def test_without_congestion_a_source_is_enlarged_until_its_children_cannot_follow() -> None:
    """Promise 2 of Xu 2021: without congestion, a source."""
    flow = chain((100, 100), (100, 100), instances=10)
    plan = scale_out(flow, spread(flow, 5), ["m6"])
    # Three more sources are 30 % more, which is beyond 1.2 for their child.
    assert [each.operator for each in plan.assignments] == ["a", "a", "a", "b"]
    assert "a source" in plan.assignments[0].reason


def test_the_operator_before_a_bottleneck_gets_nothing_until_the_bottleneck_is_gone() -> None:
    flow = chain((3000, 1800), (1800, 1300), (1300, 1300), instances=6)
    able = replace(flow, operators=(*flow.operators[:2], replace(flow["c"], able_per_s=9e3)))
    plan = scale_out(able, spread(flow, 4), ["m5"])
    assert [each.operator for each in plan.assignments] == ["b", "a", "b", "b"]
    assert plan.expected_per_s == pytest.approx(1300 * 9 / 6)


def test_an_operator_with_its_most_instances_is_passed_over_for_the_next() -> None:
    flow = chain((300, 200), (200, 100), instances=4, most=4)
    free = replace(flow, operators=(replace(flow["a"], most=5), flow["b"]))
    assert etp(free)["b"] > etp(free)["a"]
    plan = scale_out(free, spread(free, 2), ["m3"])
    assert [each.operator for each in plan.assignments] == ["a"]
    assert plan.idle == 3
    assert any(line.startswith("3 slots stay empty") for line in plan.preview())


def test_new_machines_are_filled_in_turn() -> None:
    flow = chain((300, 100), (100, 100))
    plan = scale_out(flow, spread(flow, 4), ["x", "y", "z"])
    assert [each.machine for each in plan.assignments] == ["x", "y", "z", "x", "y", "z"]


# --- scaling in -------------------------------------------------------------------------------


def removed_in_rounds(flow: Dataflow, placement: Placement, many: int) -> Placement:
    """Xu 2021, algorithm 2.3, on plain lists."""
    done = {o.name: o.processed_per_s for o in flow.operators}
    congested = {o.name for o in flow.operators if o.input_per_s / o.processed_per_s > 1.2}
    share = plain_etp(flow, done, congested)
    here = {name: list(ops) for name, ops in placement.instances.items()}
    for _ in range(many):
        sums = {name: math.fsum(share[one] for one in ops) for name, ops in here.items()}
        ranked = [name for _, name in sorted((sums[name], name) for name in here)]
        gone = here.pop(ranked[0])
        for one, target in zip(gone, cycle(ranked[1:]), strict=False):
            here[target].append(one)
    return Placement({name: tuple(ops) for name, ops in here.items()})


@settings(max_examples=100, deadline=None)
@given(placed(), st.data())
def test_the_machines_of_lowest_etp_sum_go_and_the_least_effective_take_their_work(
    what: tuple[Dataflow, Placement], data: st.DataObject
) -> None:
    """Promise 5 of Xu 2021: the lowest ETPSum, anew each round; work goes in ascending order."""
    flow, placement = what
    if len(placement.machines) == 1:
        with pytest.raises(InputError, match="keep at least one"):
            scale_in(flow, placement, 1)
        return
    many = data.draw(st.integers(1, len(placement.machines) - 1))
    plan = scale_in(flow, placement, many)
    assert len(plan.after.machines) == len(placement.machines) - many
    assert plan.after == removed_in_rounds(flow, placement, many)
    assert plan.after.counts() == placement.counts()
    lowest = etp_sums(flow, placement)
    first = min(lowest, key=lambda name: (lowest[name], placement.machines.index(name)))
    assert first not in plan.after.machines
    moved = placement
    for each in plan.assignments:
        moved = moved.moved(each.operator, each.origin, each.machine)
    assert without(moved, set(placement.machines) - set(plan.after.machines)) == plan.after


def test_sums_are_taken_anew_each_round() -> None:
    """Promise 5 of Xu 2021: what was re-homed counts when the next machine is chosen."""
    placement = Placement({"p": ("a",), "q": ("b",), "r": ("c",), "s": ("d",)})

    def left_of(*rates: float) -> Placement:
        named = zip("abcd", rates, strict=True)
        flow = Dataflow(tuple(Operator(name, rate, rate, rate) for name, rate in named), {})
        return scale_in(flow, placement, 2).after

    # First p goes and q takes a. By the first sums q would go next in both cases.
    assert left_of(1, 2, 3.1, 4) == Placement({"r": ("b", "c"), "s": ("a", "d")})
    assert left_of(1, 2, 2.9, 4) == Placement({"q": ("a", "b", "c"), "s": ("d",)})


def test_machines_can_be_named_instead() -> None:
    flow = chain((100, 100), (100, 100))
    plan = scale_in(flow, spread(flow, 4), ["m2", "m4"])
    assert plan.after.machines == ("m1", "m3")
    assert all("as asked" in each.reason for each in plan.assignments)


# --- plans ------------------------------------------------------------------------------------


def test_a_plan_says_each_assignment_with_its_reason_before_anything_changes() -> None:
    """Promise 6 of Xu 2021: a preview."""
    flow = chain((300, 100), (100, 100))
    plan = scale_out(flow, spread(flow, 4), ["new"])
    assert plan.preview()[0] == (
        "a new a on new: congested, with the highest ETP (ETP 100%, input 3.00 of processing)"
    )
    assert len(plan.preview()) == len(plan.assignments) + 1
    assert plan.preview()[-1].startswith("throughput: 100")
    shrunk = scale_in(flow, spread(flow, 4), 1).preview()
    assert re.fullmatch(r"[ab] to m2: m1 has the lowest ETPSum, 2\.00 \(.*\)", shrunk[0])
    assert shrunk[-1] == "machines to give back: m1"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_is_applied_as_a_whole_or_not_at_all_and_can_be_aborted(strategy: str) -> None:
    """Promise 6 of Xu 2021: applied atomically, aborted on failure."""
    flow = chain((300, 100), (100, 100))
    placement = spread(flow, 4)
    plan = scale_out(flow, placement, ["new"], strategy)
    after = plan.apply(placement)
    replayed = placement.joined(["new"])
    for each in plan.assignments:
        replayed = replayed.moved(each.operator, each.origin, each.machine)
    assert after == replayed != placement
    assert plan.abort() == placement == spread(flow, 4)
    with pytest.raises(InputError, match="make a new plan"):
        plan.apply(after)


def test_the_order_of_alike_instances_does_not_make_another_placement() -> None:
    flow = chain((300, 100), (100, 100), instances=1)
    plan = scale_out(flow, Placement({"m": ("a", "b")}), ["new"])
    assert plan.apply(Placement({"m": ("b", "a")})) == plan.after


# --- strategies -------------------------------------------------------------------------------


def tree() -> Dataflow:
    """A source; a hub with three children; a long way and two short ones."""
    names = ("source", "hub", "far", "end", "left", "right")
    rates = (600, 600, 100, 100, 200, 300)
    operators = tuple(Operator(n, r, r, r, 2) for n, r in zip(names, rates, strict=True))
    edges = {
        ("source", "hub"): 1.0,
        ("hub", "far"): 1 / 6,
        ("far", "end"): 1.0,
        ("hub", "left"): 2 / 6,
        ("hub", "right"): 3 / 6,
    }
    return Dataflow(operators, edges)


@pytest.mark.parametrize(
    ("strategy", "first"),
    [
        ("nearest-source", ["hub", "hub"]),
        ("nearest-sink", ["end", "end"]),
        ("descendants", ["hub", "hub"]),
        ("centrality", ["hub", "hub"]),
        ("least-link-load", ["end", "far"]),
        ("most-link-load", ["hub", "hub"]),
    ],
)
def test_a_strategy_is_chosen_by_name_and_moves_its_own_kind_first(
    strategy: str, first: list[str]
) -> None:
    """Promise 7 of Xu 2021: distance, descendants, centrality and link load are swappable."""
    plan = scale_out(tree(), spread(tree(), 5), ["new"], strategy)
    assert [each.operator for each in plan.assignments] == first
    assert plan.after.counts() == spread(tree(), 5).counts()


@settings(max_examples=60, deadline=None)
@given(placed(), st.sampled_from(sorted(RANKINGS)), st.integers(1, 3))
def test_a_migration_makes_no_instance_and_gives_new_machines_their_even_part(
    what: tuple[Dataflow, Placement], strategy: str, many: int
) -> None:
    """Promise 7 of Xu 2021."""
    flow, placement = what
    new = [f"new{number}" for number in range(many)]
    plan = scale_out(flow, placement, new, strategy)
    total, machines = sum(o.instances for o in flow.operators), len(placement.machines) + many
    assert plan.after.counts() == placement.counts()
    assert len(plan.assignments) == min(total, many * max(1, total // machines))
    assert {each.machine for each in plan.assignments} <= set(new)
    sources = {source.name for source in flow.sources()}
    kinds = [each.operator in sources for each in plan.assignments]
    assert kinds == sorted(kinds)


def test_round_robin_takes_every_instance_and_deals_all_of_them_anew() -> None:
    """Promise 7 of Xu 2021: Storm's rebalance."""
    flow = chain((300, 100), (100, 100), instances=3)
    crowded = Placement({"m1": ("a", "a", "a"), "m2": ("b", "b", "b")})
    plan = scale_out(flow, crowded, ["m3"], "round-robin")
    assert len(plan.assignments) == 6
    assert plan.after == Placement(dict.fromkeys(("m1", "m2", "m3"), ("a", "b")))


def test_an_instance_sends_nothing_over_the_network_to_those_on_its_machine() -> None:
    flow = chain((100, 100), (100, 100), instances=2)
    together = Placement({"m1": ("a", "a", "b", "b"), "m2": ()})
    apart = Placement({"m1": ("a", "a"), "m2": ("b", "b")})
    mixed = Placement({"m1": ("a", "b"), "m2": ("a", "b")})
    assert set(link_loads(flow, together).values()) == {0.0}
    assert set(link_loads(flow, apart).values()) == {50.0}
    assert set(link_loads(flow, mixed).values()) == {25.0}


# --- in the simulator -------------------------------------------------------------------------


def simulated(flow: FluidFlow, plan: ScalePlan) -> FluidRun:
    moves = [(each.operator, each.origin, each.machine) for each in plan.assignments]
    return run(flow, plan.before.instances, 90, Change(30, 5, moves))


def observed(flow: FluidFlow, placement: Placement) -> Dataflow:
    seen, counts = run(flow, placement.instances, 30), placement.counts()
    last = (
        part[-1].tolist() for part in (seen.input_per_s, seen.processed_per_s, seen.emitted_per_s)
    )
    operators = tuple(
        Operator(o.name, come, done, emitted, counts[o.name])
        for o, come, done, emitted in zip(flow.operators, *last, strict=True)
    )
    return Dataflow(operators, flow.edges)


def test_in_the_simulator_the_new_machine_gains_most_with_etp() -> None:
    slow = FluidFlow(
        (
            FluidOperator("a", 200, 0.3, offered_per_s=1_500),
            FluidOperator("b", 100, 0.3),
            FluidOperator("c", 400, 0.3),
        ),
        {("a", "b"): 1.0, ("b", "c"): 1.0},
    )
    placement = Placement.dealt("aaaaaaaabbbbbbbbcccccccc", [f"m{number}" for number in range(12)])
    flow = observed(slow, placement)
    plans = {name: scale_out(flow, placement, ["new"], name) for name in STRATEGIES}
    after = {
        name: simulated(slow, plan).throughput_per_s[-5:].mean() for name, plan in plans.items()
    }
    assert plans["etp"].throughput_per_s == pytest.approx(800)
    assert after.pop("etp") == pytest.approx(1_000)
    assert list(after.values()) == pytest.approx([800] * 7, rel=0.01)


def test_in_the_simulator_giving_back_the_least_effective_machines_stops_nothing() -> None:
    """Promises 5 and 8 of Xu 2021: throughput is preserved, and there is no downtime."""
    slow = FluidFlow(
        (
            FluidOperator("a", 200, 0.1, offered_per_s=1_500),
            FluidOperator("b", 100, 0.1),
            FluidOperator("c", 400, 0.1),
        ),
        {("a", "b"): 1.0, ("b", "c"): 1.0},
    )
    homes = ("a1", "a2", "b1", "b2", "c1", "c2")
    placement = Placement({home: (home[0],) * 4 for home in homes})
    flow = observed(slow, placement)
    ours = scale_in(flow, placement, 2)
    assert ours.after.machines == ("b1", "b2", "c1", "c2")
    kept, stopped = (
        simulated(slow, plan) for plan in (ours, scale_in(flow, placement, ["b1", "b2"]))
    )
    assert kept.throughput_per_s[30:] == pytest.approx([800] * 60)
    assert downtime_s(kept.times_s[30:], kept.throughput_per_s[30:]) == 0.0
    assert downtime_s(stopped.times_s[30:], stopped.throughput_per_s[30:]) >= 4.0


# --- how long it disturbs ---------------------------------------------------------------------


def test_it_has_converged_after_two_crossings_each_way_within_5_percent() -> None:
    """Promise 8 of Xu 2021: convergence time, by 2+2 crossings and 5 %."""
    wild, calm = [0, 0, 180, 20, 170, 30], [104, 96, 103, 97] * 10
    times = np.arange(len(wild + calm), dtype=np.float64) * 10
    # The first calm samples still follow a wild one, from which the first crossing is counted.
    assert convergence_s(times, wild + calm) == pytest.approx(90.0)
    assert convergence_s(times + 500, wild + calm) == pytest.approx(90.0)


def test_a_swing_of_more_than_5_percent_never_converges() -> None:
    """Promise 8 of Xu 2021."""
    assert convergence_s(range(100), [94, 106] * 50) is None
    assert convergence_s(range(100), [96, 104] * 50) is not None


def test_a_throughput_at_rest_has_converged_though_it_crosses_nothing() -> None:
    """Promise 8 of Xu 2021."""
    assert convergence_s(range(60), [0] * 7 + [100] * 53) == pytest.approx(10.0)
    assert convergence_s(range(60), [0] * 60) is None
    assert convergence_s([], []) is None


def test_downtime_is_the_time_without_any_throughput() -> None:
    """Promise 8 of Xu 2021: downtime."""
    assert downtime_s([0, 1, 3, 6, 10], [5, 0, 0, 7, 0]) == pytest.approx(2 + 3 + 4)
    assert downtime_s(range(5), [1, 1e-12, 1, 1, 1]) == pytest.approx(1.0)
    assert downtime_s([3], [0]) == 0.0


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda f, p: scale_out(f, p, ["x"], "best"), "no strategy 'best': choose one of etp"),
        (lambda f, p: scale_out(f, p, []), "name at least one"),
        (lambda f, p: scale_out(f, p, ["m1"]), "m1 cannot join"),
        (lambda f, p: scale_out(f, p, ["x", "x"]), "each once"),
        (lambda f, p: scale_in(f, p, 0), "0 cannot go"),
        (lambda f, p: scale_in(f, p, 4), "4 cannot go"),
        (lambda f, p: scale_in(f, p, ["nowhere"]), "nowhere cannot go"),
        (lambda f, p: scale_in(f, p, ["m1", "m1"]), "each once"),
        (lambda f, p: scale_out(f, without(p, ["m1"]), ["x"]), "measured on 4 instances and 3"),
        (lambda f, p: scale_in(f, without(p, p.machines), 1), "without a machine"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(wrong, said: str) -> None:
    flow = chain((300, 100), (100, 100))
    with pytest.raises(InputError, match=said):
        wrong(flow, spread(flow, 4))
