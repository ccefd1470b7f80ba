"""Has another backend take over while a flow runs, in a thread of its own.

A change is a restart where a batch ends, on the same offsets and the same state. It waits for the
threads of the backend that ends, so that none of them may make it.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from tailrace.control.actions import SwitchBackend
from tailrace.control.events import Refused
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.control.events import Event
    from tailrace.plan import Backend

AUTO = "auto"


class Switch:
    """Makes the changes that it is asked for, one after the other."""

    def __init__(self, change: Callable[[Backend], None], tell: Callable[[Event], object]) -> None:
        """``change`` makes one, or raises; ``tell`` hears of what could not be made."""
        self._change = change
        self._tell = tell
        self._wanted = queue.SimpleQueue[SwitchBackend | None]()
        self._thread = threading.Thread(target=self._work, name="tailrace-switch", daemon=True)
        self._thread.start()

    def ask(self, action: SwitchBackend) -> None:
        """Have a change made soon."""
        self._wanted.put(action)

    def close(self) -> None:
        """Finish the change at hand, and make no other."""
        self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (action := self._wanted.get()) is not None:
            try:
                self._change(action.backend)
            except TailraceError as error:
                self._tell(Refused(action, str(error)))
