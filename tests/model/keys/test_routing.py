"""The load of partitions against brute force, and rates against the traffic equations."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE
from tailrace.errors import InputError
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.model.keys.murmur import hash_key, partition_of
from tailrace.model.keys.routing import (
    KeyHistogram,
    Workload,
    arrivals,
    round_robin,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


counts_of_keys = st.dictionaries(st.text(max_size=6), st.integers(1, 10**6), min_size=1)


# --- shares -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(counts_of_keys, st.integers(1, 40))
def test_the_shares_of_known_keys_are_those_of_every_record_hashed_by_itself(
    counts: dict[str, int], partitions: int
) -> None:
    placed: Counter[int] = Counter()
    for key, count in counts.items():
        placed[hash_key(key, "string") % partitions] += count
    found = shares(KeyHistogram("string", counts), partitions)
    total = sum(counts.values())
    for partition in range(partitions):
        assert found.expected[partition] == pytest.approx(placed[partition] / total)
    assert found.deviation == 0
    assert placed[found.busiest] == max(placed.values())
    assert found.heaviest is not None
    key, share = found.heaviest
    assert hash_key(key, "string") % partitions == found.busiest
    there = [n for k, n in counts.items() if hash_key(k, "string") % partitions == found.busiest]
    assert share == pytest.approx(max(there) / total)
    assert found.dominance == pytest.approx(max(there) / sum(there))


@settings(max_examples=60, deadline=None)
@given(counts_of_keys, st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 300))
def test_shares_add_up_to_the_whole(
    counts: dict[str, int], tail_records: int, tail_keys: int, partitions: int
) -> None:
    found = shares(KeyHistogram("string", counts, tail_records, tail_keys), partitions)
    assert found.partitions == partitions
    assert found.expected.sum() == pytest.approx(1)


def test_real_keys_of_a_uniform_tail_spread_as_the_deviation_says() -> None:
    keys = [*(f"user-{n}" for n in range(40_000)), "hot"]
    records = np.array([1] * 40_000 + [30_000])
    histogram = KeyHistogram("string", {"hot": 30_000}, 40_000, 40_000)
    for partitions in (4, 16, 50):
        placed = np.bincount(partition_of(keys, partitions, "string"), records, partitions)
        found = shares(histogram, partitions)
        apart = (placed / 70_000 - found.expected) / found.deviation
        assert np.abs(apart).max() < 4
        assert found.busiest == placed.argmax()


def test_the_deviation_of_a_share_is_that_of_simulation() -> None:
    rng = np.random.default_rng(13)
    drawn = rng.multinomial(500, np.full(8, 1 / 8), 20_000)[:, 0] * 3.0
    found = shares(KeyHistogram("int", {1: 500.0}, 1_500, 500), 8)
    assert found.deviation == pytest.approx(drawn.std() / 2_000, rel=0.03)


def test_a_hot_key_makes_more_partitions_useless_and_is_named() -> None:
    many = shares(KeyHistogram("string", {"X": 620.0}, 380, 380), 64)
    assert many.expected.max() == pytest.approx(0.62 + 0.38 / 64)
    place = hash_key("X", "string") % 64
    assert str(many) == (
        f"Partition {place} of 64 gets 63% of the records, 99% of them for the key 'X'."
    )


def test_a_null_key_can_be_the_heaviest() -> None:
    found = shares(KeyHistogram("string", {None: 9.0, "a": 1.0}), 4)
    assert found.busiest == 42 % 4
    assert found.heaviest == (None, 0.9)


def test_composite_keys_are_spread_by_all_their_columns() -> None:
    counts = {("a", 1): 3.0, ("a", 2): 5.0, (None, 1): 2.0}
    found = shares(KeyHistogram(("string", "bigint"), counts), 5)
    expected = np.zeros(5)
    for key, count in counts.items():
        expected[hash_key(key, ("string", "bigint")) % 5] += count / 10
    assert found.expected == pytest.approx(expected)


def test_a_tail_alone_has_no_heaviest_key() -> None:
    found = shares(KeyHistogram("string", {}, 100, 50), 4)
    assert found.expected == pytest.approx(np.full(4, 0.25))
    assert found.heaviest is None
    assert found.dominance == 0
    assert str(found) == "Partition 0 of 4 gets 25% of the records."


def test_round_robin_is_even() -> None:
    found = round_robin(8)
    assert found.expected == pytest.approx(np.full(8, 1 / 8))


def test_measured_keys_are_read_as_their_type_and_the_others_are_as_few_as_can_be() -> None:
    found = KeyHistogram.measured({"7": 60, "-1": 20, "None": 20}, 180, "bigint")
    assert found == KeyHistogram("bigint", {7: 60.0, -1: 20.0, None: 20.0}, 80, 4)
    wide = KeyHistogram.measured({"7": 60, "-1": 20}, 180, "bigint", distinct=52)
    assert (wide.tail_records, wide.tail_keys) == (100, 50)
    whole = KeyHistogram.measured({"7": 60}, 60, "bigint")
    assert (whole.tail_records, whole.tail_keys) == (0, 0)


def test_histograms_and_partitions_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="without records"):
        KeyHistogram("int", {})
    with pytest.raises(InputError, match="cannot have 5 records of 0 keys"):
        KeyHistogram("int", {1: 1.0}, 5)
    with pytest.raises(InputError, match="finite numbers"):
        KeyHistogram("int", {1: -1.0})
    with pytest.raises(InputError, match="No keys were counted"):
        KeyHistogram.measured({}, 10, "int")
    with pytest.raises(InputError, match="over 0 partitions"):
        shares(KeyHistogram("int", {1: 1.0}), 0)
    with pytest.raises(InputError, match=r"over 1000000000 partitions: use .* up to 10,000"):
        shares(KeyHistogram("int", {1: 1.0}), 10**9)
    with pytest.raises(InputError, match="over -1 partitions"):
        round_robin(-1)


# --- rates through the graph ------------------------------------------------------------------


def flow(*edges: tuple[str, str], keyed: Mapping[str, tuple[str, ...]] | None = None) -> Graph:
    names = dict.fromkeys(name for edge in edges for name in edge)
    steps = tuple(
        Step(name, "x int", keyed_by=(keyed or {}).get(name, ()))
        for name in names
        if name not in (SOURCE, SINK)
    )
    return graph(steps, tuple(Stream(*edge) for edge in edges))


def line(*names: str, keyed: Mapping[str, tuple[str, ...]] | None = None) -> Graph:
    return flow(*pairwise((SOURCE, *names, SINK)), keyed=keyed)


KEYS = KeyHistogram("string", {"a": 50.0, "b": 30.0}, 20, 20)


def test_a_step_inherits_the_partitions_that_flow_into_it() -> None:
    found = arrivals(line("a", "b"), Workload([100, 300], {("a", "b"): 2.0}), {})
    assert found.per_partition("a").tolist() == [100, 300]
    assert found.per_partition("b").tolist() == [200, 600]
    assert found.per_partition(SINK).tolist() == [200, 600]
    assert found.assumed_even == ()


def test_a_step_with_partitions_of_its_own_is_dealt_to_in_turn_or_by_key() -> None:
    work = Workload([100, 300], {}, {("a", "b"): KEYS})
    found = arrivals(line("a", "b"), work, {"a": 4, "b": 3})
    assert found.per_partition("a").tolist() == [100] * 4
    assert found.per_partition("b") == pytest.approx(400 * shares(KEYS, 3).expected)


def test_a_keyed_step_whose_keys_are_not_known_is_taken_as_even_and_named() -> None:
    seen = line("a", "b", keyed={"b": ("user",)})
    found = arrivals(seen, Workload([90]), {"a": 2, "b": 3})
    assert found.per_partition("b").tolist() == [30] * 3
    assert found.assumed_even == ("b",)


def test_joins_add_up_and_splits_get_their_ratios() -> None:
    fish = flow(
        (SOURCE, "one"), (SOURCE, "ten"), ("one", "join"), ("ten", "join"),
        ("join", "left"), ("join", "right"), ("left", SINK), ("right", SINK),
    )  # fmt: skip
    ratios: dict[tuple[str, str], float | Mapping[str, float]] = {
        ("ten", "join"): 10.0,
        ("join", "left"): 0.02,
        ("join", "right"): {"one": 1.0, "ten": 0.5},
    }
    found = arrivals(fish, Workload([50], ratios), {"join": 2})
    assert found.total("join") == pytest.approx(550)
    assert found.total("left") == pytest.approx(11)
    assert found.total("right") == pytest.approx(50 + 250)
    assert found.total(SINK) == pytest.approx(311)


def test_the_partitions_of_a_union_stand_side_by_side() -> None:
    seen = flow((SOURCE, "a"), (SOURCE, "b"), ("a", "c"), ("b", "c"), ("c", SINK))
    found = arrivals(seen, Workload([10, 20]), {"b": 3})
    assert found.per_partition("c").tolist() == [10, 20, 10, 10, 10]


def test_two_streams_between_the_same_steps_count_once() -> None:
    seen = flow((SOURCE, "a"), ("a", "b"), ("a", "b"), ("b", SINK))
    assert arrivals(seen, Workload([10]), {"b": 2}).total("b") == 10


def test_a_step_behind_a_long_and_a_short_path_waits_for_both() -> None:
    seen = flow((SOURCE, "z"), (SOURCE, "a"), ("a", "b"), ("b", "z"), ("z", "end"), ("end", SINK))
    found = arrivals(seen, Workload([100], {("b", "z"): 3.0}), {})
    assert found.total("end") == 400


def test_a_route_of_its_own_for_each_partition_is_followed_from_each() -> None:
    joint = {(n, f"k{n % 3}"): 1.0 + n for n in range(40)}
    first = KeyHistogram("int", {n: 1.0 + n for n in range(40)})
    onward = KeyHistogram(
        "string", {f"k{r}": sum(1.0 + n for n in range(r, 40, 3)) for r in range(3)}
    )
    sent = np.zeros((4, 3))
    for (one, two), count in joint.items():
        sent[hash_key(one, "int") % 4, hash_key(two, "string") % 3] += count
    table = sent / sent.sum(axis=1, keepdims=True)
    seen = line("a", "b")
    by_pairs = Workload([70], {}, {(SOURCE, "a"): first, ("a", "b"): table})
    by_keys = Workload([70], {}, {(SOURCE, "a"): first, ("a", "b"): onward})
    numbers = {"a": 4, "b": 3}
    assert arrivals(seen, by_pairs, numbers).per_partition("b") == pytest.approx(
        arrivals(seen, by_keys, numbers).per_partition("b")
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.data())
def test_rates_of_any_graph_without_cycles_solve_the_traffic_equations(
    size: int, data: st.DataObject
) -> None:
    names = [f"s{i}" for i in range(size)]
    edges = [(SOURCE, names[0])]
    for later in range(1, size):
        before = [SOURCE, *names[:later]]
        chosen = data.draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True))
        edges += [(origin, names[later]) for origin in chosen]
    edges += [(name, SINK) for name in names if all(name != origin for origin, _ in edges)]
    ratio = st.floats(0, 5)
    ratios = {edge: data.draw(ratio) for edge in edges}
    numbers = {name: data.draw(st.integers(1, 4)) for name in names if data.draw(st.booleans())}
    data.draw(st.randoms()).shuffle(edges)
    found = arrivals(flow(*edges), Workload([3.0, 4.0], ratios), numbers)
    nodes = [SOURCE, *names, SINK]
    gains = np.zeros((len(nodes), len(nodes)))
    for (origin, target), value in ratios.items():
        gains[nodes.index(origin), nodes.index(target)] = value
    external = np.array([7.0, *[0.0] * (len(nodes) - 1)])
    solved = np.linalg.solve(np.eye(len(nodes)) - gains.T, external)
    for name, rate in zip(nodes, solved, strict=True):
        assert found.total(name) == pytest.approx(rate, rel=1e-9, abs=1e-9)


def test_workloads_that_cannot_be_are_refused() -> None:
    seen = line("a")
    for rates in ([], [-1.0], [float("nan")]):
        with pytest.raises(InputError, match="cannot be those of the source"):
            arrivals(seen, Workload(rates), {})
    for table in (np.ones((1, 2)), np.full((3, 2), 0.5)):
        with pytest.raises(InputError, match="not a table of 1 by 2 shares"):
            arrivals(seen, Workload([1.0], {}, {(SOURCE, "a"): table}), {"a": 2})
    keyed = graph(seen.steps, (Stream(SOURCE, "a", ("Aggregate",), ("k",)), Stream("a", SINK)))
    for work, shape in (
        (Workload([1.0]), keyed),
        (Workload([1.0], {}, {(SOURCE, "a"): KEYS}), seen),
    ):
        with pytest.raises(InputError, match="'a' is spread by key over a number"):
            arrivals(shape, work, {})
    for ratio in (-1.0, float("nan"), {"other": 1.0}):
        with pytest.raises(InputError, match=f"from 'a' to '{SINK}' is impossible"):
            arrivals(seen, Workload([1.0], {("a", SINK): ratio}), {})
    with pytest.raises(InputError, match="No stream leads from 'a' to 'x'"):
        arrivals(seen, Workload([1.0], {("a", "x"): 1.0}), {})
    with pytest.raises(InputError, match="There is no step 'x' to give partitions to"):
        arrivals(seen, Workload([1.0]), {"x": 2})
