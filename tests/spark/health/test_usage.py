"""What a run uses: the time of processes that have ended is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from tailrace.spark.health.usage import UsageMeter, cpu_seconds

BURN = """
import os, signal, time
if os.fork() == 0:  # not waited for: its parent ends first, like a daemon of workers
    while time.process_time() < 0.4:
        pass
    print("burnt", flush=True)
    signal.pause()
else:
    signal.pause()
"""


def test_the_time_of_a_killed_process_and_of_its_orphans_is_kept() -> None:
    meter = UsageMeter(1)
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "burnt\n"
        before = meter.read().cpu_s
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    after = meter.read().cpu_s
    meter.close()
    assert before > 0.3
    assert after >= before


def test_a_closed_meter_leaves_no_thread() -> None:
    meter = UsageMeter(1)
    meter.close()
    assert not any(thread.name == "tailrace-usage" for thread in threading.enumerate())
    assert cpu_seconds() > 0
