"""The loop of real-time mode on made-up reports of tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from tailrace.constraint import Constraint
from tailrace.control import Controller, Mode
from tailrace.control.events import Ended, TasksReported, Tick
from tailrace.control.judge import EARLY, FINE
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.plan import Backend, Plan
from tailrace.policy.decision import known
from tailrace.profile.batch import StepMeasure
from tailrace.profile.calls import Calls
from tailrace.profile.costs import USUAL_HAND_OVER
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.live import ChainReport, SinkReport
from tailrace.profile.moments import Moments
from tailrace.report.data import Usage, report_of
from tests.simulated import loop_of, plan_after, started

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
CHAINS = (("a", "b"),)
PLAN = Plan(60_000.0, CHAINS, backend=Backend.REALTIME)


def line(*names: str) -> Graph:
    ends = ("source", *names, "sink")
    streams = tuple(Stream(one, other) for one, other in pairwise(ends))
    return graph(tuple(Step(name, "x int") for name in names), streams)


@dataclass(frozen=True)
class Flowing:
    """A flow of one chain at a steady rate, every record as old as every other.

    A record waits 1 ms for the source and a millisecond and half of the lifetime for Python,
    takes ``work_ms`` in each of two steps, and 1 ms to the end. A hand-over takes 0.3 ms of CPU.
    """

    rate: int = 1_000
    work_ms: float = 0.1
    per_hand_over: int = 2

    def second(self, at_s: float, batch: int = 0) -> tuple[SinkReport, ChainReport]:
        """What is said of one second, in the middle of it."""
        at_us = START_US + round((at_s + 0.5) * SECOND_US)
        entered, work = 2.0, self.work_ms
        ages = [entered + 2 * work + 1] * self.rate
        moments = Moments.of(ages), LogHistogram.of(ages)
        handovers = self.rate // self.per_hand_over
        sizes = [self.per_hand_over + 1, self.per_hand_over - 1] * (handovers // 2)
        steps = {
            name: StepMeasure(
                self.rate,
                self.rate,
                0,
                Moments(self.rate, work, 0.0),
                LogHistogram.of([work]),
                {0: work * self.rate},
                entered + i * work,
                entered + (i + 1) * work,
                cpu_ms=work * self.rate,
                calls=Calls.of((n, work * n) for n in sizes),
            )
            for i, name in enumerate("ab")
        }
        cpu_ms = 0.3 * handovers + 2 * work * self.rate
        chain = ChainReport(
            "a+b", batch, 0, at_us, at_us, handovers, self.rate, 1.0, entered, cpu_ms, steps
        )
        return SinkReport("sink", batch, 0, at_us, at_us, *moments), chain


def controlled(
    *goals: Constraint, mode: Mode = Mode.ENFORCE, plan: Plan = PLAN, interval_ms: float = 1_000.0
) -> Controller:
    controller = Controller(line("a", "b"), goals, mode=mode, interval_ms=interval_ms)
    return started(controller, plan, START_US, slots=4)


STEADY = Flowing()


def let_flow(
    controller: Controller, seconds: int, flowing: Flowing = STEADY, first: int = 0
) -> Controller:
    for second in range(first, first + seconds):
        for said in flowing.second(second):
            controller.handle(TasksReported(said))
        controller.handle(Tick(START_US + (second + 2) * SECOND_US))
    return controller


GOAL = Constraint(50.0, every_ms=1_000.0)


def test_a_clock_that_is_set_back_stops_no_decision() -> None:
    """An hour is lost after four seconds, and the first moment after it is told by a tick."""
    controller = let_flow(controlled(GOAL), 4)
    for second in range(4, 10):
        controller.handle(Tick(START_US + (second - 3_600) * SECOND_US + SECOND_US // 2))
        for said in STEADY.second(second - 3_600):
            controller.handle(TasksReported(said))
        controller.handle(Tick(START_US + (second - 3_600 + 2) * SECOND_US))
    history = controller.log.history
    assert len(history) >= 9
    starts = [record.start_us for record in history]
    assert starts == sorted(starts)
    assert max(record.rate_per_s for record in history) <= 2 * STEADY.rate


def test_the_report_counts_records_that_a_task_reports_only_when_it_ends() -> None:
    controller = let_flow(controlled(GOAL), 5)
    controller.handle(Tick(START_US + 20 * SECOND_US))
    _, chain = STEADY.second(20)
    controller.handle(TasksReported(replace(chain, records=17)))
    controller.handle(Ended())
    report = report_of("late", controller.log, Usage(20.0, 20.0, 1.0), warm_up_ms=0.0)
    assert report.records == 5_017


def test_intervals_are_remembered_with_all_that_was_said_of_them() -> None:
    log = let_flow(controlled(GOAL), 5).log
    assert [record.records for record in log.history] == [1_000] * 5
    assert [record.start_us for record in log.history] == [
        START_US + second * SECOND_US for second in range(5)
    ]
    for record in log.history:
        assert record.latency_ms.mean == pytest.approx(3.2)
        assert sum(record.breakdown_ms.values()) == pytest.approx(3.2)
        assert record.steps["a"].utilisation == pytest.approx(0.1)
        assert record.rate_per_s == pytest.approx(1_000)


def test_a_long_run_lets_go_of_distributions_and_of_nothing_that_the_report_tells() -> None:
    seconds = FINE + EARLY + 40
    controller = let_flow(controlled(GOAL, mode=Mode.OBSERVE), seconds)
    log = controller.log
    kept = [bool(record.latencies_ms.count) for record in log.history]
    assert kept == [True] * EARLY + [False] * 40 + [True] * FINE
    assert log.older.count == 40 * 1_000
    assert len({record.quantiles for record in log.history}) == 1
    report = report_of("flow", controller.log, Usage(1.0, 1, 1.0), warm_up_ms=5_000.0)
    assert report.data["latency_ms"]["p99_ms"] == pytest.approx(3.2, rel=0.01)
    assert [i["p50_ms"] for i in report.intervals] == [
        report.data["latency_ms"]["p50_ms"]
    ] * seconds


def test_nothing_is_judged_or_decided_before_an_interval_is_complete() -> None:
    controller = controlled(GOAL)
    for said in Flowing().second(0):
        controller.handle(TasksReported(said))
    assert plan_after(controller, Tick(START_US + 2 * SECOND_US - 1)) == PLAN
    assert (controller.log.history, controller.log.verdicts) == ([], [])
    controller.handle(Tick(START_US + 2 * SECOND_US))
    assert (len(controller.log.history), len(controller.log.verdicts)) == (1, 1)


def test_every_constraint_is_judged_in_windows_of_its_own_length() -> None:
    long = replace(GOAL, every_ms=2_000.0)
    inner = Constraint(1.0, every_ms=1_000.0, path=("a", "b"))
    verdicts = let_flow(controlled(GOAL, long, inner), 6).log.verdicts
    found = {goal: [v for v in verdicts if v.constraint == goal] for goal in (GOAL, long, inner)}
    assert {goal: len(mine) for goal, mine in found.items()} == {GOAL: 6, long: 3, inner: 6}
    assert [v.value_ms for v in found[GOAL]] == pytest.approx([3.2] * 6)
    assert [v.value_ms for v in found[inner]] == pytest.approx([0.2] * 6)
    assert not any(v.blame for v in verdicts)


def test_a_bound_that_is_missed_is_blamed_on_what_takes_longest() -> None:
    tight = Constraint(2.0, every_ms=1_000.0)
    (verdict, *_) = let_flow(controlled(tight), 2).log.verdicts
    assert verdict.blame in {"source_wait", "hand-over", "sink"}
    slow = Flowing(work_ms=0.4)
    for bound_ms, blame in ((0.5, None), (0.3, "step:b")):
        goal = Constraint(bound_ms, every_ms=1_000.0, path=("b",))
        (verdict, *_) = let_flow(controlled(goal), 2, slow).log.verdicts
        assert verdict.blame == blame


def test_a_bound_with_room_gets_a_lifetime_that_its_prediction_keeps() -> None:
    controller = let_flow(controlled(GOAL), 4)
    assert 0 < controller.plan.lifetimes_ms["a+b"] < GOAL.bound_ms
    decision = controller.log.decisions[0]
    assert (decision.policy, decision.applied) == ("handover", True)
    assert decision.after == controller.plan
    assert decision.predicted_ms is not None
    assert decision.predicted_ms <= GOAL.bound_ms
    assert decision.constraint == GOAL


def test_a_decision_is_scored_by_the_first_whole_interval_under_it() -> None:
    controller = let_flow(controlled(GOAL), 2)
    (decision, *_) = controller.log.decisions
    assert decision.realised_ms is None
    let_flow(controller, 6, Flowing(work_ms=0.2), first=2)
    assert decision.realised_ms == pytest.approx(3.4)


def test_no_bound_means_no_lifetime() -> None:
    controller = let_flow(controlled(), 4)
    assert controller.plan.lifetimes_ms == {}
    assert controller.log.verdicts == []


def test_an_observer_decides_nothing() -> None:
    controller = let_flow(controlled(GOAL, mode=Mode.OBSERVE), 5)
    assert controller.plan == PLAN
    assert controller.log.decisions == []
    assert len(controller.log.verdicts) == 5


def test_an_adviser_says_it_once_and_changes_nothing() -> None:
    controller = let_flow(controlled(GOAL, mode=Mode.ADVISE), 6)
    assert controller.plan == PLAN
    (advice,) = controller.log.decisions
    assert not advice.applied
    assert advice.after.lifetimes_ms["a+b"] > 0


def test_a_chain_that_one_task_cannot_carry_is_taken_apart() -> None:
    heavy = Flowing(rate=1_000, work_ms=0.48)
    controller = let_flow(controlled(GOAL), 6, heavy)
    assert controller.plan.chains == (("a",), ("b",))
    assert "chaining" in {decision.policy for decision in controller.log.decisions}


def test_the_gap_between_two_batches_is_noticed_where_it_ends() -> None:
    controller = controlled(GOAL, mode=Mode.OBSERVE)
    let_flow(controller, 2)
    assert controller.log.batches == 1
    seen, worked = Flowing().second(2.1, batch=1)
    controller.handle(TasksReported(seen))
    controller.handle(TasksReported(worked))
    controller.handle(Tick(START_US + 9 * SECOND_US))
    assert controller.log.batches == 2
    gap_ms = 1_100.0  # from the last that was seen, at 1.5 s, to 2.6 s
    last = controller.log.history[-1]
    assert last.breakdown_ms["gap"] == pytest.approx(min(gap_ms**2 / 2_000, 1.0))
    costs = loop_of(controller).costs()
    assert costs is not None
    assert costs.gap_ms == pytest.approx(gap_ms)


def test_batches_that_do_not_follow_each_other_show_no_gap() -> None:
    """A task that had nothing to say of the batch between them was not held up so long."""
    controller = controlled(GOAL, mode=Mode.OBSERVE)
    let_flow(controller, 2)
    for said in Flowing().second(2, batch=2):
        controller.handle(TasksReported(said))
    controller.handle(Tick(START_US + 9 * SECOND_US))
    costs = loop_of(controller).costs()
    assert costs is not None
    assert costs.gap_ms == USUAL_HAND_OVER.gap_ms


def test_the_costs_of_a_hand_over_are_what_is_left_of_its_cpu_time() -> None:
    """0.3 ms for a hand-over of two records, of which 0.002 ms each are the records' own."""
    controller = let_flow(controlled(GOAL, mode=Mode.OBSERVE), 3)
    costs = loop_of(controller).costs()
    assert costs is not None
    (model,) = costs.hand_overs
    assert model.fixed_ms == pytest.approx(0.3 - 2 * 0.002, abs=0.001)
    assert model.per_record_ms == pytest.approx(0.002 + 0.2, abs=0.001)
    assert (costs.slots, costs.hops) == (1, 0)
    assert costs.sink_ms == pytest.approx(1.0)


def test_costs_are_not_known_before_the_first_interval() -> None:
    assert loop_of(controlled(GOAL)).costs() is None


def spoken(controller: Controller, rate: int, at_s: float) -> Plan:
    """A fifth of a second in which a task says once what it did; the plan right after it."""
    _, whole = Flowing(rate=rate // 5).second(0)
    at_us = START_US + round(at_s * SECOND_US)
    controller.handle(TasksReported(replace(whole, first_us=at_us - 200_000, last_us=at_us)))
    return plan_after(controller, Tick(at_us))


TIGHT = Constraint(15.0, every_ms=10_000.0)


def settled(mode: Mode = Mode.ENFORCE) -> Controller:
    """A flow of one long interval at 1,000/s that has its lifetime, and speaks often since then."""
    controller = controlled(TIGHT, mode=mode, interval_ms=10_000.0)
    let_flow(controller, 11, Flowing(work_ms=0.1))
    for fifth in range(5):
        spoken(controller, 1_000, 12 + fifth / 5)
    return controller


def test_a_step_in_the_rate_shortens_lifetimes_within_half_a_second() -> None:
    controller = settled()
    before = controller.plan.lifetimes_ms["a+b"]
    spoken(controller, 4_000, 13.0)
    after = spoken(controller, 4_000, 13.2).lifetimes_ms["a+b"]
    assert after < 0.8 * before
    assert controller.log.decisions[-1].predicted_ms is not None
    assert controller.log.decisions[-1].predicted_ms <= TIGHT.bound_ms
    seen = loop_of(controller)._seen
    assert seen is not None
    (chain,) = known(seen.realtime).chains
    assert chain.rate_per_s == 3_250  # 2,500 were counted in 0.6 s: it is taken to rise on
    assert len(controller.log.history) == 1  # long before the next interval is over


@pytest.mark.parametrize("rate", [300, 1_000, 1_100])
def test_a_rate_that_falls_or_wavers_waits_for_the_end_of_the_interval(rate: int) -> None:
    controller = settled()
    before = controller.plan
    for fifth in range(5):
        assert spoken(controller, rate, 13 + fifth / 5) == before


def test_a_step_in_the_rate_moves_no_observer() -> None:
    controller = settled(Mode.OBSERVE)
    assert spoken(controller, 4_000, 13.0) == spoken(controller, 4_000, 13.2) == PLAN


def test_what_is_left_at_the_end_is_judged_and_decides_nothing() -> None:
    controller = controlled(GOAL)
    for said in Flowing().second(0):
        controller.handle(TasksReported(said))
    controller.handle(Ended())
    assert len(controller.log.history) == len(controller.log.verdicts) == 1
    assert controller.log.decisions == []
    assert controller.plan == PLAN


def test_an_impossible_bound_is_named_when_two_intervals_in_a_row_say_so() -> None:
    goal = Constraint(0.05, every_ms=1_000.0)
    assert let_flow(controlled(goal), 1).log.impossible == ()
    (impossible,) = let_flow(controlled(goal), 3).log.impossible
    assert impossible.constraint == goal


def test_many_threads_may_speak_at_once() -> None:
    controller = controlled(GOAL, mode=Mode.OBSERVE)
    said = Flowing(rate=10).second(0)

    def speak() -> None:
        for each in said * 50:
            controller.handle(TasksReported(each))

    speakers = [threading.Thread(target=speak) for _ in range(4)]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    controller.handle(Ended())
    assert [record.records for record in controller.log.history] == [4 * 50 * 10]
