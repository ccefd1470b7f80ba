"""The graph: order, paths and chains, against brute force on small random graphs."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ConstraintError, InputError, TraceError
from tailrace.graph import Graph, Step, Stream, graph


def is_one_sentence(message: str) -> bool:
    return message.endswith(".") and re.search(r"[.!?]\s+[A-Z]", message) is None


def ways(*lines: str) -> tuple[Stream, ...]:
    """Streams written as ``source > a > b > sink``, each pair once."""
    pairs = [pair for line in lines for pair in pairwise(line.split(" > "))]
    return tuple(Stream(origin, target) for origin, target in dict.fromkeys(pairs))


def flow(*lines: str, **steps: Step) -> Graph:
    """A graph of such lines; a step that is not given has no wishes of its own."""
    streams = ways(*lines)
    names = dict.fromkeys(s.origin for s in streams if s.origin != "source")
    return graph(tuple(steps.get(name, Step(name, "x int")) for name in names), streams)


DIAMOND = ("source > a > b > d > sink", "a > c > d")
OUTPUTS = ("source > a > b > sink:main", "a > c > sink:alerts")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs of up to five steps named in a topological order, given in any order."""
    names = [f"s{i}" for i in range(draw(st.integers(1, 5)))]
    order = ["source", *names, "sink"]
    pairs = [pair for pair in combinations(order, 2) if pair != ("source", "sink")]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    natives = st.sampled_from([(), (), ("Filter",)])
    streams = [Stream(origin, target, draw(natives)) for origin, target in chosen]
    scales = st.sampled_from([None, None, (1, 4)])
    steps = [
        Step(name, "x int", draw(st.sampled_from([True, True, False])), draw(scales))
        for name in names
    ]
    return graph(tuple(draw(st.permutations(steps))), tuple(draw(st.permutations(streams))))


@pytest.mark.parametrize("name", ["", "source", "sink", "sink:alerts"])
def test_a_step_cannot_take_a_name_that_means_something_else(name: str) -> None:
    with pytest.raises(InputError, match="A step cannot be called") as caught:
        Step(name, "x int")
    assert type(caught.value) is InputError
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("scale", [(0, 1), (3, 2), (-1, 4), (0, 0)])
def test_a_scale_that_is_no_range_is_refused(scale: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="of step 'a' is not a range") as caught:
        Step("a", "x int", scale=scale)
    assert is_one_sentence(str(caught.value))


def test_a_scale_may_hold_a_single_number() -> None:
    assert Step("a", "x int", scale=(1, 1)).scale == (1, 1)


@settings(max_examples=60)
@given(graphs())
def test_every_step_stands_after_all_that_feed_it(traced: Graph) -> None:
    place = {name: index for index, name in enumerate(("source", *traced.names, "sink"))}
    assert all(place[stream.origin] < place[stream.target] for stream in traced.streams)


def test_steps_that_are_ready_together_keep_their_order() -> None:
    traced = graph(
        tuple(Step(name, "x int") for name in ("d", "c", "b", "a")),
        ways("source > a > c > d > sink", "source > b > d"),
    )
    assert traced.names == ("b", "a", "c", "d")


def test_a_name_used_twice_is_refused() -> None:
    with pytest.raises(TraceError, match="Two steps are called 'a'") as caught:
        graph((Step("a", "x int"), Step("b", "x int"), Step("a", "y int")), ways("source > a"))
    assert type(caught.value) is TraceError
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("lines", [("source > a > b > c > b > sink",), ("source > a > a > sink",)])
def test_a_circle_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(TraceError, match="in a circle") as caught:
        flow(*lines)
    assert type(caught.value) is TraceError
    assert is_one_sentence(str(caught.value))


def test_a_graph_knows_its_ends_and_its_forks() -> None:
    traced = flow(*OUTPUTS)
    assert traced.sinks == ("sink:main", "sink:alerts")
    assert traced.forks() == {"a"}
    assert flow("source > a > sink", "source > b > sink").forks() == {"source"}
    assert flow("source > a > sink").forks() == frozenset()


def test_the_streams_of_a_step_are_found_from_both_sides() -> None:
    traced = flow(*DIAMOND)
    assert [s.target for s in traced.streams_from("a")] == ["b", "c"]
    assert [s.origin for s in traced.streams_to("d")] == ["b", "c"]
    assert traced.step("c").name == "c"


def test_the_key_of_a_step_is_that_of_the_stream_that_spreads_records() -> None:
    keyed = Stream("a", "b", ("Exchange",), ("user",))
    traced = graph((Step("a", "x int"), Step("b", "x int")), (Stream("source", "a"), keyed))
    assert traced.keyed_by("b") == ("user",)
    assert traced.keyed_by("a") == ()


@pytest.mark.parametrize(
    ("lines", "names", "whole"),
    [
        (("source > a > b > sink",), ("source", "sink"), ("source", "a", "b", "sink")),
        (("source > a > b > c > sink",), ("a", "c"), ("a", "b", "c")),
        (("source > a > b > sink",), ("b",), ("b",)),
        (DIAMOND, ("source", "c", "sink"), ("source", "a", "c", "d", "sink")),
        (OUTPUTS, ("source", "sink:alerts"), ("source", "a", "c", "sink:alerts")),
        (OUTPUTS, ("b", "sink"), ("b", "sink:main")),
        (OUTPUTS, ("source", "c", "sink"), ("source", "a", "c", "sink:alerts")),
    ],
)
def test_a_path_is_filled_in(
    lines: tuple[str, ...], names: tuple[str, ...], whole: tuple[str, ...]
) -> None:
    assert flow(*lines).path(names) == whole


@pytest.mark.parametrize(
    ("lines", "names", "reason"),
    [
        (DIAMOND, ("source", "x"), "There is no step 'x'.*source, a, b, c, d, sink"),
        (OUTPUTS, ("a", "sink:x"), "There is no step 'sink:x'.*sink:main, sink:alerts"),
        (DIAMOND, ("d", "a"), "No stream leads from 'd' to 'a'"),
        (DIAMOND, ("b", "c"), "No stream leads from 'b' to 'c'"),
        (DIAMOND, ("sink", "source"), "No stream leads from 'sink' to 'source'"),
        (DIAMOND, ("a", "a"), "No stream leads from 'a' to 'a'"),
        (DIAMOND, ("source", "a", "d"), "Several ways lead from 'a' to 'd'"),
        (OUTPUTS, ("a", "sink"), "Several ways lead from 'a' to 'sink'.*or the output"),
        (DIAMOND, ("source",), "'source' alone is a point"),
        (DIAMOND, ("sink",), "'sink' alone is a point"),
    ],
)
def test_a_path_that_means_nothing_or_two_things_is_refused_with_the_reason(
    lines: tuple[str, ...], names: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConstraintError, match=reason) as caught:
        flow(*lines).path(names)
    assert type(caught.value) is ConstraintError
    assert is_one_sentence(str(caught.value))


def test_a_join_of_a_stream_with_itself_is_one_way() -> None:
    joined = (*ways("source > a > b > sink"), Stream("a", "b", ("Filter", "Join")))
    traced = graph((Step("a", "x int"), Step("b", "x int")), joined)
    assert traced.path(("source", "sink")) == ("source", "a", "b", "sink")
    assert traced.primary_chains() == (("a",), ("b",))


@settings(max_examples=100)
@given(graphs())
def test_a_path_is_found_when_brute_force_finds_exactly_one(traced: Graph) -> None:
    connected = {(s.origin, s.target) for s in traced.streams}
    *names, last = traced.names
    truth = [
        candidate
        for size in range(len(names) + 1)
        for middle in combinations(names, size)
        for candidate in [("source", *middle, last)]
        if all(pair in connected for pair in pairwise(candidate))
    ]
    if len(truth) == 1:
        assert traced.path(("source", last)) == truth[0]
    else:
        reason = "Several ways" if truth else "No stream leads"
        with pytest.raises(ConstraintError, match=reason):
            traced.path(("source", last))


@pytest.mark.parametrize("lines", [DIAMOND, OUTPUTS])
def test_from_source_to_sink_is_the_whole_flow_however_many_ways_it_has(
    lines: tuple[str, ...],
) -> None:
    traced = flow(*lines)
    assert traced.path(("source", "sink")) == ("source", *traced.names, "sink")


def test_a_line_of_steps_is_one_chain() -> None:
    assert flow("source > a > b > c > sink").primary_chains() == (("a", "b", "c"),)


def test_a_branch_ends_a_chain_on_both_sides() -> None:
    chains = flow("source > a > b > c > d > e > sink", "b > x > y > d").primary_chains()
    assert set(chains) == {("a", "b"), ("c",), ("x", "y"), ("d", "e")}


def test_a_second_output_of_a_step_ends_its_chain() -> None:
    assert flow("source > a > b > sink:main", "a > sink:raw").primary_chains() == (("a",), ("b",))
    assert set(flow(*OUTPUTS).primary_chains()) == {("a",), ("b",), ("c",)}


def test_an_operator_of_spark_in_between_ends_a_chain() -> None:
    streams = (
        Stream("source", "a", ("Filter",)),
        Stream("a", "b"),
        Stream("b", "c", ("Filter",)),
        Stream("c", "sink", ("Project",)),
    )
    traced = graph(tuple(Step(name, "x int") for name in "abc"), streams)
    assert traced.primary_chains() == (("a", "b"), ("c",))


def test_a_step_that_is_not_to_be_chained_stands_alone() -> None:
    traced = flow("source > a > b > c > d > sink", b=Step("b", "x int", chain=False))
    assert traced.primary_chains() == (("a",), ("b",), ("c", "d"))


def test_a_step_with_partitions_of_its_own_starts_a_chain() -> None:
    traced = flow("source > a > b > c > sink", b=Step("b", "x int", scale=(1, 8)))
    assert traced.primary_chains() == (("a",), ("b", "c"))


@settings(max_examples=100)
@given(graphs())
def test_chains_hold_every_step_once_and_cannot_be_longer(traced: Graph) -> None:
    def joinable(first: str, second: str) -> bool:
        between = [s for s in traced.streams if (s.origin, s.target) == (first, second)]
        return (
            len(between) == 1
            and not between[0].native
            and sum(s.origin == first for s in traced.streams) == 1
            and sum(s.target == second for s in traced.streams) == 1
            and traced.step(first).chain
            and traced.step(second).chain
            and traced.step(second).scale is None
        )

    chains = traced.primary_chains()
    assert sorted(name for chain in chains for name in chain) == sorted(traced.names)
    assert all(joinable(*pair) for chain in chains for pair in pairwise(chain))
    ends = [(left[-1], right[0]) for left in chains for right in chains if left != right]
    assert not any(joinable(*pair) for pair in ends)
