from __future__ import annotations

import threading
import time

import pytest

from bench import standstill as module
from bench.standstill import Standstill, moving


class Stopping:
    """A clock that now and then jumps, as that of a machine that was stopped."""

    def __init__(self, *jumps_s: float) -> None:
        self._jumps_s = list(jumps_s)
        self._lost_s = 0.0
        self.asked = threading.Event()

    def __call__(self) -> float:
        self._lost_s += self._jumps_s.pop(0) if self._jumps_s else 0.0
        if not self._jumps_s:
            self.asked.set()
        return time.time() + self._lost_s


def test_a_machine_that_stands_still_is_noticed() -> None:
    clock = Stopping(0.0, 0.0, 18.0, 0.0)
    with Standstill(clock) as watched:
        assert clock.asked.wait(10)
    assert watched.longest_s == pytest.approx(18.0, abs=2.0)


def test_a_run_in_which_the_machine_stood_still_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter((5.0, 0.1, 5.0))

    class Told(Standstill):
        def __exit__(self, *_: object) -> None:
            super().__exit__()
            self.longest_s = next(found)

    monkeypatch.setattr(module, "Standstill", Told)
    runs = iter(range(3))
    assert moving(lambda: next(runs)) == 1
