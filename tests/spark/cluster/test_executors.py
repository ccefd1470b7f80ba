from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.cluster import executors as module
from tailrace.spark.cluster.executors import PATIENCE_S, REFUSALS, REFUSED_S, Executors, in_charge
from tests.spark.support import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELD_S = 15.0
"""Less than an executor would be held (``LONGEST_HOLD`` in ExecutorPool.java)."""


class Manager:
    """A cluster that gives what it has, and says yes to everything."""

    def __init__(self, running: int, capacity: int) -> None:
        self.capacity = capacity
        self.ids = [str(number) for number in range(running)]
        self.busy: set[str] = set()
        self.asked: list[int] = []
        self.released: list[str] = []
        self.gone = False

    def give(self) -> None:
        while len(self.ids) < min(self.capacity, self.asked[-1]):
            self.ids.append(str(int(self.ids[-1]) + 1))


class Context:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def requestTotalExecutors(self, total: int, *_: Any) -> bool:  # noqa: N802 - Spark's name
        self._manager.asked.append(total)
        if self._manager.gone:
            raise Py4JError("the master is gone")
        return True


class Jvm:
    """The part of the JVM that ``Executors`` uses."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.tailrace = self.cluster = self
        self.ExecutorPool = self
        self.scala = self.collection = self.immutable = self

    def HashMap(self) -> dict[str, int]:  # noqa: N802 - Scala's name
        return {}

    def guard(self, _: Context, slots: int) -> None:
        assert slots == 2

    def ready(self, _: Context) -> list[str]:
        return list(reversed(self._manager.ids))

    def release(self, _: Context, executor: str) -> None:
        self._manager.released.append(executor)

    def remove(self, _: Context, ids: list[str]) -> list[str]:
        ended = [i for i in ids if i not in self._manager.busy]
        self._manager.ids = [i for i in self._manager.ids if i not in ended]
        return ended


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def executors(
    manager: Manager, clock: Clock, monkeypatch: pytest.MonkeyPatch, most_cores: str | None = None
) -> Executors:
    """Executors of two cores on a cluster that is made up."""
    settings = {"spark.executor.cores": "2", "spark.cores.max": most_cores}
    monkeypatch.setattr(module, "conf_of", lambda _, key: settings[key])
    monkeypatch.setattr(module, "_obstacle", lambda *_: None)
    jvm, context = Jvm(manager), Context(manager)
    session: Any = type("Session", (), {})()
    session.sparkContext = session._jsc = session
    session._jvm, session.sc = jvm, lambda: context
    return Executors(session, clock)


def test_more_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(running=1, capacity=8)
    fleet = executors(manager, Clock(), monkeypatch)
    fleet.ask_for(3)
    fleet.ask_for(3)
    manager.give()
    assert manager.asked == [3]
    assert fleet.ready() == ("0", "1", "2")
    assert fleet.surplus() == ()


def test_what_a_cluster_silently_withholds_is_reported_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, clock = Manager(running=1, capacity=2), Clock()
    fleet = executors(manager, clock, monkeypatch)
    fleet.ask_for(5)
    manager.give()
    assert fleet.missing() is None
    clock.now_s = PATIENCE_S
    said = fleet.missing()
    assert said is not None
    assert said.startswith("5 executors were asked for and 2 are there")
    assert said.endswith("add workers, or ask for fewer.")


def test_more_than_the_session_may_have_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = Manager(running=1, capacity=8)
    fleet = executors(manager, Clock(), monkeypatch, most_cores="6")
    assert fleet.most == 3
    with pytest.raises(EnvironmentUnfit, match="which is 3: raise it to 8"):
        fleet.ask_for(4)
    assert manager.asked == []


def test_a_new_one_is_ready_when_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(running=1, capacity=8)
    fleet = executors(manager, Clock(), monkeypatch)
    warming, warm = threading.Event(), threading.Event()

    def warm_up(executor: str) -> None:
        assert executor == "1"
        warming.set()
        warm.wait(PATIENCE_S)

    fleet.warm_up = warm_up
    fleet.ask_for(2)
    manager.give()
    assert fleet.ready() == ("0",)
    assert warming.wait(PATIENCE_S)
    assert fleet.there() == ("0", "1")
    assert fleet.ready() == ("0",)
    assert manager.released == ["0"]  # it was there before it could be warmed up
    warm.set()
    until(lambda: fleet.ready() == ("0", "1"), "the new one is ready")
    assert manager.released == ["0", "1"]


def test_an_executor_that_is_not_warmed_up_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(running=1, capacity=8)
    fleet = executors(manager, Clock(), monkeypatch)
    fleet.ask_for(2)
    manager.give()
    assert fleet.ready() == ("0", "1")
    assert manager.released == ["0", "1"]


def test_one_that_cannot_be_warmed_up_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(running=1, capacity=8)
    fleet = executors(manager, Clock(), monkeypatch)

    def warm_up(executor: str) -> None:
        raise PySparkException(f"executor {executor} is gone")

    fleet.warm_up = warm_up
    fleet.ask_for(2)
    manager.give()
    until(lambda: fleet.ready() == ("0", "1"), "the new one is taken")


def test_fewer_are_the_oldest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(running=12, capacity=12)
    fleet = executors(manager, Clock(), monkeypatch)
    fleet.ask_for(10)
    assert fleet.surplus() == ("10", "11")
    assert fleet.end_surplus() == ("10", "11")
    assert len(fleet.ready()) == 10


def test_an_executor_with_a_task_to_finish_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, clock = Manager(running=3, capacity=8), Clock()
    manager.busy = {"2"}
    fleet = executors(manager, clock, monkeypatch)
    fleet.ask_for(1)
    assert fleet.end_surplus() == ("1",)
    assert fleet.surplus() == ()
    manager.busy = set()
    clock.now_s += REFUSED_S
    assert fleet.end_surplus() == ("2",)
    assert fleet.ready() == ("0",)


def test_one_that_is_lost_later_has_its_time_to_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wish is an old one, and was fulfilled: the cluster has no less than before."""
    manager, clock = Manager(running=3, capacity=3), Clock()
    fleet = executors(manager, clock, monkeypatch)
    fleet.ask_for(3)
    clock.now_s = 10 * PATIENCE_S
    assert fleet.missing() is None
    manager.ids.remove("1")
    clock.now_s += 1.0
    assert fleet.missing() is None
    clock.now_s += PATIENCE_S
    assert "3 executors were asked for and 2 are there" in (fleet.missing() or "")


def test_a_cluster_manager_that_does_not_answer_is_asked_again_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, clock = Manager(running=1, capacity=8), Clock()
    manager.gone = True
    fleet = executors(manager, clock, monkeypatch)
    fleet.ask_for(2)
    fleet.ask_for(2)
    assert manager.asked == [2]
    clock.now_s = PATIENCE_S
    assert (fleet.missing() or "").endswith("the cluster manager does not answer; check on it.")
    manager.gone = False
    fleet.ask_for(2)
    fleet.ask_for(2)
    assert manager.asked == [2, 2]
    manager.give()
    assert fleet.missing() is None


def test_one_that_is_busy_each_time_that_it_should_go_is_said_to_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, clock = Manager(running=2, capacity=8), Clock()
    manager.busy = {"1"}
    fleet = executors(manager, clock, monkeypatch)
    fleet.ask_for(1)
    for _ in range(REFUSALS):
        assert fleet.missing() is None
        assert fleet.end_surplus() == ()
        assert fleet.end_surplus() == ()  # too early to ask again
        clock.now_s += REFUSED_S
    assert (fleet.missing() or "").startswith("1 executors more than the flow wants stay")
    assert fleet.missing() is None


def test_one_flow_of_a_session_decides_on_its_executors() -> None:
    session: Any = type("Session", (), {})()
    session.sparkContext = session
    session.applicationId = "app-1"
    with (
        in_charge(session, "first"),
        pytest.raises(EnvironmentUnfit, match=r"^Flow 'first' decides .* of 'second', or give"),
        in_charge(session, "second"),
    ):
        pass
    with in_charge(session, "second"):
        pass


@pytest.mark.spark
def test_a_session_without_executors_says_what_to_use(spark: SparkSession) -> None:
    with pytest.raises(EnvironmentUnfit, match="use a cluster, such as one of"):
        Executors(spark)


@pytest.mark.spark
def test_what_holds_a_lost_executor_holds_no_other_in_its_place(spark: SparkSession) -> None:
    inside: Any = spark.sparkContext
    hold = inside._jvm.tailrace.cluster.ExecutorPool.hold(inside._jsc.sc(), "lost", 2)
    try:
        until(hold.isDone, "the job has nothing to hold", seconds=HELD_S)
        hold.get()  # would raise what went wrong
    finally:
        hold.cancel(True)
