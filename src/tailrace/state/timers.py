"""The timers of a partition, in order of time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.state.state import Key, State

_SLACK = 64


class Timers:
    """A heap of (time, key) beside the states, which are authoritative.

    A replaced or cancelled timer stays in the heap and is skipped when its turn comes, because the
    state of the key then has another time. When more than half of the heap must be such entries it
    is rebuilt, so it never outgrows the states.
    """

    def __init__(self, states: dict[Key, State]) -> None:
        """``states`` is kept, not copied."""
        self._states = states
        self._order = count()
        self._build()

    def _build(self) -> None:
        self._heap = [
            (state.timer_us, next(self._order), key)
            for key, state in self._states.items()
            if state.timer_us is not None
        ]
        heapify(self._heap)

    def add(self, timer_us: int, key: Key) -> None:
        """Add the timer that has just been set for a key."""
        heappush(self._heap, (timer_us, next(self._order), key))
        if len(self._heap) > 2 * len(self._states) + _SLACK:
            self._build()

    def holds(self, timer_us: int, key: Key) -> bool:
        """Whether a key still has a timer at this time."""
        state = self._states.get(key)
        return state is not None and state.timer_us == timer_us

    def take(self, until_us: int) -> list[tuple[int, Key]]:
        """Remove and return the timers up to a time, in order of time, then of being set."""
        taken: dict[tuple[int, Key], None] = {}
        while self._heap and self._heap[0][0] <= until_us:
            timer_us, _, key = heappop(self._heap)
            if self.holds(timer_us, key):
                taken[timer_us, key] = None
        return list(taken)

    def __len__(self) -> int:
        """The number of heap entries, including those to be skipped."""
        return len(self._heap)
