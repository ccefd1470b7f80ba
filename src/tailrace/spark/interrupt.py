"""Ctrl-C, or SIGTERM, as a request to end, not as an exception in the middle of something."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ASKING = (signal.SIGINT, signal.SIGTERM)
"""What a terminal sends, and what supervisors of services and containers do."""


@contextmanager
def ctrl_c(again: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, for a gentle end; the second interrupts as always.

    With ``again`` the second calls that, to hurry the end, and the third interrupts.

    SIGTERM does the same: it would otherwise end Python on the spot, and whatever is to be removed
    at the end would stay. PySpark's own handler stands aside meanwhile: it would cancel the batch
    at hand. And nothing is raised into the wait for a thread, which Python 3.11 and 3.12 would then
    take for ended.
    """
    asked = threading.Event()
    acts = iter((asked.set,) if again is None else (asked.set, again))

    def ask(number: int, frame: FrameType | None) -> None:
        act = next(acts, None)
        if act is None:
            signal.default_int_handler(number, frame)
        else:
            act()

    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals go to the main thread
        return
    before = {number: signal.signal(number, ask) for number in ASKING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
