"""The fluid simulation of a dataflow on machines: closed forms, conservation, and pauses."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bench.scale_out.dataflow import (
    Change,
    FluidFlow,
    FluidOperator,
    FluidRun,
    fair_shares,
    run,
)
from tailrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def row(*operators: FluidOperator, cores: float = 100.0, remote_ms: float = 0.0) -> FluidFlow:
    names = [operator.name for operator in operators]
    edges = dict.fromkeys(pairwise(names), 1.0)
    return FluidFlow(operators, edges, cores, remote_ms)


def settled(seen: FluidRun) -> float:
    return float(seen.throughput_per_s[-5:].mean())


SOURCE = FluidOperator("source", 1_000, offered_per_s=300)


def test_a_row_runs_at_the_speed_of_its_slowest_operator() -> None:
    flow = row(SOURCE, FluidOperator("slow", 50), FluidOperator("sink", 500))
    seen = run(flow, {"m": ["source", "slow", "slow", "slow", "sink"]}, 20)
    assert settled(seen) == pytest.approx(150)
    assert seen.input_per_s[-1] == pytest.approx([300, 300, 150])
    assert seen.busy[-1] == pytest.approx([0.3, 1.0, 0.3])
    assert seen.queued[1] == pytest.approx(20 * 150, rel=0.02)


def test_a_flow_that_keeps_up_passes_on_what_comes_by_selectivity_and_share() -> None:
    operators = (
        SOURCE,
        FluidOperator("filter", 1_000, emits=0.5),
        FluidOperator("left", 1_000),
        FluidOperator("right", 1_000, emits=3.0),
    )
    edges = {("source", "filter"): 1.0, ("filter", "left"): 0.2, ("filter", "right"): 0.8}
    seen = run(FluidFlow(operators, edges, 4.0), {"m": [o.name for o in operators]}, 10)
    assert seen.processed_per_s[-1] == pytest.approx([300, 300, 30, 120])
    assert seen.emitted_per_s[-1] == pytest.approx([300, 150, 30, 360])
    assert settled(seen) == pytest.approx(150)


def test_instances_share_the_cores_of_their_machine() -> None:
    flow = row(FluidOperator("only", 100, offered_per_s=1_000), cores=1.5)
    assert settled(run(flow, {"m": ["only"]}, 10)) == pytest.approx(100)
    assert settled(run(flow, {"m": ["only"] * 4}, 10)) == pytest.approx(150)
    assert settled(run(flow, {"m": ["only"] * 2, "n": ["only"] * 2}, 10)) == pytest.approx(300)


def test_one_that_mostly_waits_leaves_its_core_to_others() -> None:
    flow = row(FluidOperator("only", 100, core=0.25, offered_per_s=1_000), cores=1.0)
    assert settled(run(flow, {"m": ["only"] * 4}, 10)) == pytest.approx(400)
    assert settled(run(flow, {"m": ["only"] * 8}, 10)) == pytest.approx(400)


def test_an_instance_on_a_crowded_machine_is_not_helped_by_the_others() -> None:
    flow = FluidFlow(
        (
            FluidOperator("mine", 100, offered_per_s=150),
            FluidOperator("hog", 100, offered_per_s=1_000),
        ),
        {},
        cores=1.0,
    )
    seen = run(flow, {"m": ["mine", "hog"], "n": ["mine"]}, 20)
    # Each instance gets 75/s; beside the hog only half a core, which is 50/s, is left.
    assert seen.processed_per_s[-1] == pytest.approx([50 + 75, 50])
    assert seen.busy[-1] == pytest.approx([(1 + 0.75) / 2, 1])


def test_sending_to_another_machine_costs_the_sender_and_to_its_own_does_not() -> None:
    flow = row(
        FluidOperator("sender", 100, offered_per_s=1_000), FluidOperator("sink", 900), remote_ms=10
    )
    assert settled(run(flow, {"m": ["sender", "sink"]}, 10)) == pytest.approx(100)
    assert settled(run(flow, {"m": ["sender"], "n": ["sink"]}, 10)) == pytest.approx(50)
    half = {"m": ["sender", "sink"], "n": ["sink"]}
    assert settled(run(flow, half, 10)) == pytest.approx(1 / 0.015)


def test_new_instances_run_after_the_pause_and_nothing_else_stops() -> None:
    flow = row(SOURCE, FluidOperator("slow", 50), FluidOperator("sink", 500))
    change = Change(10, 5, [("slow", None, "n"), ("slow", None, "n")])
    seen = run(flow, {"m": ["source", "slow", "sink"]}, 40, change)
    assert seen.throughput_per_s[5:15] == pytest.approx([50] * 10)
    assert seen.throughput_per_s[17:] == pytest.approx([150] * 23)


def test_no_record_waits_for_a_new_instance_that_does_not_run_yet() -> None:
    flow = row(SOURCE, FluidOperator("quick", 400), FluidOperator("sink", 500))
    change = Change(10, 5, [("quick", None, "n")])
    seen = run(flow, {"m": ["source", "quick", "sink"]}, 30, change)
    assert seen.throughput_per_s[2:] == pytest.approx([300] * 28)


def test_what_moves_stops_for_the_pause_and_takes_its_queue_along() -> None:
    flow = row(SOURCE, FluidOperator("slow", 200), FluidOperator("sink", 500))
    change = Change(10, 5, [("slow", "m", "n")])
    seen = run(flow, {"m": ["source", "slow", "sink"]}, 40, change)
    assert seen.throughput_per_s[11:15] == pytest.approx([0] * 4, abs=1e-9)
    assert seen.throughput_per_s[17:] == pytest.approx([200] * 23)
    assert seen.queued[1] == pytest.approx(40 * 300 - 35 * 200, rel=0.02)
    part = run(flow, {"m": ["source", "slow", "sink"], "n": ["slow"]}, 14, change)
    assert part.throughput_per_s[12:] == pytest.approx([150] * 2)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(5, 500), st.floats(0.1, 1), st.floats(0, 2), st.floats(0, 300)),
        min_size=1,
        max_size=4,
    ),
    st.floats(0.3, 4),
    st.integers(1, 3),
    st.data(),
)
def test_no_record_is_lost_or_made_on_the_way(
    given_operators: list[tuple[float, float, float, float]],
    cores: float,
    machines: int,
    data: st.DataObject,
) -> None:
    operators = tuple(FluidOperator(f"o{i}", *rest) for i, rest in enumerate(given_operators))
    here: dict[str, list[str]] = {f"m{number}": [] for number in range(machines)}
    names = st.sampled_from(sorted(here))
    homes = {operator.name: data.draw(names) for operator in operators}
    for name, home in homes.items():
        here[home].append(name)
    moves = [(name, home, data.draw(names)) for name, home in homes.items()]
    flow = row(*operators, cores=cores, remote_ms=1.0)
    seen = run(flow, here, 6, Change(2.0, 1.5, moves))
    came, went = seen.input_per_s.sum(0), seen.processed_per_s.sum(0)
    assert came - went == pytest.approx(seen.queued, abs=1e-6)
    assert (seen.queued >= -1e-9).all()
    assert ((seen.busy >= 0) & (seen.busy <= 1 + 1e-9)).all()
    used = went * [operator.core / operator.service_per_s for operator in operators]
    assert used.sum() <= cores * machines * 6 + 1e-6


# --- fair shares ------------------------------------------------------------------------------


def filled(wanted: list[float], counts: list[int], cores: float) -> list[float]:
    """By bisection on the level that nobody gets more than."""
    if sum(wanted) <= cores:
        return wanted
    low, high = 0.0, cores
    for _ in range(200):
        level = (low + high) / 2
        taken = sum(min(w, n * level) for w, n in zip(wanted, counts, strict=True))
        low, high = (level, high) if taken < cores else (low, level)
    return [min(w, n * low) for w, n in zip(wanted, counts, strict=True)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), min_size=1, max_size=6),
    st.floats(0.1, 6),
)
def test_cores_are_filled_up_to_one_level(groups: list[tuple[int, float]], cores: float) -> None:
    counts = [count for count, _ in groups]
    wanted = [count * each for count, each in groups]
    found = fair_shares(np.array([wanted]).T, np.array([counts], dtype=float).T, cores)
    assert found[:, 0] == pytest.approx(filled(wanted, counts, cores), abs=1e-9)


@given(hnp.arrays(float, (3, 4), elements=st.floats(0, 1)))
def test_machines_do_not_share_with_each_other(wanted: NDArray[np.float64]) -> None:
    together = fair_shares(wanted, np.ones((3, 4)), 1.0)
    for column in range(4):
        alone = fair_shares(wanted[:, [column]], np.ones((3, 1)), 1.0)
        assert together[:, column] == pytest.approx(alone[:, 0])


# --- what is refused --------------------------------------------------------------------------


def moved(*moves: tuple[str, str | None, str]) -> FluidRun:
    return run(row(SOURCE), {"m": ["source"]}, 1, Change(0, 1, moves))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: FluidOperator("a", 0), "service rate above 0"),
        (lambda: FluidOperator("a", 1, core=1.5), "up to 1"),
        (lambda: row(SOURCE, SOURCE), "unique names"),
        (lambda: FluidFlow((SOURCE,), {("source", "b"): 1.0}), "join two"),
        (lambda: row(SOURCE, cores=0), "more than 0 cores"),
        (lambda: run(row(SOURCE), {"m": []}, 1), "check source"),
        (lambda: run(row(SOURCE), {"m": ["source", "x"]}, 1), "check x"),
        (lambda: moved(("source", "n", "m")), "'source' left on n"),
        (lambda: moved(("source", "m", "n"), ("source", "m", "n")), "'source' left on m"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(wrong, said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()
