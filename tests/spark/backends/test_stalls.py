"""What the driver records about stalls, and when it finds that a batch hangs, without Spark."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from tailrace.profile.stall import Stall
from tailrace.spark.backends import stalls
from tailrace.spark.backends.stalls import MOST, MOST_SAID, Phases, Stalls

STEP = Stall("step", 7, 10.0, "parse", 2, stack=("job.py:3 in parse: wait()",))


def test_a_stall_is_warned_of_when_it_is_new_has_doubled_or_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Stalls("tested")
    with caplog.at_level(logging.WARNING):
        for seconds in (10.0, 15.0, 20.0, 39.0, 40.0):
            kept.hear(replace(STEP, seconds=seconds))
        kept.hear(replace(STEP, seconds=41.0, stack=(), over=True))
    at = "(at job.py:3 in parse: wait())"
    has_hung = "tested: Step 'parse' has hung in partition 2 of batch 7 for"
    assert caplog.messages == [
        f"{has_hung} 10 s {at}.",
        f"{has_hung} 20 s {at}.",
        f"{has_hung} 40 s {at}.",
        f"tested: Step 'parse' hung in partition 2 of batch 7 for 41 s {at}, then went on.",
    ]
    (stall,) = kept.found
    assert stall == replace(STEP, seconds=41.0, over=True)
    assert kept.open == ()


def test_however_many_stalls_there_are_a_report_stays_short() -> None:
    kept = Stalls("tested")
    for batch in range(MOST + 20):
        kept.hear(replace(STEP, batch=batch))
    assert len(kept.found) == MOST
    assert kept.notes()[-1] == f"There were {MOST + 20 - MOST_SAID} more stalls."
    assert len(kept.notes()) == MOST_SAID + 1


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stalls, "time", made)
    return made


def took(phases: Phases, clock: Clock, seconds: float, batch: int = 0) -> None:
    phases.begin(batch, "computing", "sink")
    clock.now_s += seconds
    phases.look(clock.now_s)
    phases.end()


def test_a_batch_hangs_that_takes_far_longer_than_the_ones_before(clock: Clock) -> None:
    kept = Stalls("tested")
    phases = Phases(kept, 10.0)
    for seconds in (3.0, 4.0, 3.0, 19.0):  # below five times the longest of them
        took(phases, clock, seconds)
    assert not kept.notes()
    phases.begin(9, "computing", "sink")
    clock.now_s += 96.0
    phases.look(clock.now_s)
    (stall,) = kept.open
    assert (stall.batch, stall.phase, stall.sink, stall.seconds) == (9, "computing", "sink", 96.0)
    assert stall.stack  # of this thread, which began the batch
    clock.now_s += 4.0
    phases.end()
    assert [found.seconds for found in kept.found] == [100.0]
    assert all(found.over for found in kept.found)


def test_the_first_batches_have_longer(clock: Clock) -> None:
    kept = Stalls("tested")
    phases = Phases(kept, 10.0)
    took(phases, clock, 49.0)
    assert kept.found == ()
    took(phases, clock, 50.0)
    assert len(kept.found) == 1


def test_a_batch_whose_step_hangs_is_reported_once(clock: Clock) -> None:
    kept = Stalls("tested")
    kept.hear(STEP)
    took(Phases(kept, 10.0), clock, 1_000.0)
    assert kept.found == (STEP,)


def test_nothing_hangs_between_two_batches(clock: Clock) -> None:
    kept = Stalls("tested")
    phases = Phases(kept, 10.0)
    took(phases, clock, 1.0)
    clock.now_s += 1e6
    phases.look(clock.now_s)
    assert kept.found == ()
    assert phases.batch is None


def test_what_a_thread_does_is_shown_to_another(clock: Clock) -> None:
    kept = Stalls("tested")
    phases = Phases(kept, 10.0)
    begun, going = threading.Event(), threading.Event()

    def publish() -> None:
        phases.begin(3, "publishing", "sink")
        begun.set()
        going.wait()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert begun.wait(60)
        clock.now_s += 1_000.0
        phases.look(clock.now_s)
    finally:
        going.set()
        thread.join()
    (stall,) = kept.open
    assert "in publish" in str(stall.stack)
    assert stall.sentence.startswith("Batch 3 has been publishing for the sink 'sink' for 1000 s (")
