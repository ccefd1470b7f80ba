"""The watch over the steps of a worker, driven by hand and without Spark."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from tailrace.spark.worker import watch as module
from tailrace.spark.worker.watch import LONGEST_FRAME, MOST_FRAMES, Watch, stack_of
from tests.spark.support import until

STALL_S = 10.0


class Told:
    """The part of a telemetry client, and of its voice, that a watch needs."""

    stall_s = STALL_S

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def voice(self, _kind: str) -> Any:
        return self

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    @property
    def stalls(self) -> list[tuple[str, float, bool]]:
        found = [message for message in self.said if "stalled" in message]
        return [(m["stalled"], m["seconds"], m["over"]) for m in found]


@pytest.fixture
def told() -> Told:
    return Told()


class Clock:
    """A clock that tests set."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


CLOCK = Clock()


def looked(watch: Watch, seconds: range) -> None:
    for now_s in seconds:
        CLOCK.now_s = float(now_s)
        watch.look(CLOCK.now_s)


def quiet_watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch that checks only when tests call it."""
    watch = Watch()
    monkeypatch.setattr(watch, "_thread", threading.current_thread())
    monkeypatch.setattr(module, "time", CLOCK)
    return watch


def test_a_step_that_hangs_is_said_once_it_is_due_and_then_at_doubling_intervals(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = quiet_watch(monkeypatch)
    with watch.over(told):
        watch.step, watch.calls = "a", 1
        looked(watch, range(100, 200))
        assert [seconds for _, seconds, _ in told.stalls] == [10.0, 20.0, 40.0, 80.0]
        assert len(told.said) == 100  # and at every other look that the task lives


def test_a_step_that_continues_is_reported_and_only_warned_of_when_it_takes_twice_as_long(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = quiet_watch(monkeypatch)
    with watch.over(told):
        watch.step, watch.calls = "a", 1
        looked(watch, range(100, 115))
        watch.calls = 2
        looked(watch, range(115, 115 + 30))
        assert told.stalls == [("a", 10.0, False), ("a", 15.0, True)]
        looked(watch, range(145, 147))
        assert told.stalls[2:] == [("a", 30.0, False)]


def test_a_step_that_works_off_its_records_does_not_hang(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = quiet_watch(monkeypatch)
    with watch.over(told):
        watch.step, watch.calls = "a", 1
        watch.left = left = iter(range(1_000))
        for now_s in range(100):
            next(left)
            watch.look(float(now_s))
    assert told.stalls == []


def test_waiting_for_records_is_no_stall(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = quiet_watch(monkeypatch)
    with watch.over(told):
        looked(watch, range(1_000))
    assert told.said == [{"alive": True}] * 1_000


def test_the_end_of_a_task_ends_its_stall(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = quiet_watch(monkeypatch)
    with watch.over(told):
        watch.step, watch.calls = "a", 1
        looked(watch, range(15))
        CLOCK.now_s = 15.0
    assert len(told.stalls) == 2
    looked(watch, range(16, 40))
    assert told.stalls == [("a", 10.0, False), ("a", 15.0, True)]


def test_a_watch_looks_by_itself_while_a_task_runs(told: Any) -> None:
    watch = Watch()
    waiting = threading.Event()

    def say(message: dict[str, Any]) -> None:
        told.said.append(message)
        waiting.set()

    told.say = say
    with watch.over(told):
        assert waiting.wait(60)
    assert told.said[0] == {"alive": True}


def test_a_stack_is_short_however_deep_the_code_is() -> None:
    def deep(levels: int) -> tuple[str, ...]:
        return deep(levels - 1) if levels else stack_of(threading.get_ident())

    stack = deep(100)
    assert len(stack) == MOST_FRAMES
    assert all(len(line) <= LONGEST_FRAME for line in stack)
    assert stack_of(-1) == ()


def test_a_stack_shows_the_line_at_which_a_thread_waits() -> None:
    going = threading.Event()

    def user_code() -> None:
        going.wait()

    thread = threading.Thread(target=user_code)
    thread.start()
    try:
        until(
            lambda: "in user_code: going.wait()" in str(stack_of(thread.ident or 0)),
            "the line at which it waits",
        )
    finally:
        going.set()
        thread.join()


def test_the_other_end_of_a_socket_is_seen_to_be_gone() -> None:
    here, there = socket.socketpair()
    with here:
        there.sendall(b"what was not read yet")
        assert not module._is_closed(here)
        there.close()
        assert module._is_closed(here)
    assert not module._is_closed(None)
