"""Executors on demand: a user asks for more or fewer, after a look at what that would bring.

In Xu 2021, chapter 2, users add or remove machines by a plan that they see before anything moves.
Spark gives a free slot to any task that is ready, so which step gets the new executors is no
question here. What they would bring is, and the model of the flow answers it.
"""

from __future__ import annotations

import math

from tailrace.errors import InputError
from tailrace.policy.decision import Alternative
from tailrace.policy.scaling.moves import stay, wait
from tailrace.policy.scaling.sizing import Load, Move
from tailrace.units import show_duration, show_rate


class OnDemand:
    """A scaler that moves only on request.

    ::

        executors = tr.OnDemand()
        run = tr.Flow(..., executors=(1, 8), scaler=executors).start()
        move = executors.preview(+2)    # what would happen, and why not less or more
        executors.apply(move)           # at the end of the present interval
        executors.abort()               # back to what was before

    A move that is under way is not overtaken: what is applied or aborted meanwhile follows it.
    """

    name = "on demand"

    def __init__(self) -> None:
        """Begin with the executors that run."""
        self._seen: Load | None = None
        self._wanted: Move | None = None
        self._before: int | None = None
        self._begun = False

    def preview(self, by: int) -> Move:
        """What ``by`` executors more, or fewer, would bring, by the latest measurements."""
        load = self._seen
        if load is None:
            raise InputError("Nothing was measured yet: ask again when an interval is over.")
        now = self._target(load)
        size, limits = now + by, load.limits
        if not limits.least <= size <= limits.most:
            raise InputError(
                f"{now} executors and {by:+d} are {size}, and the flow may have {limits.least} to "
                f"{limits.most}: ask for another number."
            )
        others = [n for n in (now, size - 1, size + 1) if n != size]
        alternatives = [
            Alternative(f"{n} executors", self._latency_ms(load, n), self._said(load, n))
            for n in dict.fromkeys(others)
            if limits.least <= n <= limits.most
        ]
        reason = f"Asked for by hand ({by:+d}): {self._said(load, size)}"
        return Move(size, reason, self._latency_ms(load, size), tuple(alternatives))

    def apply(self, move: Move) -> None:
        """Have a move made when the present interval is over."""
        self._before = None if self._seen is None else self._target(self._seen)
        self._wanted, self._begun = move, False

    def abort(self) -> None:
        """Go back to what ran before the last move, or do not make it if it has not begun."""
        if self._before is not None:
            self._wanted = Move(self._before, "Aborted by hand: back to what ran before.")
            self._begun = False

    def decide(self, load: Load, /) -> Move:
        """The move that was applied last; once, since a cluster that refused would do so again."""
        self._seen = load
        if load.moving:
            return wait(load)
        if self._begun and self._wanted is not None and self._wanted.size != load.size:
            self._wanted = self._before = None
        self._begun = True
        return self._wanted or stay(load, "No other number was asked for.")

    def _target(self, load: Load) -> int:
        """The number that was asked for last, or else the one that runs."""
        if self._wanted is not None:
            return self._wanted.size
        return load.size if load.wanted is None else load.wanted

    @staticmethod
    def _latency_ms(load: Load, size: int) -> float:
        return load.model.latency_ms(size, load.rate_per_s)

    def _said(self, load: Load, size: int) -> str:
        """What a size would do at the present rate, as a sentence."""
        busy = load.model.utilisation(size, load.rate_per_s)
        latency_ms = self._latency_ms(load, size)
        if busy >= 1 or math.isinf(latency_ms):
            return f"at {show_rate(load.rate_per_s)} {size} would not keep up."
        kept = "within" if latency_ms <= load.bound_ms else "above"
        return (
            f"at {show_rate(load.rate_per_s)} {size} would take {show_duration(latency_ms)}, "
            f"{kept} {show_duration(load.bound_ms)}, at {busy:.0%} busy."
        )
