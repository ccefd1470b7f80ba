from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.policy.scaling.rebalance import (
    Budget,
    SequenceBound,
    least_total,
    rebalance,
    resolve_bottlenecks,
    scale_reactively,
)
from tailrace.policy.scaling.waits import TaskLoad, WaitCurve, within
from tests.model.shared import shared

# --- loads ------------------------------------------------------------------------------------

GOLDEN = (
    TaskLoad("decode", 4, 5, 1.0, 0.5, 12.0, tasks=10, least=1, most=40, latency_ms=4.0),
    TaskLoad("detect", 10, 20, 1.2, 0.8, 9.0, tasks=20, least=1, most=60, latency_ms=10.0),
    TaskLoad("send", 1, 4, 1.0, 1.0, 0.5, tasks=4, least=1, most=20, latency_ms=1.0),
)


def busy(
    name: str, rho: float, tasks: int, most: int = 100, *, least: int = 1, latency_ms: float = 0.0
) -> TaskLoad:
    """A step whose tasks are so busy, with Poisson arrivals and exponential service of 1 ms."""
    return TaskLoad(name, 1.0, 1.0 / rho, 1.0, 1.0, None, tasks, least, most, latency_ms)


def drawn(names: str, most: int) -> st.SearchStrategy[tuple[TaskLoad, ...]]:
    """Steps of any kind, the tasks of each at most 94 % busy, with a range of tasks each."""
    one = st.tuples(
        st.floats(0.1, 50),
        st.floats(0.05, 0.94),
        st.floats(0, 2),
        st.floats(0, 2),
        st.none() | st.floats(0, 100),
        st.integers(1, most),
        st.integers(1, 3),
        st.integers(0, most - 3),
    )
    return st.tuples(*[one] * len(names)).map(
        lambda rows: tuple(
            TaskLoad(name, service, service / rho, ca, cs, waited, tasks, least, least + more)
            for name, (service, rho, ca, cs, waited, tasks, least, more) in zip(
                names, rows, strict=True
            )
        )
    )


def wait_ms(tasks: tuple[TaskLoad, ...], sizes: tuple[int, ...]) -> float:
    """The waits along a path by the queues themselves, not by their short form."""
    return math.fsum(
        shared(task.queue, size, task.tasks).mean_wait_ms
        for task, size in zip(tasks, sizes, strict=True)
    )


def floor_of(task: TaskLoad) -> int:
    sizes = range(task.least, task.most + 1)
    calm = (n for n in sizes if task.utilisation * task.tasks / n <= 0.9 + 1e-9)
    return next(calm, task.most)


def ranges(tasks: tuple[TaskLoad, ...]) -> list[range]:
    return [range(floor_of(task), task.most + 1) for task in tasks]


def between(tasks: tuple[TaskLoad, ...], share: float) -> float:
    """A budget from what the most tasks wait (share 0) to what the fewest do (share 1)."""
    best = wait_ms(tasks, tuple(task.most for task in tasks))
    return best + share**4 * (wait_ms(tasks, tuple(map(floor_of, tasks))) - best)


def a_budget(tasks: tuple[TaskLoad, ...], share: float) -> float:
    """One between the two, where the most tasks can keep up, and not just by rounding."""
    assume(all(task.most > task.curve.offered + 1e-6 for task in tasks))
    return between(tasks, share)


# --- the model --------------------------------------------------------------------------------


@given(drawn("a", 30), st.integers(1, 60))
def test_the_short_form_of_the_wait_is_that_of_the_shared_queue(
    tasks: tuple[TaskLoad, ...], size: int
) -> None:
    task = tasks[0]
    assume(abs(size - task.curve.offered) > 1e-6)
    assert task.curve.wait_ms(size) == pytest.approx(
        shared(task.queue, size, task.tasks).mean_wait_ms, rel=1e-6
    )


def test_the_fitting_factor_makes_the_model_give_the_measured_wait() -> None:
    for task, factor in zip(GOLDEN, (1.2, 0.8654, 1.5), strict=True):
        assert task.queue.correction == pytest.approx(factor, abs=1e-4)
        assert task.curve.wait_ms(task.tasks) == pytest.approx(task.waited_ms)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"waited_ms": 1e6}, 5.0),
        ({"waited_ms": 0.0}, 0.2),
        ({"waited_ms": None}, 1.0),
        ({"gap_ms": math.inf}, 1.0),
        ({"gap_ms": 3.0}, 1.0),
        ({"cv_arrivals": 0.0, "cv_service": 0.0}, 1.0),
    ],
)
def test_the_fitting_factor_is_clamped_and_one_where_nothing_can_be_learned(
    change: dict[str, Any], factor: float
) -> None:
    assert replace(GOLDEN[0], **change).queue.correction == factor


def test_a_step_without_arrivals_or_without_variation_makes_no_one_wait() -> None:
    assert replace(GOLDEN[0], gap_ms=math.inf).curve.wait_ms(1) == 0
    assert replace(GOLDEN[0], cv_arrivals=0.0, cv_service=0.0).curve.wait_ms(9) == 0


def test_with_no_more_tasks_than_work_the_wait_has_no_end_and_the_next_task_comes_first() -> None:
    curve = WaitCurve(10.0, 8.0)
    assert curve.wait_ms(8) == curve.saved_ms(8) == math.inf
    assert curve.wait_ms(9) == 10
    assert curve.saved_ms(9) == pytest.approx(curve.wait_ms(9) - curve.wait_ms(10))


@pytest.mark.parametrize("wrong", [{"gap_ms": 0.0}, {"least": 0}, {"least": 41}, {"tasks": 0}])
def test_a_step_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="decode"):
        replace(GOLDEN[0], **wrong)


# --- one path ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget_ms", "sizes"),
    [(20, (12, 18, 2)), (10, (16, 25, 3)), (5, (23, 40, 5))],
)
def test_the_golden_vector_of_the_specification(budget_ms: float, sizes: tuple[int, ...]) -> None:
    found = rebalance(GOLDEN, budget_ms)
    assert tuple(found.parallelism.values()) == sizes
    assert found.feasible
    assert found.wait_ms == pytest.approx(wait_ms(GOLDEN, sizes))
    joint = least_total([Budget(("decode", "detect", "send"), budget_ms)], GOLDEN)
    assert joint.parallelism == found.parallelism


def test_the_floors_of_the_golden_vector_are_at_most_nine_tenths_busy() -> None:
    assert [task.floor for task in GOLDEN] == [9, 12, 2]
    assert rebalance(GOLDEN, 20).wait_ms == pytest.approx(18.75, abs=0.005)


def test_a_budget_that_cannot_be_kept_gets_the_most_everywhere_and_an_alert() -> None:
    """Promise 13 of Lohrmann 2016: the most for all, and a report of what dominates."""
    found = rebalance(GOLDEN, 2)
    assert tuple(found.parallelism.values()) == (40, 60, 20)
    assert not found.feasible
    assert found.wait_ms == pytest.approx(wait_ms(GOLDEN, (40, 60, 20)))
    assert found.reason == (
        "Even with decode 40, detect 60, send 20 tasks, the most allowed, records wait 2.63 ms in "
        "all, above 2 ms, and longest at detect with 1.8 ms: allow decode 47, detect 85 tasks, or "
        "leave 2.63 ms for waiting."
    )


@settings(max_examples=100, deadline=None)
@given(drawn("abc", 30), st.floats(0.05, 0.95))
def test_what_the_alert_asks_for_would_do(tasks: tuple[TaskLoad, ...], share: float) -> None:
    budget_ms = share * wait_ms(tasks, tuple(task.most for task in tasks))
    assume(1e-6 < budget_ms < math.inf)
    said = rebalance(tasks, budget_ms).reason
    asked = said.split(": allow ")[1].split(" tasks")[0]
    allowed = {name: int(most) for name, most in map(str.split, asked.split(", "))}
    granted = tuple(replace(t, most=allowed.get(t.name, t.most)) for t in tasks)
    assert rebalance(granted, budget_ms * (1 + 1e-6)).feasible


def test_a_step_that_may_not_have_the_tasks_for_its_work_is_named_with_what_it_needs() -> None:
    found = rebalance((busy("a", 0.5, 4), busy("b", 0.9, 20, most=17)), 5)
    assert not found.feasible
    assert found.wait_ms == math.inf
    assert found.reason.startswith("Step b has work for 18 tasks and may have only 17")
    assert "allow b 2" in found.reason
    both = rebalance((busy("a", 0.5, 4), busy("b", 0.9, 20, most=17)), -5)
    assert both.reason.endswith("its records wait without end: allow b 20 tasks.")


def test_steps_that_alone_take_longer_than_the_bound_are_told_as_the_cause() -> None:
    """Promise 13 of Lohrmann 2016, where no number of tasks could help."""
    found = rebalance(GOLDEN, -1.0)
    assert not found.feasible
    assert found.reason.startswith("The steps alone take 15 ms, detect 10 ms of it")
    assert "loosen the bound until 2.63 ms are left" in found.reason


@settings(max_examples=150, deadline=None)
@given(drawn("abc", 12), st.floats(0, 1))
def test_one_path_gets_as_few_tasks_as_brute_force_finds(
    tasks: tuple[TaskLoad, ...], share: float
) -> None:
    """Promises 12 and 14 of Lohrmann 2016: the least sum, within limits and at most 90 % busy."""
    budget_ms = a_budget(tasks, share) * (1 + 1e-7)
    found = rebalance(tasks, budget_ms)
    sizes = tuple(found.parallelism.values())
    kept = [s for s in product(*ranges(tasks)) if wait_ms(tasks, s) <= budget_ms]
    least = min(map(sum, kept))
    assert found.feasible
    assert sum(sizes) == least
    assert sizes in kept
    # Of all with as few tasks, it waits the least.
    best = min(wait_ms(tasks, s) for s in kept if sum(s) == least)
    assert found.wait_ms == pytest.approx(best, rel=1e-9, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(drawn("abcd", 40), st.floats(0, 1), st.floats(1, 10))
def test_a_looser_budget_never_takes_more_tasks(
    tasks: tuple[TaskLoad, ...], share: float, looser: float
) -> None:
    """Promise 19 of Lohrmann 2016."""
    budget_ms = a_budget(tasks, share)
    tight, loose = rebalance(tasks, budget_ms), rebalance(tasks, budget_ms * looser)
    assert sum(loose.parallelism.values()) <= sum(tight.parallelism.values())


@settings(max_examples=100, deadline=None)
@given(drawn("abcd", 40), st.floats(-1, 500))
def test_no_step_is_planned_busier_than_nine_tenths_unless_its_most_tasks_force_it(
    tasks: tuple[TaskLoad, ...], budget_ms: float
) -> None:
    """Promise 14 of Lohrmann 2016, whatever the budget."""
    found = rebalance(tasks, budget_ms).parallelism
    for task in tasks:
        size = found[task.name]
        assert task.least <= size <= task.most
        assert task.tasks * task.utilisation / size <= 0.9 + 1e-9 or size == task.most


def test_a_step_that_cannot_be_scaled_stays_and_its_wait_still_counts() -> None:
    fixed = replace(GOLDEN[0], least=10, most=10)
    found = rebalance((fixed, *GOLDEN[1:]), 20)
    assert found.parallelism["decode"] == 10
    assert found.wait_ms is not None
    assert found.wait_ms > 12
    without = rebalance(GOLDEN[1:], 20)
    assert found.parallelism["detect"] > without.parallelism["detect"]


def test_what_another_path_has_asked_for_is_kept() -> None:
    found = rebalance(GOLDEN, 20, {"detect": 30, "send": 99})
    assert found.parallelism["detect"] == 30
    assert found.parallelism["send"] == 20
    assert found.parallelism["decode"] == 10 < rebalance(GOLDEN, 20).parallelism["decode"]


def test_the_first_of_two_equal_steps_gets_the_odd_task() -> None:
    twins = (busy("a", 0.5, 4), busy("b", 0.5, 4))
    sizes = {tuple(rebalance(twins, ms).parallelism.values()) for ms in (0.5, 0.7, 0.9, 1.1, 1.3)}
    assert all(a - b in {0, 1} for a, b in sizes)
    assert any(a == b + 1 for a, b in sizes)


# --- bottlenecks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "tasks", "most", "raised"),
    [(0.97, 10, 100, 20), (1.4, 10, 100, 28), (1.2, 300, 392, 392), (1.01, 10, 100, 21)],
)
def test_a_bottleneck_is_resolved_as_in_the_specification(
    rho: float, tasks: int, most: int, raised: int
) -> None:
    assert resolve_bottlenecks([busy("a", rho, tasks, most)]) == {"a": raised}


def test_a_step_below_the_limit_is_no_bottleneck() -> None:
    assert resolve_bottlenecks([busy("a", 0.94, 10)]) == {}


@given(st.floats(0.951, 9), st.integers(1, 300), st.integers(1, 400))
def test_a_bottleneck_at_least_doubles_and_is_then_at_most_half_busy(
    rho: float, tasks: int, most: int
) -> None:
    """Promise 15 of Lohrmann 2016."""
    raised = resolve_bottlenecks([busy("a", rho, tasks, most)])["a"]
    assert raised >= min(2 * tasks, most)
    assert raised == most or rho * tasks / raised <= 0.5 + 1e-9


# --- several paths ----------------------------------------------------------------------------


def published(budgets: list[Budget], tasks: tuple[TaskLoad, ...]) -> dict[str, int]:
    """Lohrmann 2016, algorithm 8, without bottlenecks: path after path, never below the last."""
    by_name = {task.name: task for task in tasks}
    sizes: dict[str, int] = {}
    for budget in budgets:
        path = [by_name[step] for step in budget.steps]
        sizes |= rebalance(path, budget.wait_ms, sizes).parallelism
    return sizes


PATHS = st.lists(
    st.sets(st.sampled_from("abcd"), min_size=1).map(lambda steps: tuple(sorted(steps))),
    min_size=1,
    max_size=4,
    unique=True,
)


@settings(max_examples=120, deadline=None)
@given(drawn("abcd", 8), PATHS, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_paths_that_share_steps_get_as_few_tasks_as_brute_force_finds(
    tasks: tuple[TaskLoad, ...], paths: list[tuple[str, ...]], shares: list[float]
) -> None:
    """Promise 12 of Lohrmann 2016, over all paths together, where the original is a heuristic."""
    by_name = {task.name: task for task in tasks}
    used = sorted(set().union(*paths))
    budgets = [
        Budget(path, a_budget(tuple(by_name[step] for step in path), share) * (1 + 1e-5))
        for path, share in zip(paths, shares, strict=False)
    ]
    found = least_total(budgets, tasks)
    curves = {name: by_name[name].curve for name in used}
    least = min(
        sum(sizes)
        for sizes in product(*ranges(tuple(by_name[name] for name in used)))
        if all(
            math.fsum(curves[step].wait_ms(sizes[used.index(step)]) for step in budget.steps)
            <= budget.wait_ms
            for budget in budgets
        )
    )
    assert found.feasible
    assert sum(found.parallelism[name] for name in used) == least
    assert sum(published(budgets, tasks).values()) >= least
    for budget in budgets:
        path = tuple(by_name[step] for step in budget.steps)
        waited = wait_ms(path, tuple(found.parallelism[step] for step in budget.steps))
        assert waited <= budget.wait_ms * (1 + 1e-6)
    for task in tasks:
        assert floor_of(task) <= found.parallelism[task.name] <= task.most
        assert task.name in used or found.parallelism[task.name] == floor_of(task)


@settings(max_examples=60, deadline=None)
@given(drawn("lsr", 400), st.floats(0.2, 1), st.floats(0.2, 1))
def test_two_paths_with_one_common_step_agree_with_a_walk_over_all_its_sizes(
    tasks: tuple[TaskLoad, ...], first: float, second: float
) -> None:
    """Promise 12 of Lohrmann 2016, with hundreds of tasks."""
    left, shared, right = tasks
    budgets = [
        Budget(("l", "s"), a_budget((left, shared), first) * (1 + 1e-7)),
        Budget(("s", "r"), a_budget((shared, right), second) * (1 + 1e-7)),
    ]

    def least(task: TaskLoad, waited_ms: float, budget: Budget) -> float:
        sizes = range(floor_of(task), task.most + 1)
        kept = (n for n in sizes if within(waited_ms + task.curve.wait_ms(n), budget.wait_ms))
        return next(kept, math.inf)

    totals = []
    for size in range(floor_of(shared), shared.most + 1):
        waited = shared.curve.wait_ms(size)
        totals.append(size + least(left, waited, budgets[0]) + least(right, waited, budgets[1]))
    assert sum(least_total(budgets, tasks).parallelism.values()) == min(totals)


@pytest.mark.parametrize("most", [(1, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("uneven", range(3))
def test_a_variation_that_is_next_to_nothing_is_none(most: tuple[int, ...], uneven: int) -> None:
    tasks = tuple(
        TaskLoad(name, 1.0, 2.0, 0.0, 5.5e-161 if at == uneven else 0.0, None, 1, 1, most[at])
        for at, name in enumerate("lsr")
    )
    budgets = [
        Budget(tuple(path), between(tuple(t for t in tasks if t.name in path), 0.9))
        for path in ("ls", "sr")
    ]
    assert least_total(budgets, tasks).parallelism == {"l": 1, "s": 1, "r": 1}
    assert least_total(budgets, tasks).feasible


def crossed(
    seed: int, paths: tuple[str, ...] = ("abc", "ade", "bdf", "cef"), most: int = 64
) -> tuple[list[Budget], tuple[TaskLoad, ...]]:
    """Steps on crossing paths; by default six, each on two of four, so that no two are alike."""
    rng = np.random.default_rng(seed)
    names = sorted(set("".join(paths)))
    tasks = tuple(
        TaskLoad(
            name,
            service_ms=rng.uniform(0.1, 50),
            gap_ms=50.0,
            cv_arrivals=rng.uniform(0, 2),
            cv_service=1.0,
            waited_ms=None,
            tasks=int(rng.integers(1, most // 2)),
            least=1,
            most=most,
        )
        for name in names
    )
    by_name = dict(zip(names, tasks, strict=True))
    budgets = [
        Budget(tuple(path), between(tuple(by_name[step] for step in path), rng.uniform(0.2, 0.9)))
        for path in paths
    ]
    return budgets, tasks


FAR_FROM_THE_BOUND = (86, 102, 167, 182, 213, 330, 380, 413, 420, 437, 515, 547)
"""Seeds, for one of the sets of paths each, whose best tasks are far from those of the prices."""


@pytest.mark.parametrize(
    "paths", [("ab", "bc", "cd"), ("abc", "bcd", "ad"), ("ab", "ac", "ad", "bcd"), ("abd", "acd")]
)
def test_crossing_paths_agree_with_brute_force_over_a_wide_range_of_tasks(
    paths: tuple[str, ...],
) -> None:
    """Promise 12 of Lohrmann 2016, on all of 20**4 ways to share out tasks."""
    for seed in (*range(30), *FAR_FROM_THE_BOUND):
        budgets, tasks = crossed(seed, paths, most=20)
        sizes = np.meshgrid(*ranges(tasks), indexing="ij")
        waits = {
            task.name: task.curve.scale_ms / (size - task.curve.offered)
            for task, size in zip(tasks, sizes, strict=True)
        }
        kept = np.full(sizes[0].shape, True)
        for budget in budgets:
            kept &= sum(waits[step] for step in budget.steps) <= budget.wait_ms * (1 + 1e-9)
        least = np.sum(sizes, axis=0)[kept].min()
        assert sum(least_total(budgets, tasks).parallelism.values()) == least


def test_six_steps_on_four_crossing_paths_take_no_longer_than_fifty_milliseconds() -> None:
    for seed in range(10):
        budgets, tasks = crossed(seed)
        spent_s = []
        for _ in range(3):
            started_s = time.process_time()
            found = least_total(budgets, tasks)
            spent_s.append(time.process_time() - started_s)
        assert min(spent_s) < 0.05
        assert found.feasible
        assert sum(found.parallelism.values()) <= sum(published(budgets, tasks).values())


def test_a_search_that_is_cut_short_still_keeps_every_budget_with_no_more_than_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = [sum(least_total(*crossed(seed)).parallelism.values()) for seed in range(10)]
    monkeypatch.setattr("tailrace.policy.scaling.sharing._MOST_LOOKED_AT", 1)
    cut = []
    for seed in range(10):
        budgets, tasks = crossed(seed)
        found = least_total(budgets, tasks).parallelism
        for budget in budgets:
            path = tuple(task for task in tasks if task.name in budget.steps)
            sizes = tuple(found[task.name] for task in path)
            assert wait_ms(path, sizes) <= budget.wait_ms * (1 + 1e-6)
        assert sum(found.values()) <= sum(published(budgets, tasks).values())
        cut.append(sum(found.values()))
    assert all(a <= b for a, b in zip(whole, cut, strict=True))
    assert whole != cut


def test_a_shared_step_is_raised_for_both_paths_where_the_original_raises_one_of_each() -> None:
    tasks = tuple(busy(name, 0.5, 8, most=60) for name in ("left", "shared", "right"))
    budgets = [Budget(("left", "shared"), 0.5), Budget(("shared", "right"), 0.5)]
    found, one_by_one = least_total(budgets, tasks).parallelism, published(budgets, tasks)
    assert sum(found.values()) < sum(one_by_one.values())
    assert found["shared"] > one_by_one["shared"]
    # The order of the paths decides nothing.
    assert least_total(budgets[::-1], tasks).parallelism == found


def test_paths_without_a_common_step_are_each_as_if_alone() -> None:
    tasks = tuple(busy(name, 0.5, 8, most=60) for name in "abcd")
    found = least_total([Budget(("a", "b"), 0.5), Budget(("c", "d"), 0.2)], tasks).parallelism
    assert found == {
        **rebalance(tasks[:2], 0.5).parallelism,
        **rebalance(tasks[2:], 0.2).parallelism,
    }


def test_a_path_that_cannot_be_kept_gets_its_most_and_the_others_are_balanced_around_it() -> None:
    """Promise 13 of Lohrmann 2016, with a second path that can be kept."""
    tasks = tuple(busy(name, 0.5, 8, most=20) for name in ("left", "shared", "right"))
    found = least_total([Budget(("left", "shared"), 0.01), Budget(("shared", "right"), 1.0)], tasks)
    assert not found.feasible
    assert found.parallelism["left"] == found.parallelism["shared"] == 20
    assert (
        found.parallelism["right"] == rebalance(tasks[1:], 1.0, {"shared": 20}).parallelism["right"]
    )
    assert "Even with left 20, shared 20 tasks" in found.reason
    assert "within 1 ms" in found.reason


def test_a_path_over_an_unknown_step_is_refused() -> None:
    with pytest.raises(InputError, match="no step 'x'"):
        least_total([Budget(("decode", "x"), 5)], GOLDEN)
    with pytest.raises(InputError, match="no step 'x'"):
        scale_reactively([SequenceBound(("x",), 5)], GOLDEN)


# --- the whole decision -----------------------------------------------------------------------


def test_the_bound_less_the_steps_and_the_batching_is_left_for_waiting() -> None:
    # 15 ms are taken by the steps and four fifths of the rest by batching.
    found = scale_reactively([SequenceBound(("decode", "detect", "send"), 115.0)], GOLDEN)
    assert tuple(found.parallelism.values()) == (12, 18, 2)
    halved = scale_reactively([SequenceBound(("decode", "detect", "send"), 35.0)], GOLDEN, 0.5)
    assert tuple(halved.parallelism.values()) == (16, 25, 3)
    assert halved.feasible
    assert halved.reason == (
        "With decode 16, detect 25, send 3 tasks records wait 9.75 ms in all, within 10 ms."
    )


def test_a_bound_below_what_the_steps_take_gets_the_most_and_an_alert() -> None:
    """Promise 13 of Lohrmann 2016."""
    found = scale_reactively([SequenceBound(("decode", "detect", "send"), 12.0)], GOLDEN)
    assert tuple(found.parallelism.values()) == (40, 60, 20)
    assert not found.feasible
    assert "leaves no time to wait" in found.reason


def test_a_path_with_a_bottleneck_only_has_that_resolved_and_its_other_steps_stay() -> None:
    tasks = (busy("a", 0.97, 10), busy("b", 0.1, 30), busy("c", 0.5, 8))
    bounds = [SequenceBound(("a", "b"), 100.0), SequenceBound(("b", "c"), 100.0)]
    found = scale_reactively(bounds, tasks)
    assert found.parallelism["a"] == 20
    assert found.parallelism["b"] == 30
    assert found.parallelism["c"] == tasks[2].floor
    assert found.wait_ms is None
    assert found.feasible
    assert "Step a is a bottleneck, 97% busy with 10 tasks, so it gets 20." in found.reason
    # Without the bottleneck the second path would give b's tasks back.
    calm = scale_reactively(bounds[1:], tasks)
    assert calm.parallelism["b"] == tasks[1].floor < 30


def test_a_bottleneck_on_two_paths_is_told_once() -> None:
    tasks = (busy("a", 1.2, 10), busy("b", 0.1, 30))
    found = scale_reactively([SequenceBound(("a", "b"), 9), SequenceBound(("a",), 9)], tasks)
    assert found.reason.count("bottleneck") == 1
    assert found.parallelism["a"] == 24


def test_a_bottleneck_that_may_not_have_enough_tasks_is_an_alert() -> None:
    """Promise 13 of Lohrmann 2016, in a bottleneck."""
    found = scale_reactively([SequenceBound(("a",), 100.0)], [busy("a", 1.8, 10, most=15)])
    assert found.parallelism == {"a": 15}
    assert not found.feasible
    assert found.reason.endswith("may not have more than 15: allow it 20.")


def test_without_bounds_every_step_gets_its_floor() -> None:
    found = scale_reactively([], GOLDEN)
    assert tuple(found.parallelism.values()) == (9, 12, 2)
    assert found.feasible


@settings(max_examples=60, deadline=None)
@given(drawn("abcd", 20), PATHS, st.floats(1, 400), st.floats(1, 5))
def test_looser_bounds_never_take_more_tasks(
    tasks: tuple[TaskLoad, ...], paths: list[tuple[str, ...]], bound_ms: float, looser: float
) -> None:
    """Promise 19 of Lohrmann 2016, over several paths."""
    tight = scale_reactively([SequenceBound(path, bound_ms) for path in paths], tasks)
    loose = scale_reactively([SequenceBound(path, bound_ms * looser) for path in paths], tasks)
    assert sum(loose.parallelism.values()) <= sum(tight.parallelism.values())
