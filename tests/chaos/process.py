"""The harness's side of a driver: starts it, speaks to it, kills it, and sees what it leaves."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from .flows import FLOWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .flows import How, Place

PATIENCE_S = 120.0
"""For whatever a driver is waited for, on a machine that does other things as well."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m"
"""A short life pays for no compiler."""

HARMLESS = (
    "Picked up JAVA_TOOL_OPTIONS",
    "WARNING: Using incubator modules",
    "tailrace: Spark ",  # says which Kafka connector a machine got that had none yet
)
WARNINGS = tuple(f"{flow}: " for flow in FLOWS)
DAEMON = "tailrace.spark.worker.daemon"


class Stuck(Exception):  # noqa: N818 - it reads as the sentence it starts
    """What was waited for did not come."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise Stuck(f"not in {seconds:.0f} s: {what}")
        pause.wait(0.02)


@dataclass(frozen=True, slots=True)
class Said:
    """What a driver said about a flow."""

    flow: str | None
    event: str
    sentence: str = ""
    kind: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the flow does not run any more."""
        return self.event in {"ok", "refused", "failed", "traceback"}


class Driver:
    """A driver, in a session of processes of its own."""

    def __init__(self, directory: Path, number: int, master: str) -> None:
        """Start it; it makes its session while others go on."""
        self.number = number
        self.temporary = directory / f"tmp-{number}"
        self.temporary.mkdir(parents=True)
        self._noise: list[str] = []
        self._queue: queue.Queue[Said] = queue.Queue()
        self.jvm = 0
        self.running: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.driver", master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                "JAVA_TOOL_OPTIONS": f"{QUICK} -Djava.io.tmpdir={self.temporary}",
                "TMPDIR": str(self.temporary),
            },
        )
        threading.Thread(target=self._hear, daemon=True).start()
        threading.Thread(target=self._overhear, daemon=True).start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = {"flow": None, "event": "noise", "sentence": line.decode(errors="replace")}
            if said["event"] == "ready":
                self.jvm = said.pop("jvm")
            self._queue.put(Said(**said))

    def _overhear(self) -> None:
        """Gather standard error; not in a file, which a full disk would keep it from.

        Warnings of a flow, which begin with its name, are sentences that a user shall see.
        """
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            if text and not text.startswith((*HARMLESS, *WARNINGS)):
                self._noise.append(text)

    # --- speaking ------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process of Python."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait for its session."""
        until(lambda: self.jvm or not self.alive, "a driver with a session")
        if not self.jvm:
            raise Stuck(f"the driver ended before it had a session: {self.noise()[-800:]}")

    def start(self, flow: str, place: Place, how: How) -> None:
        """Have a flow started; what comes of it is heard later."""
        self.running.add(flow)
        self._tell(start=flow, place=str(place.directory), servers=place.servers, how=how.told())

    def stop(self, *flows: str) -> None:
        """Have flows stopped between two batches."""
        self._tell(stop=flows)

    def heard(self) -> list[Said]:
        """What it has said since the last time."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        for said in found:
            if said.flow and said.is_over:
                self.running.discard(said.flow)
        return found

    def _tell(self, **what: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # that it is dead is seen by whoever waits for it
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    # --- its processes -------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Whatever is left of it: the driver, its JVM, the workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.pid and process.status() != "zombie":
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """The daemon that Python workers are forked from, and they."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if DAEMON in process.cmdline():
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill the driver alone; its JVM and workers are to see to it themselves."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """Kill it with all that it started, as a power cut would."""
        for process in (psutil.Process(self.pid), *self.processes()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def has_jvm(self) -> bool:
        """Whether it is there with its JVM."""
        if not self.alive:
            return False
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.jvm).status() != "zombie"
        return False

    def end(self) -> list[str]:
        """End it properly; the complaints about it.

        A JVM that was killed leaves its temporary files: they are Spark's, and it removes them at
        its end.
        """
        whole = self.has_jvm
        if self.alive:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S)
        complaints = [f"the driver did not end in {PATIENCE_S:.0f} s"] if self.alive else []
        complaints += self.leaks()
        if whole and self._process.returncode == 0 and any(self.temporary.iterdir()):
            left = sorted(path.name for path in self.temporary.iterdir())
            complaints.append(f"left in the temporary directory: {', '.join(left[:5])}")
        self.bury()
        return complaints

    def leaks(self) -> list[str]:
        """Wait until nothing is left of a driver that is gone; what is, all the same."""
        try:
            until(lambda: not self.processes(), "the end of every process", 30.0)
        except Stuck:
            return [f"left running: {' '.join(p.cmdline()[:4])}" for p in self.processes()]
        return []

    def bury(self) -> None:
        """Whatever happened, nothing is left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError, ValueError):
                    pipe.close()

    def noise(self) -> str:
        """What it put on standard error, which is for what must be known."""
        return "\n".join(self._noise)
