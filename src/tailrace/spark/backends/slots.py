"""The slots of a session, counted across the flows that run in it.

A flow in real-time mode holds its slots as long as it runs, and its batches begin only when all of
them are free. Micro-batches share the rest: one slot is enough for all of them to make progress. A
flow that can never run beside the others would wait silently, so it is refused before it starts.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

MICROBATCH = 0
"""What micro-batches hold: nothing, but now and then they need a free slot."""

SLOTS_S = 60.0
"""How long a cluster may take to provide a flow's slots, for example after losing an executor."""

LOOK_S = 0.2
"""How often the slots of a cluster are counted while they are waited for."""

MOST_NAMES = 5
"""How many flows an error names."""


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The slots that a flow holds as long as it runs, or ``MICROBATCH``."""

    flow: str
    held: int


class Claims:
    """What the flows of one session have claimed. Threads may start flows at the same time."""

    def __init__(self) -> None:
        """Nothing is claimed yet."""
        self._lock = threading.Lock()
        self._claims: dict[object, SlotClaim] = {}

    def claim(self, owner: object, wanted: SlotClaim, there: int) -> str | None:
        """Claim slots in place of the owner's earlier claim; if they do not fit, only say why.

        An owner that asks for no more than it has need not fit beside the others again: when a
        cluster has lost slots, they come back, or every flow would have to go.
        """
        with self._lock:
            before = self._claims.get(owner)
            kept = before is not None and wanted.held <= before.held
            why = lacking(wanted, () if kept else self._others(owner), there)
            if why is None:
                self._claims[owner] = wanted
            return why

    def room(self, owner: object, there: int) -> int:
        """How many slots the owner may hold, including those that it has."""
        with self._lock:
            return max(0, there - _taken(self._others(owner)))

    def release(self, owner: object) -> None:
        """Give up what the owner has claimed, if anything."""
        with self._lock:
            self._claims.pop(owner, None)

    def _others(self, owner: object) -> list[SlotClaim]:
        return [claim for other, claim in self._claims.items() if other is not owner]


def lacking(wanted: SlotClaim, others: Sequence[SlotClaim], there: int) -> str | None:
    """Why a claim does not fit beside others, and what to do; None if it does."""
    live = [other for other in others if other.held]
    held = sum(other.held for other in live)
    if wanted.held == MICROBATCH:
        if not live or held < there:
            return None
        return (
            f"Micro-batches need a free slot, and the session has {there}, {held} of them held by "
            f"{_names(live)} in real-time mode: stop one of those, or use a session with more "
            f"slots ({_enough(held + 1)})."
        )
    taken = _taken(others)
    if taken + wanted.held <= there:
        return None
    said = f"In real-time mode the flow holds {_slots(wanted.held)} and the session has {there}"
    if not taken:
        return (
            f"{said}: use fewer partitions, or a session with more slots ({_enough(wanted.held)})."
        )
    parts = [f"{held} are held by {_names(live)}"] if live else []
    if taken > held:
        batches = [other for other in others if other.held == MICROBATCH]
        parts.append(f"1 is left to the micro-batches of {_names(batches)}")
    return (
        f"{said}, of which {' and '.join(parts)}: stop one of those, use fewer partitions, or a "
        f"session with more slots ({_enough(taken + wanted.held)})."
    )


def _taken(claims: Sequence[SlotClaim]) -> int:
    """The slots that must be left to flows: what they hold, and one for all micro-batches."""
    return sum(claim.held for claim in claims) + any(not claim.held for claim in claims)


def _slots(number: int) -> str:
    return f"{number} slot{'s' if number > 1 else ''}"


def _enough(slots: int) -> str:
    return f"local[{slots}] may have more than there are cores"


def _names(claims: Sequence[SlotClaim]) -> str:
    """The flows that have claims, and how many slots each holds."""
    shown = [
        f"'{claim.flow}' ({claim.held})" if claim.held else f"'{claim.flow}'"
        for claim in claims[:MOST_NAMES]
    ]
    more = len(claims) - len(shown)
    if more:
        shown.append(f"{more} other{'s' if more > 1 else ''}")
    *first, last = shown
    return f"{', '.join(first)} and {last}" if first else last


class SlotShare:
    """One run's share of the slots of its session, under any plan."""

    def __init__(self, context: SparkContext, flow: str) -> None:
        """Claim nothing yet."""
        self._context = context
        self._flow = flow
        self._claims = _claims_of(context.applicationId or "")
        self._there = context.defaultParallelism

    def claim(self, held: int) -> str | None:
        """Claim slots in place of those of the previous plan; if they do not fit, say why."""
        self._there = self._context.defaultParallelism
        return self._claims.claim(self, SlotClaim(self._flow, held), self._there)

    def wait_for(self, held: int, given_up: Callable[[], bool] = lambda: False) -> None:
        """Claim slots as soon as they are there; a local session never gets more than it has.

        Executors come one by one when a session starts, and a lost one is replaced.

        Raises:
            EnvironmentUnfit: If they do not come.
        """
        local = (self._context.master or "").startswith("local")
        deadline_s = time.monotonic() + (0.0 if local else SLOTS_S)
        while not given_up():
            why = self.claim(held)
            if why is None:
                return
            if time.monotonic() >= deadline_s:
                raise EnvironmentUnfit(why)
            threading.Event().wait(LOOK_S)

    @property
    def room(self) -> int:
        """How many slots the run may hold, including those that it has."""
        return self._claims.room(self, self._there)

    def release(self) -> None:
        """Leave the slots to others; safe to call again."""
        self._claims.release(self)


_SESSIONS: dict[str, Claims] = {}
_SESSIONS_LOCK = threading.Lock()


def _claims_of(application: str) -> Claims:
    with _SESSIONS_LOCK:
        return _SESSIONS.setdefault(application, Claims())
