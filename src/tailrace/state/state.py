"""The state of one key: a dict that knows the time and may set a timer."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from tailrace.errors import StepFailed

Key = Any
"""A value of a Spark column, or a tuple of them. It can be hashed; there is no more precise type
for that."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class State(dict[Any, Any]):
    """What a keyed step remembers about one key: any plain data, under names that the user chooses.

    A key whose state is empty and that has no timer is forgotten, so ``state.clear()`` is how a
    step lets go of a key.
    """

    __slots__ = ("now_us", "size", "timer_us")

    def __init__(self, contents: dict[Any, Any], timer_us: int | None = None) -> None:
        """``contents`` is copied, but not deeply."""
        super().__init__(contents)
        self.timer_us = timer_us
        self.now_us: int | None = None
        self.size = 0

    @property
    def now(self) -> datetime:
        """The time of this call, in UTC: the clock, or in event time the watermark.

        Before the partition has seen any event time it is the earliest possible datetime.
        """
        if self.now_us is None:
            return datetime.min.replace(tzinfo=UTC)
        return EPOCH + timedelta(microseconds=self.now_us)

    def wake(self, when: datetime) -> None:
        """Have ``on_timer`` called for this key at ``when``; replaces an earlier timer."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise StepFailed(
                f"state.wake() was given {when!r}: give it a datetime with a time zone, such as "
                "state.now + timedelta(minutes=5)."
            )
        self.timer_us = (when - EPOCH) // _MICROSECOND

    def sleep(self) -> None:
        """Cancel the timer of this key, if it has one."""
        self.timer_us = None


def canonical(key: Key) -> Key:
    """The key as it is looked up: all NaNs are one key, as in Spark, and a row is a plain tuple.

    Python finds a NaN in a dict only if it is the same object.
    """
    if isinstance(key, float):
        return math.nan if math.isnan(key) else key
    if isinstance(key, tuple):
        return tuple(map(canonical, key))
    return key


def shown(key: Key) -> str:
    """A key as messages show it: on one short line."""
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."


def hidden(key: Key) -> str:  # noqa: ARG001 - it stands in for ``shown``
    """The stand-in for a key in messages that must not show it."""
    return "***"
