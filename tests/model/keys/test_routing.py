"""The load of partitions against brute force, and rates against the traffic equations."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.flow import Graph, Step, Stream, graph
from tailrace.goals import SINK, SOURCE
from tailrace.model.keys.murmur import hash_key, partition_of
from tailrace.model.keys.routing import (
    Arrivals,
    KeyHistogram,
    Overload,
    Workload,
    arrivals,
    expected_maximum,
    hop,
    round_robin,
    shares,
    traffic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

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
    assert found.expected_max == pytest.approx(max(placed.values()) / total)
    assert placed[found.busiest] == max(placed.values())
    assert found.heaviest is not None
    key, share = found.heaviest
    assert hash_key(key, "string") % partitions == found.busiest
    there = [n for k, n in counts.items() if hash_key(k, "string") % partitions == found.busiest]
    assert share == pytest.approx(max(there) / total)
    assert found.dominance == pytest.approx(max(there) / sum(there))


@settings(max_examples=60, deadline=None)
@given(counts_of_keys, st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 300))
def test_shares_add_up_and_the_mean_maximum_is_between_the_greatest_mean_and_the_whole(
    counts: dict[str, int], tail_records: int, tail_keys: int, partitions: int
) -> None:
    found = shares(KeyHistogram("string", counts, tail_records, tail_keys), partitions)
    assert found.partitions == partitions
    assert found.expected.sum() == pytest.approx(1)
    assert found.expected.max() <= found.expected_max + 1e-9
    assert found.expected_max <= 1 + 1e-6
    assert 1 - 1e-9 <= found.imbalance <= partitions + 1e-6


def test_real_keys_of_a_uniform_tail_spread_as_the_deviation_says() -> None:
    keys = [*(f"user-{n}" for n in range(40_000)), "hot"]
    records = np.array([1] * 40_000 + [30_000])
    histogram = KeyHistogram("string", {"hot": 30_000}, 40_000, 40_000)
    for partitions in (4, 16, 50):
        placed = np.bincount(partition_of(keys, partitions, "string"), records, partitions)
        found = shares(histogram, partitions)
        apart = (placed / 70_000 - found.expected) / found.deviation
        assert np.abs(apart).max() < 4
        assert found.expected_max == pytest.approx(placed.max() / 70_000, rel=0.03)
        assert found.busiest == placed.argmax()


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 32, 200])
@pytest.mark.parametrize("keys", [1, 2, 3, 5, 8, 40, 1_000, 50_000])
def test_the_mean_maximum_of_a_tail_is_that_of_simulation(partitions: int, keys: int) -> None:
    rng = np.random.default_rng(11)
    drawn = rng.multinomial(keys, np.full(partitions, 1 / partitions), 4_000)
    fixed = np.zeros(partitions)
    simulated = drawn.max(axis=1)
    tolerance = (
        4 * simulated.std() / np.sqrt(4_000) + (0.05 if keys < 8 else 0.01) * simulated.mean()
    )
    assert abs(expected_maximum(fixed, keys, 1.0) - simulated.mean()) < tolerance


@pytest.mark.parametrize("keys", [5, 60, 3_000])
def test_the_mean_maximum_over_uneven_loads_is_that_of_simulation(keys: int) -> None:
    rng = np.random.default_rng(12)
    for partitions in (2, 6, 40):
        fixed = rng.exponential(2.0, partitions) * np.sqrt(keys) * 0.37
        drawn = fixed + 0.37 * rng.multinomial(keys, np.full(partitions, 1 / partitions), 4_000)
        simulated = drawn.max(axis=1)
        tolerance = 4 * simulated.std() / np.sqrt(4_000) + 0.01 * simulated.mean()
        assert abs(expected_maximum(fixed, keys, 0.37) - simulated.mean()) < tolerance


def test_the_deviation_of_a_share_is_that_of_simulation() -> None:
    rng = np.random.default_rng(13)
    drawn = rng.multinomial(500, np.full(8, 1 / 8), 20_000)[:, 0] * 3.0
    found = shares(KeyHistogram("int", {1: 500.0}, 1_500, 500), 8)
    assert found.deviation == pytest.approx(drawn.std() / 2_000, rel=0.03)


def test_a_hot_key_makes_more_partitions_useless_and_is_named() -> None:
    histogram = KeyHistogram("string", {"X": 620.0}, 380, 380)
    few, many = shares(histogram, 2), shares(histogram, 64)
    assert few.imbalance < 2
    assert many.imbalance > 39
    assert many.expected_max == pytest.approx(0.62 + 0.38 / 64)
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
    assert found.imbalance == pytest.approx(1)


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


# --- consecutive keyed hops -------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 30), st.text(max_size=3)), st.integers(1, 100), min_size=1
    ),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_the_second_of_two_keyed_hops_follows_the_pairs_of_keys(
    joint: dict[tuple[int, str], int], first: int, second: int
) -> None:
    found = hop(joint, ("int", "string"), (first, second))
    sent = np.zeros((first, second))
    for (one, two), count in joint.items():
        sent[hash_key(one, "int") % first, hash_key(two, "string") % second] += count
    assert found.sum(axis=1) == pytest.approx(np.ones(first))
    for row in range(first):
        whole = sent.sum() if sent[row].sum() == 0 else sent[row].sum()
        part = sent.sum(axis=0) if sent[row].sum() == 0 else sent[row]
        assert found[row] == pytest.approx(part / whole)
    # What arrives is what the keys of the second hop alone would say.
    onward: Counter[str] = Counter()
    for (_, two), count in joint.items():
        onward[two] += count
    alone = shares(KeyHistogram("string", onward), second).expected
    assert (sent.sum(axis=1) / sent.sum()) @ found == pytest.approx(alone)


def test_a_sample_without_pairs_is_refused() -> None:
    with pytest.raises(InputError, match="pairs of keys"):
        hop({}, ("int", "int"), (2, 2))


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


def test_a_route_from_a_joint_sample_is_followed_from_each_partition() -> None:
    joint = {(n, f"k{n % 3}"): 1.0 + n for n in range(40)}
    first = KeyHistogram("int", {n: 1.0 + n for n in range(40)})
    onward = KeyHistogram(
        "string", {f"k{r}": sum(1.0 + n for n in range(r, 40, 3)) for r in range(3)}
    )
    table = hop(joint, ("int", "string"), (4, 3))
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
    solved = traffic([7.0, *[0.0] * (len(nodes) - 1)], gains)
    for name, rate in zip(nodes, solved, strict=True):
        assert found.total(name) == pytest.approx(rate, rel=1e-9, abs=1e-9)


def test_partitions_that_cannot_keep_up_are_named() -> None:
    found = Arrivals({"a": {"x": np.array([100.0, 499.0]), "y": np.array([100.0, 501.0])}})
    assert found.overloaded({"a": 0.9}) == ()
    assert found.overloaded({"a": 1.0}) == (Overload("a", 1, 1.0),)
    assert [o.partition for o in found.overloaded({"a": 6.0})] == [0, 1]


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


# --- circles ----------------------------------------------------------------------------------


def by_iteration(external: NDArray[np.float64], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    rates = external
    for _ in range(4_000):
        rates = external + gains.T @ rates
    return rates


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.floats(0.05, 0.95), st.integers(0, 2**32 - 1))
def test_rates_on_circles_are_those_of_records_followed_round_and_round(
    size: int, radius: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    gains = rng.random((size, size)) * (rng.random((size, size)) < 0.6)
    present = np.abs(np.linalg.eigvals(gains)).max()
    if present > 0.01:
        gains *= radius / present
    external = rng.random(size)
    assert traffic(external.tolist(), gains) == pytest.approx(by_iteration(external, gains))


def test_a_retry_loop_multiplies_the_load_by_the_geometric_series() -> None:
    gains = np.array([[0.0, 1.0], [0.25, 0.0]])
    assert traffic([90.0, 0.0], gains) == pytest.approx([120.0, 120.0])


@pytest.mark.parametrize("back", [1.0, 1.5])
def test_a_circle_that_gives_back_all_it_gets_is_refused_and_named(back: float) -> None:
    gains = np.zeros((4, 4))
    gains[0, 1] = gains[1, 2] = gains[2, 3] = 1.0
    gains[2, 1] = back
    with pytest.raises(InputError, match="The nodes 1, 2 feed each other"):
        traffic([1.0, 0, 0, 0], gains)


def test_a_long_chain_that_multiplies_is_not_taken_for_a_circle() -> None:
    size = 60
    gains = np.diag(np.full(size - 1, 3.0), 1)
    gains[0, 0] = gains[-1, -1] = 0.5
    rates = traffic([1.0, *[0.0] * (size - 1)], gains)
    assert rates[-2] == pytest.approx(2.0 * 3.0 ** (size - 2))
    assert rates[-1] == pytest.approx(4.0 * 3.0 ** (size - 1))


def test_gains_that_are_no_square_table_are_refused() -> None:
    for gains in (np.zeros((2, 3)), np.array([[-1.0]]), np.array([[np.inf]])):
        with pytest.raises(InputError, match="square table"):
            traffic([1.0] * len(gains), gains)
