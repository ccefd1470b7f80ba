"""Repeats runs during which the virtual machine was stopped."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

STILL_S = 2.0
"""A machine that does nothing for this long was not slow, but stopped."""

TRIES = 3

_LOOK_S = 0.1


class Standstill:
    """Notices when the machine stands still, as a virtual machine does while it is copied or moved.

    While it is active, a thread reads the clock ten times per second.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        """``now_s`` is a clock that goes on during a standstill."""
        self.longest_s = 0.0
        self._now_s = now_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Standstill:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before_s = self._now_s()
        while not self._over.wait(_LOOK_S):
            now_s = self._now_s()
            self.longest_s = max(self.longest_s, now_s - before_s - _LOOK_S)
            before_s = now_s


def moving(run: Callable[[], _T]) -> _T:
    """The result of a run during which the machine did not stand still, or of the last try."""
    for _ in range(TRIES):
        with Standstill() as watched:
            result = run()
        if watched.longest_s < STILL_S:
            break
        _LOG.warning("The machine stood still for %.1f s.", watched.longest_s)
    return result
