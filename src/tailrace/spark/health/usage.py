"""What a run uses: wall time, CPU time of all its processes here, slots, and energy."""

from __future__ import annotations

import threading
import time

import psutil

from tailrace.report.data import Usage
from tailrace.spark.health.energy import EnergyMeter

LOOK_S = 5.0
"""How often a meter reads: a process that ends counts with its last reading."""


class _Clock:
    """Adds up what processes use, including ended ones, as far as they were seen.

    The system adds the time of an ended process to the parent that waits for it, but Spark's daemon
    does not wait for its Python workers, so their time would be lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended_s = 0.0
        self._alive: dict[psutil.Process, float] = {}

    def read(self) -> float:
        here = psutil.Process()
        with self._lock:
            alive = {}
            for process in (here, *here.children(recursive=True)):
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue  # just ended: its last reading is kept
                alive[process] = times.user + times.system
            self._ended_s += sum(s for process, s in self._alive.items() if process not in alive)
            self._alive = alive
            return self._ended_s + sum(alive.values())


cpu_seconds = _Clock().read
"""CPU seconds so far of this process and everything that it started, as far as seen."""


class UsageMeter:
    """Measures from its creation until it is closed."""

    def __init__(self, slots: int) -> None:
        """``slots`` are the task slots that the run holds at the start."""
        self._slots = slots
        self._held_s = 0.0
        self._held_from_s = time.monotonic()
        self._closed = threading.Event()
        self._began_s = time.monotonic()
        self._began_cpu_s = cpu_seconds()
        self._energy = EnergyMeter()
        self._thread = threading.Thread(target=self._look, name="tailrace-usage", daemon=True)
        self._thread.start()

    def read(self) -> Usage:
        """What was used so far."""
        now_s = time.monotonic()
        core_s = self._held_s + self._slots * (now_s - self._held_from_s)
        cpu_s = cpu_seconds() - self._began_cpu_s
        return Usage(now_s - self._began_s, core_s, cpu_s, self._energy.read())

    def hold(self, slots: int) -> None:
        """Count with another number of slots from now on."""
        if slots != self._slots:
            now_s = time.monotonic()
            self._held_s += self._slots * (now_s - self._held_from_s)
            self._held_from_s, self._slots = now_s, slots

    def close(self) -> None:
        """Stop measuring."""
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            cpu_seconds()
            self._energy.read()
