"""Routes from counted transfers: the golden values of Cooper 2020."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.keys.transfers import (
    group_means,
    group_weights,
    keyed_routes,
    overall_routes,
    shared_route,
    stream_shares,
    task_routing,
)

PAIRS = ((0, 1), (2, 3))


def test_the_route_of_a_step_fed_in_turn_is_that_of_table_4_2() -> None:
    transfers = np.array([[30.0, 10, 5, 5], [30, 10, 10, 0]])
    shared = transfers.sum(axis=0) / transfers.sum()
    assert shared == pytest.approx([0.60, 0.20, 0.15, 0.05])
    assert shared_route(shared, PAIRS) == pytest.approx([0.80, 0.20])


ROUTES = np.array(
    [[0.60, 0.15, 0.05, 0.20], [0.25, 0.05, 0.40, 0.30], [0.15, 0.65, 0.05, 0.15],
     [0.05, 0.35, 0.20, 0.40]]
)  # fmt: skip
OUTPUT = np.array([0.70, 0.10, 0.15, 0.05])


def test_the_routes_of_a_step_fed_by_key_are_those_of_table_4_4() -> None:
    first, second = group_weights(OUTPUT, PAIRS)
    assert first == pytest.approx([0.875, 0.125])
    assert second == pytest.approx([0.75, 0.25])
    routes = keyed_routes(ROUTES, OUTPUT, PAIRS, PAIRS)
    assert routes == pytest.approx(np.array([[0.69375, 0.30625], [0.70, 0.30]]))


def test_where_any_record_goes_is_the_sum_over_streams() -> None:
    of_streams = stream_shares(np.array([[80.0], [20.0]]))
    assert of_streams.ravel() == pytest.approx([0.8, 0.2])
    routes = [np.array([[0.8, 0.2, 0.0]]), np.array([[0.0, 0.0, 1.0]])]
    assert overall_routes(routes, of_streams)[0] == pytest.approx([0.64, 0.16, 0.20])
    joined = overall_routes([np.array([[0.8, 0.2]]), np.array([[0.5, 0.5]])], of_streams)
    assert joined[0] == pytest.approx([0.74, 0.26])


def test_ratios_and_service_times_of_replicas_are_weighted_by_what_their_tasks_get() -> None:
    means = group_means(np.array([2.0, 10.0, 4.0, 8.0]), OUTPUT, PAIRS)
    assert means == pytest.approx([0.875 * 2 + 0.125 * 10, 0.75 * 4 + 0.25 * 8])


def test_tasks_without_records_follow_the_others_and_weigh_alike() -> None:
    routes = task_routing(np.array([[6.0, 2.0], [0.0, 0.0]]))
    assert routes.tolist() == [[0.75, 0.25], [0.75, 0.25]]
    assert task_routing(np.zeros((2, 4))).tolist() == [[0.25] * 4] * 2
    weights = group_weights(np.array([0.0, 0.0, 1.0]), ((0, 1), (2,)))
    assert [weight.tolist() for weight in weights] == [[0.5, 0.5], [1.0]]
    assert stream_shares(np.zeros((2, 1))).tolist() == [[0.0], [0.0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_routes_between_replicas_are_those_of_the_transfers_that_replicas_would_make(
    origins: int, targets: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    transfers = rng.integers(1, 50, (8, 6)).astype(np.float64)
    replicas = tuple(tuple(range(i, 8, origins)) for i in range(origins))
    onto = tuple(tuple(range(i, 6, targets)) for i in range(targets))
    by_hand = np.array([[transfers[np.ix_(e, f)].sum() for f in onto] for e in replicas])
    by_hand /= by_hand.sum(axis=1, keepdims=True)
    output = transfers.sum(axis=1) / transfers.sum()
    assert keyed_routes(task_routing(transfers), output, replicas, onto) == pytest.approx(by_hand)
