"""Events in, actions out: the controller, its steering, and what a backend cannot do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.control import Controller, Mode, judge
from tailrace.control.actions import (
    SetChains,
    SetExecutors,
    SetInterval,
    SetLifetimes,
    SwitchBackend,
    changes,
)
from tailrace.control.backend import Steering
from tailrace.control.events import BatchFinished, Ended, Refused, Started
from tailrace.control.simulated import SimulatedBackend
from tailrace.control.switching import Switching
from tailrace.errors import ConstraintError, InputError
from tailrace.graph import Step, Stream, graph
from tailrace.load import Constant, generate
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import Backend, Plan, first_plan
from tailrace.testing import FakeBackend
from tests.simulated import simulate, started

if TYPE_CHECKING:
    from tailrace.control.events import Event
    from tailrace.policy.decision import Decision

FLOW = graph((Step("work", "x int"),), (Stream(SOURCE, "work"), Stream("work", SINK)))
PLANT = Plant(planning_ms=40.0, sink_ms=20.0, steps={"work": StepCost(0.1)})
GOAL = Constraint(600.0)
LOAD = generate(Constant(500, "60 s"), seed=1)


def test_a_path_that_the_flow_does_not_have_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConstraintError, match="There is no step 'wrok'"):
        Controller(FLOW, (Constraint(600.0, path=("source", "wrok")),))


def batches() -> Any:
    """What was measured of a minute of batches a fifth of a second apart."""
    watching = started(Controller(FLOW, (), mode=Mode.OBSERVE), Plan(200.0, (("work",),)))
    return simulate(FLOW, PLANT, LOAD, watching, np.random.default_rng(1))


names = st.sampled_from(["a", "b", "c"])
plans = st.builds(
    Plan,
    st.sampled_from([0.0, 100.0, 250.0]),
    st.sampled_from([(("a", "b"), ("c",)), (("a",), ("b",), ("c",)), (("a", "b", "c"),)]),
    st.dictionaries(names, st.integers(1, 4)),
    lifetimes_ms=st.dictionaries(names, st.floats(0.0, 9.0)),
    flush_ms=st.sampled_from([1.0, 5.0]),
    executors=st.integers(1, 5),
)


@given(plans, plans)
def test_actions_make_one_plan_of_another_and_nothing_is_done_twice(
    before: Plan, after: Plan
) -> None:
    plan, found = before, changes(before, after)
    for action in found:
        assert action.on(plan) != plan
        plan = action.on(plan)
    assert plan == after
    assert len({type(action) for action in found}) == len(found)


def test_a_controller_hears_of_the_start_first() -> None:
    with pytest.raises(InputError, match="hears that a flow has started before anything else"):
        Controller(FLOW, ()).handle(Ended())


def test_a_plan_that_cannot_keep_the_bound_is_cut_short_at_the_start() -> None:
    controller = Controller(FLOW, (Constraint(100.0),))
    assert controller.handle(Started(Plan(900.0, (("work",),)), 0)) == (SetInterval(200.0),)


def test_what_is_handled_is_all_that_a_backend_has_to_do() -> None:
    """The backend under steering ends with the plan of the controller, by its actions alone."""
    steering = Steering(Controller(FLOW, (GOAL,)))
    plan = first_plan(FLOW, 100.0, 2)
    backend = SimulatedBackend(FLOW, PLANT, LOAD, plan, steering.tell, rng=np.random.default_rng(1))
    steering.backend = backend
    backend.start()
    backend.run()
    backend.stop()
    assert backend.plan == steering.controller.plan != plan
    assert steering.controller.log.verdicts[-1].fulfilled


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_who_only_watches_or_advises_asks_for_nothing(mode: Mode) -> None:
    controller = started(Controller(FLOW, (GOAL,), mode=mode), Plan(200.0, (("work",),)))
    assert not [a for b in batches() for a in controller.handle(BatchFinished(b))]
    assert bool(controller.log.decisions) == (mode is Mode.ADVISE)


def test_what_a_backend_cannot_do_is_advice_with_its_reason_and_said_once() -> None:
    fake = FakeBackend(cannot={SetInterval: "Its trigger is the user's own."})
    steering = Steering(Controller(FLOW, (GOAL,)))
    steering.backend = fake
    steering.tell(Started(Plan(200.0, (("work",),)), 0))
    for batch in batches():
        steering.tell(BatchFinished(batch))
    assert fake.actions == []
    assert steering.controller.plan.interval_ms == 200.0
    said = [record for record in steering.controller.log.decisions if not record.applied]
    assert said
    assert said == steering.controller.log.decisions
    assert all(r.reason.endswith("Not done: Its trigger is the user's own.") for r in said)
    gaps = [b.after.interval_ms / a.after.interval_ms for a, b in pairwise(said)]
    assert all(abs(gap - 1) > 0.1 for gap in gaps)


class Chosen(Switching):
    """Wants one backend, whatever was measured."""

    def __init__(self, wanted: Backend) -> None:
        super().__init__(FLOW, (GOAL,), lambda: 4)
        self.asked: list[float] = []
        self.refusals: list[str] = []
        self.decision = replace(self.decision, plan=Plan(backend=wanted))

    def decide(self, rate_per_s: float, *_: object) -> Decision:
        self.asked.append(rate_per_s)
        return self.decision

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)


def test_a_backend_is_chosen_after_every_interval_also_when_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log holds a limited number of intervals, so its length showed no new one after a day."""
    monkeypatch.setattr(judge, "REMEMBERED", 2)
    switching = Chosen(Backend.MICROBATCH)
    controller = started(Controller(FLOW, (GOAL,), switching=switching), first_plan(FLOW, 200.0, 2))
    for batch in batches():
        controller.handle(BatchFinished(batch))
    assert len(controller.log.history) == 2
    assert len(switching.asked) == 12


def test_another_backend_is_asked_for_until_it_runs_and_the_log_says_why() -> None:
    switching = Chosen(Backend.REALTIME)
    controller = started(Controller(FLOW, (GOAL,), switching=switching), first_plan(FLOW, 200.0, 2))
    actions = [a for batch in batches() for a in controller.handle(BatchFinished(batch))]
    assert actions.count(SwitchBackend(Backend.REALTIME)) == 12
    controller.handle(Refused(SwitchBackend(Backend.REALTIME), "Too slow."))
    assert switching.refusals == ["Too slow."]
    history = len(controller.log.history)
    controller.handle(Ended())
    live = Plan(60_000.0, (("work",),), backend=Backend.REALTIME)
    controller.handle(Started(live, 61_000_000, slots=4, other_tasks=1))
    assert controller.plan == live
    assert len(controller.log.history) >= history
    begun, changed = [r for r in controller.log.decisions if r.policy == "backend"]
    assert (begun.before.backend, begun.after.backend) == (Backend.MICROBATCH, Backend.MICROBATCH)
    assert (changed.before.backend, changed.after) == (Backend.MICROBATCH, live)


def test_without_another_backend_none_is_switched_to() -> None:
    heard: list[Event] = []

    class Listening(Controller):
        def handle(self, event: Event) -> Any:
            heard.append(event)
            return super().handle(event)

    steering = Steering(Listening(FLOW, (GOAL,), switching=Chosen(Backend.REALTIME)))
    steering.backend = FakeBackend()
    steering.tell(Started(first_plan(FLOW, 200.0, 2), 0))
    for batch in batches():
        steering.tell(BatchFinished(batch))
    refused = [event for event in heard if isinstance(event, Refused)]
    assert {type(event.action) for event in refused} == {SwitchBackend}


def test_a_fake_backend_remembers_what_it_was_asked_for() -> None:
    fake = FakeBackend(cannot={SetExecutors: "There is one machine."})
    assert fake.can(SetExecutors(2)) == "There is one machine."
    assert fake.can(SetChains((("work",),))) is None
    fake.start()
    fake.apply(SetLifetimes({"work": 2.0}))
    fake.stop()
    assert (fake.running, fake.actions) == (False, [SetLifetimes({"work": 2.0})])
