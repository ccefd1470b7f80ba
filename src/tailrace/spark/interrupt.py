"""Ctrl-C, or SIGTERM, as a request to end instead of an exception in the middle of something."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ASKING = (signal.SIGINT, signal.SIGTERM)
"""What a terminal sends, and what supervisors of services and containers send."""


@contextmanager
def ctrl_c(again: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, for a clean end; the second interrupts as usual.

    With ``again`` the second calls that, to speed up the end, and the third interrupts.

    SIGTERM does the same: otherwise it would end Python on the spot, without cleaning up. PySpark's
    own handler is replaced meanwhile, since it would cancel the current batch. And nothing is
    raised while waiting for a thread, which Python 3.11 and 3.12 would then consider ended.
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
