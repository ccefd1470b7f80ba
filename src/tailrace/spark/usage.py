"""What a run uses: wall time and the CPU time of this process, its JVM and its Python workers."""

from __future__ import annotations

import time

import psutil

from tailrace.report.data import Usage


def cpu_seconds() -> float:
    """CPU seconds so far of this process and everything that it started, the ended included."""
    total = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # ended just now: its time is in its parent's
        total += times.user + times.system
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


class Meter:
    """Measures from when it is made."""

    def __init__(self, slots: int) -> None:
        """``slots`` are the task slots that the run holds."""
        self._slots = slots
        self._began_s = time.monotonic()
        self._began_cpu_s = cpu_seconds()

    def read(self) -> Usage:
        """What was used since."""
        return Usage(
            time.monotonic() - self._began_s, self._slots, cpu_seconds() - self._began_cpu_s
        )
