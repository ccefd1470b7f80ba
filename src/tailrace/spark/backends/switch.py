"""Has another backend take over while a flow runs, in a thread of its own.

A change is a restart at the end of a batch, on the same offsets and the same state. It waits for
the threads of the backend that ends, so it must not run in one of them.
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
    """Makes the requested changes, one after the other."""

    def __init__(self, change: Callable[[Backend], None], tell: Callable[[Event], object]) -> None:
        """``change`` makes one, or raises; ``tell`` gets those that could not be made."""
        self._change = change
        self._tell = tell
        self._wanted = queue.SimpleQueue[SwitchBackend | None]()
        self._thread = threading.Thread(target=self._work, name="tailrace-switch", daemon=True)
        self._thread.start()

    def ask(self, action: SwitchBackend) -> None:
        """Request a change."""
        self._wanted.put(action)

    def close(self) -> None:
        """Finish the current change, and make no other."""
        self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (action := self._wanted.get()) is not None:
            try:
                self._change(action.backend)
            except TailraceError as error:
                self._tell(Refused(action, str(error)))
