"""Stalls of a run, as the driver knows them: kept for the report, with a warning as they happen."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from tailrace.profile.stall import Stall
from tailrace.spark.worker.watch import stack_of

_LOG = logging.getLogger(__name__)

MOST = 100
"""How many stalls are kept; further ones are only counted."""

MOST_SAID = 5
"""How many of them a report describes in sentences."""

UNUSUAL = 5.0
RECENT = 20
FEW = 3
"""A phase of a batch hangs when it lasts this many times as long as the longest of the recent ones;
with too few to compare with, this many times the limit for a stall."""

AGAIN = 2.0
"""The warning for a stall is repeated when it has lasted this many times as long."""


class Stalls:
    """The stalls of one run of a flow, by where they are."""

    def __init__(self, flow: str) -> None:
        """None yet."""
        self._flow = flow
        self._lock = threading.Lock()
        self._found: dict[tuple[object, ...], Stall] = {}
        self._warned_s: dict[tuple[object, ...], float] = {}
        self._more = 0

    def hear(self, stall: Stall) -> None:
        """Keep the latest report of a stall, and warn if it is news."""
        with self._lock:
            if stall.place not in self._found and len(self._found) >= MOST:
                self._more += 1
                return
            before = self._found.get(stall.place)
            if before is not None and not stall.stack:
                stall = replace(stall, stack=before.stack)  # where it was when it hung
            self._found[stall.place] = stall
            known_s = self._warned_s.get(stall.place, 0.0)
            news = stall.over or stall.seconds >= AGAIN * known_s
            if news:
                self._warned_s[stall.place] = stall.seconds
        if news:
            _LOG.warning("%s: %s", self._flow, stall.sentence)

    @property
    def found(self) -> tuple[Stall, ...]:
        """All of them, including those that are over."""
        with self._lock:
            return tuple(self._found.values())

    @property
    def open(self) -> tuple[Stall, ...]:
        """Those that are not over."""
        return tuple(stall for stall in self.found if not stall.over)

    def notes(self) -> tuple[str, ...]:
        """Notes on them for the report."""
        found = self.found
        more = len(found) + self._more - MOST_SAID
        rest = (f"There were {more} more stalls.",) if more > 0 else ()
        return (*(stall.sentence for stall in found[:MOST_SAID]), *rest)


class _Doing(NamedTuple):
    """What is being done with the current batch, since when, and in which thread."""

    batch: int
    phase: str
    sink: str | None
    since_s: float
    thread: int


class Phases:
    """What the driver does with the current batch, and whether that takes far longer than usual.

    A batch may hang outside of steps: in Spark, in a file system, in a user's function that is the
    sink. The working thread notes what it begins; another thread checks.
    """

    def __init__(self, stalls: Stalls, stall_s: float) -> None:
        """``stall_s`` is the shortest time that counts as a stall."""
        self._stalls = stalls
        self._stall_s = stall_s
        self._doing: _Doing | None = None
        self._said: Stall | None = None
        self._took_s: dict[str, deque[float]] = {}

    @property
    def batch(self) -> int | None:
        """The current batch."""
        doing = self._doing
        return None if doing is None else doing.batch

    def begin(self, batch: int, phase: str, sink: str | None = None) -> None:
        """Start the next phase of a batch, in this thread."""
        self.end()
        self._doing = _Doing(batch, phase, sink, time.monotonic(), threading.get_ident())

    def end(self) -> None:
        """End the current phase, if any."""
        doing, self._doing = self._doing, None
        if doing is not None:
            took_s = time.monotonic() - doing.since_s
            self._took_s.setdefault(doing.phase, deque(maxlen=RECENT)).append(took_s)
            said, self._said = self._said, None
            if said is not None:
                self._stalls.hear(replace(said, seconds=took_s, over=True))

    def look(self, now_s: float) -> None:
        """Report that the current phase hangs, unless a step is known to hang."""
        doing = self._doing
        if doing is None or any(stall.step for stall in self._stalls.open):
            return
        lasted_s = now_s - doing.since_s
        if lasted_s >= self._limit_s(doing.phase):
            stack = stack_of(doing.thread)
            self._said = Stall(doing.phase, doing.batch, lasted_s, sink=doing.sink, stack=stack)
            self._stalls.hear(self._said)

    def _limit_s(self, phase: str) -> float:
        """How long a phase may last: several times as long as recent ones; long at the start."""
        took_s = self._took_s.get(phase, ())
        if len(took_s) < FEW:
            return UNUSUAL * self._stall_s
        return max(self._stall_s, UNUSUAL * max(took_s))
