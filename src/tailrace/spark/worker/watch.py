"""Watches over the steps that a Python worker runs, from a thread of its own.

The working thread only writes plain attributes: which step it is in, the number of the call, and
what is left of the hand-over. Once a second the watch checks whether they have changed. It reports
that the task is alive, so that silence means lost messages; it reports when a step hangs, with its
stack, and when it continues. A worker whose task was cancelled while a step hung would never
notice: the watch ends it. Kept light: every worker imports it, and the daemon before it forks.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import sysconfig
import threading
import time
import traceback
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket

    from tailrace.spark.worker.telemetry import TelemetryClient, Voice

LOOK_S = 1.0

PATIENCE = 2.0
"""A step that hung and continued is reported again only when it takes this many times as long; one
that still hangs, whenever it has hung this many times as long as at the last report."""

ALONE_LOOKS = 2
"""A worker ends when the other end of its socket was gone in this many checks in a row."""

MOST_FRAMES = 10
LONGEST_FRAME = 160

_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_LIBRARIES = (*(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib")), "<frozen")
_OWN = tuple(str(Path(__file__).parents[2] / room) for room in ("spark", "state"))


class _Task(NamedTuple):
    """The current task, and how to report about it."""

    voice: Voice
    stall_s: float
    thread: int


class Watch:
    """What one worker is doing; the working thread writes ``step``, ``calls`` and ``left``.

    ``step`` is None between steps. ``left`` is the iterator over what the step still has to do, if
    its length is known. ``connection`` is where the worker gets its records from.
    """

    def __init__(self) -> None:
        """Nothing to watch yet."""
        self.step: str | None = None
        self.calls = 0
        self.left: object = ()
        self.connection: socket | None = None
        self._task: _Task | None = None
        self._lock = threading.Lock()
        self._running = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: tuple[object, ...] = ()
        self._since_s = 0.0
        self._alone = 0
        self._open: tuple[_Task, str] | None = None
        self._next_s = 0.0
        self._longest_s: dict[str, float] = {}

    @contextmanager
    def over(self, client: TelemetryClient) -> Iterator[None]:
        """Watch over the steps of one task."""
        voice = client.voice("watch")
        self._task = _Task(voice, client.stall_s, threading.get_ident())
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="tailrace-watch", daemon=True)
            self._thread.start()
        self._running.set()
        try:
            yield
        finally:
            self._running.clear()
            self._task = self.step = None
            self.left = ()
            if self._open is not None:
                self.look(time.monotonic())  # report the end of a hang before its batch ends

    def _keep(self) -> None:
        while True:
            self._running.wait()
            time.sleep(LOOK_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Report that the task is alive, or that its step hangs or continues."""
        with self._lock:
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        task, step = self._task, self.step
        seen = (id(task), self.calls, step, length_hint(self.left))
        if seen != self._seen:
            self._goes_on(now_s)
            self._seen, self._since_s, self._alone = seen, now_s, 0
        if task is None:
            return
        lasted_s = now_s - self._since_s
        if step is None or lasted_s < self._due_s(task, step):
            task.voice.say({"alive": True})
        else:
            self._open, self._next_s = (task, step), PATIENCE * lasted_s
            task.voice.say(_stalled(step, lasted_s, stack_of(task.thread)))
        if step is not None:
            self._end_if_alone()

    def _due_s(self, task: _Task, step: str) -> float:
        """How long a step may take before the next report on it."""
        if self._open is not None:
            return self._next_s
        return max(task.stall_s, PATIENCE * self._longest_s.get(step, 0.0))

    def _goes_on(self, now_s: float) -> None:
        if self._open is None:
            return
        (task, step), self._open = self._open, None
        lasted_s = now_s - self._since_s
        self._longest_s[step] = max(lasted_s, self._longest_s.get(step, 0.0))
        task.voice.say(_stalled(step, lasted_s, over=True))

    def _end_if_alone(self) -> None:
        """End a worker whose task is gone: it was cancelled while a step hung."""
        self._alone = self._alone + 1 if _is_closed(self.connection) else 0
        if self._alone >= ALONE_LOOKS:
            os.kill(os.getpid(), signal.SIGKILL)


def _stalled(
    step: str, seconds: float, stack: tuple[str, ...] = (), *, over: bool = False
) -> dict[str, Any]:
    return {"stalled": step, "seconds": round(seconds, 3), "stack": stack, "over": over}


def _is_closed(connection: socket | None) -> bool:
    """Whether the other end of a socket is gone."""
    if connection is None:
        return False
    poll = select.poll()
    poll.register(connection, _CLOSED)
    return any(event & _CLOSED for _, event in poll.poll(0))


def stack_of(thread: int) -> tuple[str, ...]:
    """Where a thread is in the user's code: the innermost frames, one line each.

    Frames inside libraries are left out, unless there are no others.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ()
    frames = traceback.extract_stack(frame)
    own = [place for place, at in enumerate(frames) if at.filename.startswith(_OWN)]
    theirs = frames[own[-1] + 1 :] if own else frames
    users = [place for place, at in enumerate(theirs) if not at.filename.startswith(_LIBRARIES)]
    shown = theirs[: users[-1] + 1] if users else theirs or frames
    return tuple(_line(at) for at in shown[-MOST_FRAMES:])


def _line(at: traceback.FrameSummary) -> str:
    place = "/".join(Path(at.filename).parts[-2:])
    source = f": {at.line}" if at.line else ""
    return f"{place}:{at.lineno} in {at.name}{source}"[:LONGEST_FRAME]


WATCH = Watch()
"""The watch of this worker, which is a process and runs one task at a time."""
