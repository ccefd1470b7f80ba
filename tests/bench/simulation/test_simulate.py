"""The simulation against closed forms, against Ciw, and against event loops in plain Python."""

from __future__ import annotations

import doctest
import heapq
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ciw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from bench.simulation import kernels, simulate
from bench.simulation.simulate import (
    Simulated,
    StageTasks,
    Station,
    Stream,
    Times,
    arrivals,
    gaps,
    hand_overs,
    micro_batches,
    network,
    queue,
    replicated,
    warm_up_of,
)
from tailrace.errors import InputError
from tailrace.load import Burst, Constant, generate
from tailrace.model.microbatch import BatchModel
from tailrace.model.realtime import Boundary, HandOverModel
from tailrace.profile.histogram import LogHistogram

Floats = NDArray[np.float64]
Pairs = list[tuple[float, float]]

EXPONENTIAL = Times.exponential
MANY = 1_500_000


def poisson(mean_ms: float = 1.0, records: int = MANY, seed: int = 4) -> Floats:
    return arrivals(EXPONENTIAL(mean_ms), records, seed)


def even(gap_ms: float, records: int) -> Floats:
    return np.arange(1.0, records + 1) * gap_ms


def station(name: str, service: Times | Floats, **settings: Any) -> Station:
    return Station(name=name, service=service, **settings)


# --- chance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "exact"),
    [
        (EXPONENTIAL(2.0), stats.expon(scale=2.0)),
        (Times.gamma(2.0, 0.5), stats.gamma(4, scale=0.5)),
        (Times.gamma(2.0, 1.5), stats.gamma(1 / 2.25, scale=4.5)),
        (Times.lognormal(2.0, 0.8), stats.lognorm(math.sqrt(math.log(1.64)), scale=2 / 1.64**0.5)),
    ],
)
def test_times_follow_their_distribution(times: Times, exact: Any) -> None:
    drawn = times.draw(400_000, 11)
    assert stats.kstest(drawn, exact.cdf).pvalue > 0.01
    assert times.cv == pytest.approx(exact.std() / exact.mean())
    assert stats.spearmanr(drawn[1:], drawn[:-1]).pvalue > 0.01


def test_exponential_times_go_on_beyond_the_layers_of_the_ziggurat() -> None:
    drawn = EXPONENTIAL(1.0).draw(4_000_000, 2)
    tail = drawn[drawn > 7.69711747013105] - 7.69711747013105
    assert len(tail) == pytest.approx(4e6 * math.exp(-7.69711747013105), rel=0.1)
    assert stats.kstest(tail, stats.expon().cdf).pvalue > 0.01


def test_measured_times_come_as_often_as_they_were_counted() -> None:
    histogram = LogHistogram.of([1.0] * 5 + [3.0] * 3 + [200.0])
    times = Times.empirical(histogram)
    values, counts = np.unique(times.draw(90_000, 1), return_counts=True)
    assert values == pytest.approx(histogram.values_ms)
    assert stats.chisquare(counts, [50_000, 30_000, 10_000]).pvalue > 0.01
    assert times.mean_ms == pytest.approx(214 / 9, rel=0.005)


def test_constant_times_and_gamma_times_without_variation_are_the_same() -> None:
    assert np.array_equal(Times.gamma(3.0, 0.0).draw(5, 1), Times.constant(3.0).draw(5, 2))


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def run(seed: int) -> Simulated:
        row = [
            station("a", Times.gamma(2.0, 0.7), tasks=4, shares=(1, 2, 3, 4), fan_out=1.5),
            station("b", Times.lognormal(0.3, 2.0), servers=2),
        ]
        return network(poisson(records=3_000, seed=seed), row, seed=seed)

    np.random.seed(1)  # noqa: NPY002 - the global state must not matter
    first = run(7)
    np.random.seed(2)  # noqa: NPY002
    assert np.array_equal(first.latencies_ms, run(7).latencies_ms)
    assert first.stations == run(7).stations
    assert first.mean_ms != run(8).mean_ms
    noisy = [
        micro_batches(even(1.0, 500), BatchModel(5, 0.1), 20.0, noise=0.3, seed=s)
        for s in (1, 1, 2)
    ]
    assert noisy[0].mean_ms == noisy[1].mean_ms != noisy[2].mean_ms


# --- one station: closed forms ------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_a_poisson_queue_with_exponential_service_has_exponential_latency(load: float) -> None:
    found = queue(poisson(), EXPONENTIAL(load), seed=9)
    exact = 1 / (1 / load - 1)
    assert found.mean_ms == pytest.approx(exact, rel=0.01 if load < 0.9 else 0.04)
    for quantile in (0.5, 0.95, 0.99):
        low, high = found.interval_ms(quantile, 0.999)
        assert low < -exact * math.log(1 - quantile) < high
        assert high - low < 0.3 * found.quantile_ms(quantile)
    (use,) = found.stations
    assert use.utilisation == use.busiest == pytest.approx(load, rel=0.01)
    assert use.wait_ms + use.service_ms == pytest.approx(found.mean_ms, rel=0.01)
    assert found.throughput_per_s == pytest.approx(1_000, rel=0.005)


def erlang_c(servers: int, offered: float) -> float:
    """The chance that a record has to wait."""
    terms = [offered**k / math.factorial(k) for k in range(servers + 1)]
    last = terms[-1] * servers / (servers - offered)
    return last / (sum(terms[:-1]) + last)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.8), (5, 0.7), (16, 0.9)])
def test_several_servers_keep_records_waiting_as_erlang_says(servers: int, load: float) -> None:
    offered = servers * load
    found = queue(poisson(), EXPONENTIAL(offered), servers=servers, seed=3)
    waits = erlang_c(servers, offered) * offered / (servers - offered)
    assert found.stations[0].wait_ms == pytest.approx(waits, rel=0.04)
    assert found.mean_ms == pytest.approx(waits + offered, rel=0.01)
    assert found.stations[0].utilisation == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize(
    "service", [Times.constant(0.8), Times.gamma(0.6, 2.0), Times.lognormal(0.7, 1.2)]
)
def test_the_wait_for_general_service_is_that_of_pollaczek_and_khinchine(service: Times) -> None:
    found = queue(poisson(records=2 * MANY), service, seed=5)
    rho = service.mean_ms
    exact = rho * (1 + service.cv**2) / 2 / (1 - rho) * service.mean_ms
    assert found.stations[0].wait_ms == pytest.approx(exact, rel=0.04)


def test_tasks_that_are_served_in_turn_wait_less_than_tasks_chosen_at_random() -> None:
    """In turn each of 4 tasks sees Erlang-4 gaps: its wait is ``s*b/(1 - s)``, where s solves
    ``s = (4/(4 + 4*(1 - s)/rho))**4``; at random it is a queue of its own."""
    rho, service = 0.8, EXPONENTIAL(3.2)
    root = 0.5
    for _ in range(200):
        root = (1 / (1 + (1 - root) / (4 * rho))) ** 4
    turn = network(poisson(), [station("a", service, tasks=4)], seed=1)
    chance = network(poisson(), [station("a", service, tasks=4, shares=(1, 1, 1, 1))], seed=1)
    assert turn.mean_ms == pytest.approx(3.2 / (1 - root), rel=0.02)
    assert chance.mean_ms == pytest.approx(3.2 / (1 - rho), rel=0.03)


def test_a_hot_key_shows_in_the_busiest_task() -> None:
    keys = np.random.default_rng(3).choice(3, 200_000, p=[0.5, 0.3, 0.2])
    come = poisson(records=200_000)
    hot = station("count", Times.constant(1.6), tasks=2, homes=(0, 1, 1))
    (use,) = network(come, [hot], keys=keys, seed=1).stations
    assert use.utilisation == pytest.approx(0.8, rel=0.01)
    assert use.busiest == pytest.approx(0.8, rel=0.01)
    (use,) = network(come, [replace(hot, homes=(0, 0, 1))], keys=keys, warm_up=0.0).stations
    assert use.busiest == pytest.approx(1.0, abs=0.01)


# --- networks: closed forms and Ciw ---------------------------------------------------------------


def test_a_row_of_queues_adds_up_to_an_erlang_distribution() -> None:
    """Each is an M/M/1 queue (Burke), and a record's times in them are independent (Reich)."""
    row = [station(name, EXPONENTIAL(0.7)) for name in "abc"]
    found = network(poisson(), row, seed=2)
    exact = stats.gamma(3, scale=1 / (1 / 0.7 - 1))
    assert found.mean_ms == pytest.approx(exact.mean(), rel=0.01)
    for quantile in (0.5, 0.95, 0.99):
        low, high = found.interval_ms(quantile, 0.999)
        assert low < exact.ppf(quantile) < high


def jackson(rates: dict[str, float], service_ms: dict[str, float]) -> float:
    """The mean time in the network, for an arrival a millisecond."""
    return sum(
        r * s / (1 - r * s) for r, s in zip(rates.values(), service_ms.values(), strict=True)
    )


def test_streams_that_split_and_meet_again_keep_the_product_form() -> None:
    stations = [
        station(n, EXPONENTIAL(s)) for n, s in (("a", 0.5), ("b", 1.0), ("c", 0.8), ("d", 0.7))
    ]
    streams = [
        Stream("source", "a"),
        Stream("a", "b", 0.6),
        Stream("a", "c", 0.3),
        Stream("b", "d"),
        Stream("c", "d", 0.5),
    ]
    found = network(poisson(), stations, streams, seed=6)
    rates = {"a": 1.0, "b": 0.6, "c": 0.3, "d": 0.75}
    exact = jackson(rates, {"a": 0.5, "b": 1.0, "c": 0.8, "d": 0.7})
    assert found.mean_ms == pytest.approx(exact, rel=0.01)
    for use in found.stations:
        assert use.records == pytest.approx(rates[use.name] * found.records, rel=0.01)


def ciw_latencies(
    gap_ms: float,
    service_ms: list[float],
    servers: list[int],
    routing: list[list[float]],
    **more: Any,
) -> Floats:
    """The latency of each customer on Ciw, in order of arrival."""
    ciw.seed(1)
    nodes = len(servers)
    simulation = ciw.Simulation(
        ciw.create_network(
            arrival_distributions=[ciw.dists.Exponential(1 / gap_ms), *[None] * (nodes - 1)],
            service_distributions=[ciw.dists.Exponential(1 / s) for s in service_ms],
            number_of_servers=servers,
            routing=routing,
            **more,
        )
    )
    simulation.simulate_until_max_customers(15_000, method="Finish")
    visits: dict[int, tuple[float, float]] = {}
    for visit in simulation.get_all_records():
        came, left = visits.get(visit.id_number, (math.inf, 0.0))
        visits[visit.id_number] = (min(came, visit.arrival_date), max(left, visit.exit_date))
    return np.array([left - came for came, left in sorted(visits.values())])


def agree(ours: Simulated, theirs: Floats) -> None:
    """Means and quantiles are no further apart than both intervals allow."""
    other = Simulated(np.arange(len(theirs), dtype=float), theirs, (), 0.0, 1_000)
    for quantile in (None, 0.5, 0.9):
        apart = abs(ours.statistic_ms(quantile) - other.statistic_ms(quantile))
        both = math.hypot(ours.half_width_ms(quantile, 0.99), other.half_width_ms(quantile, 0.99))
        assert apart < both
        assert both < 0.25 * ours.statistic_ms(quantile)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_networks_agree_with_ciw(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 5))
    routing = np.triu(rng.random((nodes, nodes)), 1)
    routing /= routing.sum(axis=1, keepdims=True) + rng.random((nodes, 1)) * 0.3 + 1e-9
    rates = np.linalg.solve(np.eye(nodes) - routing.T, np.eye(nodes)[0])
    servers = rng.integers(1, 4, nodes)
    service_ms = rng.uniform(0.3, 0.75, nodes) * servers / rates
    names = [f"node {n}" for n in range(nodes)]
    stations = [
        station(name, EXPONENTIAL(float(ms)), servers=int(c))
        for name, ms, c in zip(names, service_ms, servers, strict=True)
    ]
    streams = [
        Stream(names[a], names[b], float(routing[a, b]))
        for a in range(nodes)
        for b in range(a + 1, nodes)
    ]
    ours = network(poisson(records=300_000), stations, [Stream("source", names[0]), *streams])
    theirs = ciw_latencies(1.0, service_ms.tolist(), servers.tolist(), routing.tolist())
    agree(ours, theirs)


def test_a_full_station_holds_up_the_one_before_it_as_in_ciw() -> None:
    row = [station("a", EXPONENTIAL(0.5)), station("b", EXPONENTIAL(0.6), buffer=2)]
    ours = network(poisson(records=300_000), row, seed=1)
    theirs = ciw_latencies(
        1.0, [0.5, 0.6], [1, 1], [[0.0, 1.0], [0.0, 0.0]], queue_capacities=[math.inf, 1]
    )
    agree(ours, theirs)
    assert ours.stations[0].blocked_ms > 0
    free = network(poisson(records=300_000), [row[0], replace(row[1], buffer=None)], seed=1)
    assert free.mean_ms < ours.mean_ms


# --- stations: an event loop in plain Python ----------------------------------------------------


class Reference:
    """Stations in a row, event by event: per station who left when, and when services started.

    Tasks are taken in turn. A server whose record finds no room in the next station keeps it.
    """

    def __init__(self, come: Floats, row: list[Station], services: list[Floats]) -> None:
        self.row, self.services = row, services
        self.queues: list[list[list[tuple[int, int]]]] = [[[] for _ in range(s.tasks)] for s in row]
        self.free = [[s.servers] * s.tasks for s in row]
        self.came, self.holds = [0] * len(row), [0] * len(row)
        self.stuck: list[list[tuple[int, int]]] = [[] for _ in row]
        self.starts = [np.full(len(come), math.nan) for _ in row]
        self.left: list[list[tuple[float, int]]] = [[] for _ in row]
        self.outside: list[int] = []
        self.events = [(float(time), i, "comes", 0, i, 0) for i, time in enumerate(come)]
        for k, each in enumerate(row):
            self.events += [(end, -1, "resumes", k, -1, 0) for _, end in each.pauses]
        heapq.heapify(self.events)
        while self.events:
            self.step(*heapq.heappop(self.events))

    def step(self, now: float, _: int, what: str, k: int, record: int, task: int) -> None:
        if what == "comes":
            self.outside.append(record)
            if self.has_room(0):
                self.enter(0, self.outside.pop(0), now)
        elif what == "resumes":
            for number in range(self.row[k].tasks):
                self.begin(k, number, now)
        elif self.has_room(k + 1):
            self.release(k, record, task, now)
        else:
            self.stuck[k].append((record, task))

    def has_room(self, k: int) -> bool:
        room = None if k == len(self.row) else self.row[k].buffer
        return room is None or self.holds[k] < room

    def enter(self, k: int, record: int, now: float) -> None:
        task = self.came[k] % self.row[k].tasks
        self.queues[k][task].append((record, self.came[k]))
        self.came[k] += 1
        self.holds[k] += 1
        self.begin(k, task, now)

    def begin(self, k: int, task: int, now: float) -> None:
        paused = any(a <= now < b for a, b in self.row[k].pauses)
        while self.queues[k][task] and self.free[k][task] and not paused:
            record, place = self.queues[k][task].pop(0)
            self.free[k][task] -= 1
            self.starts[k][place] = now
            done = now + float(self.services[k][place])
            heapq.heappush(
                self.events, (done, len(self.starts[0]) + place, "done", k, record, task)
            )

    def release(self, k: int, record: int, task: int, now: float) -> None:
        self.holds[k] -= 1
        self.free[k][task] += 1
        self.left[k].append((now, record))
        if k + 1 < len(self.row):
            self.enter(k + 1, record, now)
        self.begin(k, task, now)
        if k > 0 and self.stuck[k - 1] and self.has_room(k):
            self.release(k - 1, *self.stuck[k - 1].pop(0), now)
        if k == 0 and self.outside and self.has_room(0):
            self.enter(0, self.outside.pop(0), now)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_stations_do_what_an_event_loop_does(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    count = data.draw(st.integers(1, 60))
    come = np.cumsum(rng.exponential(1.0, count))
    buffered = data.draw(st.booleans())
    row, services = [], []
    for name in "abc"[: data.draw(st.integers(1, 3))]:
        tasks, servers = (
            (1, 1) if buffered else data.draw(st.sampled_from([(1, 1), (3, 1), (2, 2)]))
        )
        begins = np.sort(rng.uniform(0, count, data.draw(st.integers(0, 3))))
        pauses = [(float(b), float(b + rng.exponential(4))) for b in begins]
        merged = [p for n, p in enumerate(pauses) if n == 0 or p[0] > pauses[n - 1][1]]
        buffer = data.draw(st.none() | st.integers(1, 5)) if buffered else None
        services.append(rng.exponential(0.8 * tasks * servers, count))
        row.append(
            station(name, services[-1], tasks=tasks, servers=servers, pauses=merged, buffer=buffer)
        )
    found = network(come, row, warm_up=0.0)
    exact = Reference(come, row, services)
    expected = np.empty(count)
    for time, record in exact.left[-1]:
        expected[record] = time - come[record]
    assert found.latencies_ms == pytest.approx(expected)
    enters = come
    for use, gone, began, served in zip(
        found.stations, exact.left, exact.starts, services, strict=True
    ):
        assert use.wait_ms == pytest.approx(np.mean(began - enters), abs=1e-9)
        assert use.service_ms == pytest.approx(served.mean())
        enters = np.array([time for time, _ in gone])


def test_a_single_station_with_a_buffer_says_how_long_records_were_kept_out() -> None:
    come, service = np.array([0.0, 0.0, 0.0, 0.0, 50.0]), np.array([10.0, 10.0, 10.0, 10.0, 1.0])
    found = queue(come, service, buffer=2, warm_up=0.0)
    assert found.latencies_ms.tolist() == [10, 20, 30, 40, 1]
    assert found.stations[0].blocked_ms == pytest.approx((10 + 20) / 5)
    assert queue(come, service, buffer=9, warm_up=0.0).stations[0].blocked_ms == 0
    pair = queue(come, service, servers=2, buffer=2, warm_up=0.0)
    assert pair.latencies_ms.tolist() == [10, 10, 20, 20, 1]
    assert pair.stations[0].blocked_ms == pytest.approx((10 + 10) / 5)


def test_after_a_pause_the_backlog_drains_at_what_is_left_of_the_capacity() -> None:
    """``P*rho/(1 - rho)`` after the pause all is as before, and the first to meet it waits P."""
    come = even(1.0, 10_000)
    found = queue(come, Times.constant(0.75), pauses=[(2_000.5, 2_500.5)], warm_up=0.0)
    assert found.latencies_ms.max() == pytest.approx(500.25)
    late = come[found.latencies_ms > 0.75 + 1e-9]
    assert late[0] == 2_001
    assert late[-1] == pytest.approx(2_500.5 + 500 * 0.75 / 0.25, abs=4)
    windows = found.windows(1_000.0)
    assert [w.start_ms for w in windows] == [1_000.0 * n for n in range(11)]
    assert windows[1].p99_ms == windows[5].mean_ms == pytest.approx(0.75)
    assert windows[2].mean_ms > windows[3].mean_ms > windows[4].mean_ms == pytest.approx(0.75)
    assert sum(w.records for w in windows) == found.records


def test_pauses_may_overlap_and_come_in_any_order() -> None:
    come, service = np.array([0.0, 1.0, 6.0]), Times.constant(0.5)
    once = queue(come, service, pauses=[(0.5, 4.0)], warm_up=0.0)
    twice = queue(come, service, pauses=[(2.0, 4.0), (0.5, 3.0), (5.0, 5.0)], warm_up=0.0)
    assert once.latencies_ms.tolist() == twice.latencies_ms.tolist() == [0.5, 3.5, 0.5]


# --- windows, copies, streams -------------------------------------------------------------------


def test_a_record_waits_for_its_window_to_fill() -> None:
    """Record i of C waits for C - i more: ``(C - 1)/(2*lambda)`` on average (Cooper 2020)."""
    row = [station("count", Times.constant(0.0), window=10), station("use", Times.constant(0.25))]
    found = network(even(1.0, 10_005), row, warm_up=0.0)
    assert found.mean_ms == pytest.approx(9 / 2 + 0.25)
    assert found.latencies_ms[:10] == pytest.approx(np.arange(9.25, 0, -1))
    assert np.isnan(found.latencies_ms[-5:]).all()
    assert found.records == 10_000
    assert found.stations[1].records == 1_000


def test_each_task_has_windows_of_its_own() -> None:
    row = [station("count", Times.constant(0.0), tasks=2, homes=(0, 1), window=2)]
    found = network(even(1.0, 6), row, keys=np.array([0, 0, 1, 0, 1, 0]), warm_up=0.0)
    assert found.latencies_ms.tolist() == [1, 0, 2, 2, 0, 0]


def test_a_record_is_done_with_the_last_of_its_copies() -> None:
    row = [station("copy", Times.constant(0.0), fan_out=3), station("work", Times.constant(1.0))]
    come = np.array([0.0, 10.0])
    assert network(come, row, warm_up=0.0).latencies_ms.tolist() == [3, 3]
    every = network(come, row, counted="result", warm_up=0.0)
    assert every.latencies_ms.tolist() == [1, 2, 3, 1, 2, 3]
    assert every.arrivals_ms.tolist() == [0, 0, 0, 10, 10, 10]


def test_a_fraction_of_a_copy_is_drawn_and_a_record_without_any_has_no_result() -> None:
    row = [station("keep", Times.constant(0.0), fan_out=0.3), station("work", Times.constant(0.5))]
    found = network(even(1.0, 50_000), row, seed=3)
    assert found.stations[1].records == found.records
    assert found.records / (50_000 - found.skipped) == pytest.approx(0.3, abs=0.01)
    assert found.mean_ms == pytest.approx(0.5)
    assert found.throughput_per_s == pytest.approx(300, rel=0.03)
    none = network(even(1.0, 50), [replace(row[0], fan_out=0.0)])
    assert none.records == none.throughput_per_s == 0
    assert math.isnan(none.mean_ms)
    assert math.isnan(none.p99_ms)


def test_a_broadcast_reaches_every_stream_and_the_slowest_decides() -> None:
    stations = [
        station("copy", Times.constant(1.0), broadcast=True),
        station("fast", Times.constant(1.0)),
        station("slow", Times.constant(5.0)),
    ]
    streams = [Stream("source", "copy"), Stream("copy", "fast"), Stream("copy", "slow")]
    found = network(even(10.0, 100), stations, streams)
    assert found.latencies_ms == pytest.approx(np.full(100, 6.0))
    every = network(even(10.0, 100), stations, streams, counted="result")
    assert every.mean_ms == pytest.approx(4.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_windows_and_copies_over_tasks_end_where_following_each_record_leads(
    seed: int, window: int, fan_out: int, tasks: int
) -> None:
    rng = np.random.default_rng(seed)
    come = np.cumsum(rng.exponential(1.0, 40))
    services = rng.exponential(0.5 * tasks, 40)
    first = station("a", services, tasks=tasks, window=window, fan_out=fan_out)
    found = network(come, [first, station("b", Times.constant(0.1))], warm_up=0.0)
    exact = Reference(come, [replace(first, window=1, fan_out=1.0)], [services])
    open_windows: dict[int, list[int]] = {}
    expected, free = np.full(40, math.nan), 0.0
    for time, record in exact.left[0]:
        held = open_windows.setdefault(record % tasks, [])
        held.append(record)
        if len(held) == window:
            for _ in range(fan_out):
                free = max(free, time) + 0.1
            expected[held] = free - come[held]
            held.clear()
    assert found.latencies_ms == pytest.approx(expected, nan_ok=True)


# --- micro-batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [0.0, 200.0, 1_000.0])
@pytest.mark.parametrize("rate_per_s", [200, 2_000, 8_000])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_cycle_of_micro_batches_is_that_of_the_model(
    interval_ms: float, rate_per_s: float, aligned: bool
) -> None:
    model = BatchModel(60.0, 0.1)
    come = even(1_000 / rate_per_s, 400_000) - 500 / rate_per_s
    found = micro_batches(come, model, interval_ms, poll_ms=0.0, aligned=aligned, warm_up=0.2)
    cycle_ms = model.cycle_ms(interval_ms, rate_per_s)
    busy_ms = model.duration_ms(rate_per_s * cycle_ms / 1_000)
    assert found.mean_ms == pytest.approx(cycle_ms / 2 + busy_ms, rel=0.01)
    assert found.quantile_ms(0.9) == pytest.approx(
        0.9 * cycle_ms + busy_ms, rel=0.01, abs=500 / rate_per_s
    )
    assert found.stations[0].utilisation == pytest.approx(busy_ms / cycle_ms, rel=0.02)
    assert found.throughput_per_s == pytest.approx(rate_per_s, rel=0.03)


def test_random_cycles_are_felt_by_the_second_moment() -> None:
    """A record meets a long cycle more often: ``E[C**2]/(2*E[C])``, and then that batch."""
    found = micro_batches(even(0.5, 2_000_000), BatchModel(50.0, 0.0), 0.0, noise=0.8, seed=3)
    assert found.batches is not None
    cycles = np.diff(found.batches.cuts_ms)
    assert cycles.mean() == pytest.approx(50.0, rel=0.02)
    assert cycles.std() / cycles.mean() == pytest.approx(0.8, rel=0.05)
    waits = np.mean(cycles**2) / (2 * cycles.mean())
    assert found.mean_ms == pytest.approx(waits + 50.0, rel=0.02)


def test_skewed_partitions_make_the_batch_as_long_as_its_makespan() -> None:
    """Tasks of 10 + 6, 10 + 3 and 10 + 1 on two slots: the third follows the second, 24 ms."""
    stage = StageTasks((0.6, 0.3, 0.1), per_record_ms=0.1, task_ms=10.0)
    half = StageTasks((1.0,), per_record_ms=0.2, selectivity=0.5)
    come = np.zeros(100)
    found = micro_batches(come, BatchModel(5.0, 0.0), 0.0, stages=[stage, half], slots=2)
    assert found.latencies_ms == pytest.approx(np.full(100, 5 + 24 + 10))
    wide = micro_batches(come, BatchModel(5.0, 0.0), 0.0, stages=[stage, half], slots=3)
    assert wide.latencies_ms == pytest.approx(np.full(100, 5 + 16 + 10))


def batches_by_the_clock(
    due: list[int],
    model: BatchModel,
    interval: int,
    *,
    poll: int,
    most: int,
    aligned: bool,
    pauses: Pairs,
) -> list[float]:
    """Look at the query at every millisecond; the end of the batch of each record."""
    ends: list[float] = []
    now, busy_until, next_look = 0, 0.0, 0
    while len(ends) < len(due):
        paused = any(a <= now < b for a, b in pauses)
        if now >= busy_until and now >= next_look and not paused:
            there = [t for t in due[len(ends) :] if t <= now][:most]
            if there:
                busy_until = now + model.duration_ms(len(there))
                ends += [busy_until] * len(there)
            wait = interval or (0 if there else poll)
            next_look = (now // interval + 1) * interval if aligned and interval else now + wait
        now += 1
    return ends


dues = st.lists(st.integers(0, 120), min_size=1, max_size=40).map(sorted)
marks = st.lists(st.integers(0, 150), max_size=4, unique=True).map(sorted)
stops = marks.map(lambda m: [(float(a), float(b)) for a, b in zip(m[::2], m[1::2], strict=False)])
costs = st.tuples(st.integers(1, 20), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(dues, costs, st.integers(0, 25), stops, st.data())
def test_micro_batches_are_those_of_a_clock_that_ticks(
    due: list[int], cost: tuple[int, int], interval: int, pauses: Pairs, data: st.DataObject
) -> None:
    poll, most = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 50))
    aligned = data.draw(st.booleans())
    model, come = BatchModel(*cost), np.array(due, dtype=np.float64)
    found = micro_batches(
        come,
        model,
        interval,
        poll_ms=poll,
        most=most,
        aligned=aligned,
        pauses=pauses,
        warm_up=0.0,
    )
    ends = batches_by_the_clock(
        due, model, interval, poll=poll, most=most, aligned=aligned, pauses=pauses
    )
    assert (come + found.latencies_ms).tolist() == ends


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), min_size=1, max_size=30),
    st.none() | st.integers(1, 12),
    st.integers(0, 30),
)
def test_an_arrival_that_stands_for_many_is_like_as_many_arrivals(
    groups: list[tuple[int, int]], most: int | None, interval: int
) -> None:
    groups = sorted([*groups, (100, 1)])
    come = np.array([t for t, _ in groups], dtype=np.float64)
    counts = np.array([n for _, n in groups])
    model = BatchModel(7.0, 0.5)
    whole = micro_batches(come, model, interval, most=most, counts=counts, warm_up=0.0)
    each = micro_batches(np.repeat(come, counts), model, interval, most=most, warm_up=0.0)
    assert whole.weights is not None
    assert np.repeat(whole.latencies_ms, whole.weights.astype(int)).tolist() == (
        each.latencies_ms.tolist()
    )
    assert whole.records == each.records == counts.sum()
    assert whole.mean_ms == pytest.approx(each.mean_ms)
    for quantile in (0.25, 0.5, 0.95, 1.0):
        assert whole.quantile_ms(quantile) == each.quantile_ms(quantile)
    assert whole.stations[0].wait_ms == pytest.approx(each.stations[0].wait_ms)
    a, b = whole.windows(50.0), each.windows(50.0)
    assert [w.records for w in a if w.records] == [w.records for w in b if w.records]


def test_a_burst_and_its_backlog_show_in_the_windows_of_a_trace() -> None:
    trace = generate(Burst("500/s", "4 k/s", "10 s", "5 s", "60 s"), seed=1)
    come = trace.due_us / 1e3
    model = BatchModel(100.0, 0.4)
    found = micro_batches(come, model, 200.0, most=2_000, warm_up=0.0)
    peak = max(found.windows(1_000.0), key=lambda w: w.mean_ms)
    calm = model.latency_ms(200.0, 500.0, 1e9, None)
    assert peak.mean_ms > 5 * calm
    assert found.windows(1_000.0)[-1].mean_ms == pytest.approx(calm, rel=0.05)


# --- hand-overs ---------------------------------------------------------------------------------


def hand_overs_by_the_clock(
    due: list[int], model: HandOverModel, lifetime: int, window: int, pauses: Pairs
) -> tuple[list[float], list[float]]:
    """Look at the open batch at every millisecond; when that of each record went and ended."""
    cuts: list[float] = []
    ends: list[float] = []
    back: list[float] = []
    held, opened, entered, now, closed = 0, 0, 0, 0, False
    while len(ends) < len(due):
        paused = any(a <= now < b for a, b in pauses)
        closed, goes = closed or (paused and held > 0), True
        while goes:
            enters = not (paused or closed)
            while enters and held < model.most and entered < len(due) and due[entered] <= now:
                opened = now if held == 0 else opened
                held, entered = held + 1, entered + 1
            ready = now >= opened + lifetime or held == model.most or closed
            goes = held > 0 and ready and sum(end > now for end in back) < window
            if goes:
                back.append(max([now, *back[-1:]]) + model.service_ms(held))
                cuts += [now] * held
                ends += [back[-1]] * held
                held, closed = 0, False
        now += 1
    return cuts, ends


@settings(max_examples=150, deadline=None)
@given(dues, costs, st.integers(0, 25), stops, st.data())
def test_hand_overs_are_those_of_a_clock_that_ticks(
    due: list[int], cost: tuple[int, int], lifetime: int, pauses: Pairs, data: st.DataObject
) -> None:
    model = HandOverModel(*cost, data.draw(st.integers(1, 8)))
    window = data.draw(st.integers(1, 2))
    cuts, ends = hand_overs_by_the_clock(due, model, lifetime, window, pauses)
    come = np.array(due, dtype=np.float64)
    found = hand_overs(come, model, lifetime, window=window, pauses=pauses, warm_up=0.0)
    assert found.batches is not None
    assert np.repeat(found.batches.cuts_ms, found.batches.records).tolist() == cuts
    assert (come + found.latencies_ms).tolist() == ends
    assert found.batches.records.sum() == len(due)


@pytest.mark.parametrize("lifetime_ms", [0.0, 5.0])
@pytest.mark.parametrize("rate_per_s", [500, 50_000])
def test_hand_overs_follow_the_model_of_real_time_mode(
    lifetime_ms: float, rate_per_s: float
) -> None:
    model = HandOverModel(0.2, 0.005)
    come = poisson(1_000 / rate_per_s, 300_000)
    found, exact = hand_overs(come, model, lifetime_ms), model.latency(rate_per_s, lifetime_ms)
    assert found.mean_ms == pytest.approx(exact.mean_ms, rel=0.02)
    assert found.p99_ms == pytest.approx(exact.quantile_ms(0.99), rel=0.1)
    assert found.stations[0].utilisation == pytest.approx(
        rate_per_s / 1_000 * (0.2 / model.records(rate_per_s, lifetime_ms) + 0.005), rel=0.02
    )


def test_gaps_between_real_time_batches_add_what_arrives_in_them() -> None:
    """With little load and no lifetime, the mean grows by ``gap**2/2`` a batch."""
    boundary = Boundary(gap_ms=300.0, length_ms=4_700.0)
    come = even(1.0, 100_000)
    pauses = gaps(boundary, float(come[-1]))
    assert len(pauses) == 20
    assert pauses[1] == (9_700.0, 10_000.0)
    model = HandOverModel(0.01, 0.0001, 10_000)
    plain = hand_overs(come, model, 0.0, warm_up=0.0)
    found = hand_overs(come, model, 0.0, pauses=pauses, warm_up=0.0)
    assert found.mean_ms - plain.mean_ms == pytest.approx(300**2 / 2 / 5_000, rel=0.02)
    assert gaps(Boundary(0.0, 5_000.0), 1e6) == ()


# --- what is said of a run ------------------------------------------------------------------------


def test_confidence_intervals_hold_what_they_promise() -> None:
    """About 95 of 100 intervals should hold the truth; sections that remember lose a few."""
    exact = 1 / (1 / 0.5 - 1)
    hits = {None: 0, 0.95: 0}
    for seed in range(100):
        found = queue(poisson(records=60_000, seed=seed), EXPONENTIAL(0.5), seed=seed)
        for quantile in hits:
            low, high = found.interval_ms(quantile)
            truth = exact if quantile is None else -exact * math.log(1 - quantile)
            hits[quantile] += low < truth < high
    assert all(88 <= count <= 100 for count in hits.values()), hits


def test_replications_are_independent_runs_and_the_same_on_any_number_of_threads() -> None:
    def run(seed: int) -> Simulated:
        return queue(poisson(records=40_000, seed=seed), EXPONENTIAL(0.6), seed=seed)

    found = replicated(run, 12, seed=3)
    assert found.method == "independent replications"
    assert run(1).method == "batch means"
    assert len({part.mean_ms for part in found.replications}) == 12
    assert found.records == sum(part.records for part in found.replications)
    pooled = np.concatenate([p.latencies_ms[p.skipped :] for p in found.replications])
    assert found.mean_ms == pytest.approx(pooled.mean())
    low, high = found.interval_ms(level=0.99)
    assert low < 1.5 < high
    means = np.array([part.mean_ms for part in found.replications])
    half = stats.t.ppf(0.975, 11) * math.sqrt(((means - found.mean_ms) ** 2).sum() / 11 / 12)
    assert found.half_width_ms() == pytest.approx(half)
    assert found.stations[0].utilisation == pytest.approx(0.6, rel=0.02)
    threads = replicated(run, 12, seed=3, threads=2)
    assert np.array_equal(threads.latencies_ms, found.latencies_ms)
    windows = found.windows(10_000.0)
    assert sum(w.records for w in windows) == len(found.latencies_ms)


def test_replications_of_weighted_runs_keep_their_weights() -> None:
    counts = np.array([1, 9])

    def run(seed: int) -> Simulated:
        come = np.array([0.0, 5.0 + seed % 2])
        return micro_batches(come, BatchModel(1.0, 0.0), 10.0, counts=counts, warm_up=0.0)

    found = replicated(run, 4, seed=1)
    assert found.records == 40
    assert found.mean_ms == pytest.approx(np.mean([part.mean_ms for part in found.replications]))


def test_the_warm_up_ends_where_the_level_is_reached() -> None:
    rng = np.random.default_rng(1)
    rising = np.concatenate((np.linspace(50, 10, 3_000), np.full(20_000, 10.0)))
    cut = warm_up_of(rising + rng.normal(0, 1, len(rising)))
    assert 2_500 <= cut <= 3_300
    assert warm_up_of(np.full(10_000, 3.0)) == 0
    assert warm_up_of(np.arange(40.0)) == 0
    missing = np.where(np.arange(len(rising)) % 3 == 0, rising, math.nan)
    assert 2_500 <= warm_up_of(missing) <= 3_300
    assert warm_up_of(np.full(1_000, math.nan)) == 0


def test_the_warm_up_is_left_out_of_everything_but_the_windows() -> None:
    come = even(1.0, 1_000)
    service = np.where(come <= 100, 0.9, 0.1)
    found = queue(come, service, warm_up=0.1)
    assert found.skipped == 100
    assert found.mean_ms == pytest.approx(0.1)
    assert found.stations[0].service_ms == pytest.approx(0.1)
    assert found.stations[0].utilisation == pytest.approx(0.1, rel=0.01)
    assert found.windows(100.0)[0].mean_ms == pytest.approx(0.9)


def test_too_few_records_give_an_infinite_interval() -> None:
    assert queue(even(1.0, 20), EXPONENTIAL(0.5)).half_width_ms() == math.inf


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_the_smallest_latency_that_enough_records_do_not_exceed(
    values: list[float], quantile: float
) -> None:
    found = Simulated(np.arange(float(len(values))), np.array(values), (), 0.0)
    at = found.quantile_ms(quantile)
    shares = [np.mean(np.array(values) <= value) for value in sorted(values)]
    assert at == next(
        v for v, s in zip(sorted(values), shares, strict=True) if s >= quantile - 1e-9
    )


# --- what is refused ----------------------------------------------------------------------------

TWO = np.array([0.0, 1.0])
ONE = Times.constant(1.0)
ROW = [station("a", ONE), station("b", ONE)]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: Times.gamma(-1.0, 1.0), "Times with a mean of -1.0 ms and a variation of 1.0"),
        (lambda: Times.empirical(LogHistogram()), r"Shares of \[\] cannot be drawn from"),
        (lambda: arrivals(ONE, 3, -1), "A seed of -1 is impossible"),
        (lambda: queue(np.array([]), ONE), "There are no arrivals"),
        (lambda: queue(np.array([2.0, 1.0]), ONE), "times that never go back"),
        (lambda: queue(np.array([1.0, math.nan]), ONE), "finite times"),
        (lambda: queue(TWO, np.array([1.0])), "serves 2 records and was given 1 service times"),
        (lambda: queue(TWO, np.array([1.0, -1.0])), "a finite one from 0 up for each"),
        (lambda: queue(TWO, ONE, servers=0), "needs at least 1 task, server"),
        (lambda: queue(TWO, ONE, servers=3, buffer=2), "cannot hold 2 records"),
        (lambda: queue(TWO, ONE, pauses=[(3.0, 2.0)]), "A pause from 3.0 to 2.0 ms is impossible"),
        (lambda: queue(TWO, ONE, warm_up=1.0), "A warm-up of 1.0 is impossible"),
        (lambda: station("a", ONE, tasks=2, shares=(1,)), "has 2 tasks and 1 shares"),
        (lambda: station("a", ONE, tasks=2, shares=(0, 0)), "cannot be drawn from"),
        (lambda: station("a", ONE, tasks=2, homes=(0, 2)), "not one of its 2 tasks"),
        (lambda: station("a", ONE, tasks=1, shares=(1,), homes=(0,)), "has shares and homes"),
        (lambda: station("a", ONE, fan_out=-1), "a finite fan-out from 0 up"),
        (lambda: network(TWO, []), "stations with unique names"),
        (lambda: network(TWO, [ROW[0], ROW[0]]), "stations with unique names"),
        (lambda: network(TWO, ROW, [Stream("source", "a")]), "No stream leads to station 'b'"),
        (lambda: network(TWO, ROW, [Stream("b", "a")]), "from 'b' to 'a' does not lead"),
        (lambda: network(TWO, ROW, [Stream("x", "a")]), "from 'x' to 'a' does not lead"),
        (
            lambda: network(TWO, ROW, [Stream("source", "a"), Stream("source", "b")]),
            r"streams from 'source' are \[1.0, 1.0\]",
        ),
        (
            lambda: network(TWO, ROW[:1], [Stream("source", "a", 0.5)]),
            r"from the source are \[0.5\]: make them add up to 1",
        ),
        (
            lambda: network(TWO, [ROW[0], replace(ROW[1], buffer=1, window=2)]),
            "'b' cannot be simulated with buffers",
        ),
        (
            lambda: network(TWO, [station("a", ONE, tasks=2, homes=(0,))]),
            "give the keys of records",
        ),
        (
            lambda: network(TWO, [station("a", ONE, tasks=2, homes=(0, 1))], keys=np.array([0, 2])),
            "A key is outside of the 2 homes of station 'a'",
        ),
        (lambda: network(TWO, ROW, keys=np.array([1])), "2 arrivals and 1 keys"),
        (lambda: StageTasks((), 1.0), "The stage StageTasks.* is impossible"),
        (lambda: micro_batches(TWO, BatchModel(1, 0), -1.0), "An interval, noise and a poll"),
        (lambda: micro_batches(TWO, BatchModel(1, 0), 1.0, most=0), "the most records of a batch"),
        (
            lambda: micro_batches(TWO, BatchModel(1, 0), 1.0, counts=np.array([0, 0])),
            "at least one record",
        ),
        (lambda: hand_overs(TWO, HandOverModel(1, 0), -1.0), "A lifetime of -1.0 ms"),
        (lambda: hand_overs(TWO, HandOverModel(1, 0), 1.0, window=0), "at least 1 hand-over"),
        (lambda: replicated(lambda seed: queue(TWO, ONE, seed=seed), 1), "1 replications on 1"),
        (lambda: queue(TWO, ONE).quantile_ms(1.5), "There is no quantile 1.5"),
        (lambda: queue(TWO, ONE).windows(0.0), "Windows of 0.0 ms are impossible"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_sentence(run: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        run()
    assert str(refused.value).endswith(".")


# --- the kernels --------------------------------------------------------------------------------


def test_compiled_kernels_are_kept_away_from_the_source() -> None:
    queue(TWO, ONE)
    assert not list(Path(kernels.__file__).parent.rglob("*.nb[ci]"))


def test_kernels_are_kept_in_the_cache_of_the_user_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels._cache_directory() == str(tmp_path / "tailrace" / "kernels")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernels._cache_directory() == ""

    @kernels.kernel
    def doubled(value: int) -> int:
        return 2 * value

    assert doubled(4) == 8
    assert not list(tmp_path.rglob("*.nb[ci]"))


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(simulate).failed == 0
    assert doctest.testmod(simulate).attempted > 0


def test_every_multiple_of_an_interval_is_looked_at_once() -> None:
    """Rounding neither skips a look nor repeats one, whatever the interval."""
    for interval in (0.1, 1 / 3, 0.7, 12.3):
        come = even(interval, 2_000)
        found = micro_batches(come, BatchModel(0.0, 0.0), interval, aligned=True, warm_up=0.0)
        assert found.batches is not None
        steps = [b - a for a, b in pairwise(found.batches.cuts_ms)]
        assert steps == pytest.approx([interval] * len(steps))
        assert found.latencies_ms.max() < 1e-6 + interval


def test_a_constant_rate_of_a_trace_is_a_constant_rate_of_arrivals() -> None:
    trace = generate(Constant("1 k/s", "20 s"), arrivals="even", seed=1)
    found = queue(trace.due_us / 1e3, Times.constant(0.4))
    assert found.mean_ms == pytest.approx(0.4)
    assert found.p99_ms == pytest.approx(0.4)
