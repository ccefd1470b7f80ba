"""A keyed step in a task: the user's function, called with the records and the state of a key.

One ``Keyed`` lives for one partition in one batch::

    store.open(batch_id - 1)
    keyed = Keyed(...)
    for groups in hand_overs:
        yield from keyed.on_rows(groups)
        yield from keyed.due()
    keyed.finish(batch_id)

In event time the watermark is the newest event time that this partition has seen, minus the
lateness. It belongs to the partition and not to the stream: in a partition without records it
stands still. It moves only in ``due``, so that the records of one hand-over are never late relative
to each other, and it is part of the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import FlowFailed, InputError, StepFailed
from tailrace.state.plain import NotPlain, Packer, dumps, loads
from tailrace.state.state import State, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tailrace.state.state import Key
    from tailrace.state.store import Store

    Group = tuple[Key, list[Any], int | None]
    Initial = dict[Any, Any] | Callable[[], dict[Any, Any]] | None

_NO_ROWS = (dict, str, bytes, bytearray)
"""Types that can be iterated over, but were surely meant as one row."""


def initial_maker(step: str, initial: Initial) -> Callable[[], dict[Any, Any]]:
    """A function that makes the state of a new key, from the user's ``state=`` argument."""
    if initial is None:
        return dict
    if isinstance(initial, dict):
        try:
            packed = dumps(dict(initial))
        except NotPlain as error:
            raise InputError(
                f"The initial state of step '{step}' cannot be kept, because {error}: use only "
                "numbers, texts, dates, lists, dicts and similar plain data."
            ) from error
        return lambda: loads(packed)
    if callable(initial):
        return lambda: _checked_initial(step, initial())
    raise InputError(
        f"The initial state of step '{step}' is {initial!r}: give a dict, a function that returns "
        "one, or None."
    )


def _checked_initial(step: str, made: object) -> dict[Any, Any]:
    if not isinstance(made, dict):
        raise StepFailed(
            f"The initial state of step '{step}' came out as {made!r}: have the function return a "
            "dict."
        )
    return made


class Keyed:
    """Calls a user's function for every key, and its timers when they are due.

    An error in the user's code is raised unchanged. With ``keep_on_error`` the state of the key is
    then restored to what it was before that call, and the task may go on with the next group; this
    costs one serialisation of the state per call. Otherwise the task has failed, and ``finish``
    refuses to write the state that half a call has left.
    """

    def __init__(
        self,
        step: str,
        function: Callable[[Any, list[Any], State], Iterable[Any] | None],
        store: Store,
        *,
        clock: Callable[[], int],
        initial: Initial = None,
        on_timer: Callable[[Any, State], Iterable[Any] | None] | None = None,
        event_time: bool = False,
        lateness_us: int = 0,
        keep_on_error: bool = False,
    ) -> None:
        """``clock`` returns microseconds since the epoch; ``store`` is already open."""
        self._step = step
        self._function = function
        self._store = store
        self._attempt = store.attempt
        self._clock = clock
        self._initial = initial_maker(step, initial)
        self._on_timer = on_timer
        self._event_time = event_time
        self._lateness_us = lateness_us
        self._keep_on_error = keep_on_error
        self._packer = Packer()
        self._broken = False
        self._watermark_us: int | None = None
        self._advance()
        self.current: Key = None
        """The key of the last call, to name it when ``due`` raises an error."""

    def on_rows(self, groups: Iterable[Group]) -> Iterator[tuple[Key, Any]]:
        """Call the function once for every key of a hand-over; yields its rows, each with the key.

        A group is a key, its records, and the newest event time among them. After an error the rest
        of ``groups`` has not been consumed; it may be passed in another call.
        """
        for key, rows, newest_us in groups:
            for row in self._call(canonical(key), rows, newest_us):
                yield key, row

    def _call(self, key: Key, rows: list[Any], newest_us: int | None) -> list[Any]:
        store = self._store
        store.touch(key)
        if newest_us is not None:
            before_us = store.newest_event_us
            store.newest_event_us = newest_us if before_us is None else max(before_us, newest_us)
            if before_us is None:
                self._advance()
        state = store.values.get(key)
        fresh = state is None
        if state is None:
            state = State(self._initial())
        return self._run(key, state, fresh, lambda: self._function(key, rows, state))

    def due(self) -> Iterator[tuple[Key, Any]]:
        """Let time pass: call ``on_timer`` for the timers that are due, in order of time.

        A timer is used up when it is called, even if the call fails. One that is set in the
        meantime waits for the next call of ``due``, even if it is due already. Call this after
        every hand-over, and again after an error to go on.
        """
        self._advance()
        now_us = self._now_us()
        if now_us is None:
            return
        timers = self._store.timers
        waiting = timers.take(now_us)
        waiting.reverse()
        try:
            while waiting:
                timer_us, key = waiting.pop()
                if timers.holds(timer_us, key):
                    for row in self._fire(key):
                        yield key, row
        finally:
            for timer_us, key in waiting:
                timers.add(timer_us, key)

    def _fire(self, key: Key) -> list[Any]:
        on_timer = self._on_timer
        if on_timer is None:
            raise self._no_on_timer(key)
        self._store.touch(key)
        state = self._store.values[key]
        state.timer_us = None
        return self._run(key, state, False, lambda: on_timer(key, state))

    def _run(
        self, key: Key, state: State, fresh: bool, call: Callable[[], Iterable[Any] | None]
    ) -> list[Any]:
        """Make one call on a state, and keep the new state or restore the old one."""
        self.current = key
        timer_us = state.timer_us
        copy = None
        if self._keep_on_error and not fresh:
            copy = self._copy(key, state)
        state.now_us = self._now_us()
        self._broken = True
        try:
            rows = self._rows(key, call())
        except Exception:
            if self._keep_on_error:
                if copy is not None:
                    state.clear()
                    state.update(loads(copy))
                    state.timer_us = timer_us
                    self._settle(key, state, timer_us, fresh)
                self._broken = False
            raise
        self._settle(key, state, timer_us, fresh)
        self._broken = False
        return rows

    def _copy(self, key: Key, state: State) -> bytes:
        try:
            self._packer.add(dict(state))
            return self._packer.take()
        except NotPlain as error:
            raise self._store.unfit(key, error) from error

    def _settle(self, key: Key, state: State, timer_before_us: int | None, fresh: bool) -> None:
        """Keep the state and the timer that a call has left; an empty state is forgotten."""
        timer_us = state.timer_us
        if timer_us is not None and self._on_timer is None:
            raise self._no_on_timer(key)
        if not state and timer_us is None:
            self._store.forget(key)
            return
        if fresh:
            self._store.put(key, state)
        if timer_us is not None and timer_us != timer_before_us:
            self._store.timers.add(timer_us, key)

    def _rows(self, key: Key, made: object) -> list[Any]:
        """All rows of a call, before any is passed on: a call that fails halfway returns none."""
        if made is None:
            return []
        if isinstance(made, _NO_ROWS) or not hasattr(made, "__iter__"):
            raise StepFailed(
                f"Step '{self._step}' returned {type(made).__name__} for key "
                f"{self._store.shown(key)}: yield rows, return a list of them, or return None."
            )
        return list(made)

    def finish(self, batch_id: int) -> None:
        """Write the state as of the end of the batch, before Spark commits it."""
        if self._broken or self._store.attempt != self._attempt:
            raise FlowFailed(
                f"Step '{self._step}' did not reach the end of batch {batch_id}, so its state "
                "is not written: the batch has to be run again."
            )
        self._store.write(batch_id)

    def _advance(self) -> None:
        newest_us = self._store.newest_event_us
        if newest_us is not None:
            self._watermark_us = newest_us - self._lateness_us

    def _now_us(self) -> int | None:
        return self._watermark_us if self._event_time else self._clock()

    def _no_on_timer(self, key: Key) -> StepFailed:
        return StepFailed(
            f"Step '{self._step}' has set a timer for key {self._store.shown(key)} but has no "
            "on_timer: pass on_timer=, a function of the key and its state, or do not call "
            "state.wake()."
        )
