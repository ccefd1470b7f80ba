"""The timers of a partition, in order of time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.state.state import Key, State

_SLACK = 64


class Timers:
    """A heap of (moment, key) beside the states, which say what is true.

    A timer that was replaced or cancelled stays in the heap and is passed over when its turn
    comes: the state of the key names another moment by then. When more than half of the heap
    must be of that kind it is built anew, so it never outgrows the states.
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
        """Note the timer that the state of a key has just got."""
        heappush(self._heap, (timer_us, next(self._order), key))
        if len(self._heap) > 2 * len(self._states) + _SLACK:
            self._build()

    def holds(self, timer_us: int, key: Key) -> bool:
        """Whether a key has a timer at this moment still."""
        state = self._states.get(key)
        return state is not None and state.timer_us == timer_us

    def take(self, until_us: int) -> list[tuple[int, Key]]:
        """Take out the timers up to a moment, in order of time; of equal ones, of setting."""
        taken: dict[tuple[int, Key], None] = {}
        while self._heap and self._heap[0][0] <= until_us:
            timer_us, _, key = heappop(self._heap)
            if self.holds(timer_us, key):
                taken[timer_us, key] = None
        return list(taken)

    def __len__(self) -> int:
        """How many entries the heap has, passed over or not."""
        return len(self._heap)
