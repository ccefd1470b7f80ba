"""The interface of a backend, and what connects it with a controller."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from tailrace.control.actions import SwitchBackend
from tailrace.control.events import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.control.actions import Action, Change
    from tailrace.control.controller import Controller
    from tailrace.control.events import Event


class SteeredBackend(Protocol):
    """What runs a flow under a plan and can be asked to change it.

    It sends its events, from :class:`Started` on, to a function that it was given.
    """

    def start(self) -> None:
        """Begin to run."""

    def stop(self, within_s: float | None = None) -> None:
        """Stop between two batches; give up a batch that does not end in time."""

    def can(self, action: Change) -> str | None:
        """None if it can do that; otherwise the reason, as a sentence."""

    def apply(self, action: Change) -> None:
        """Do it, at once or at the end of the running batch."""


class Steering:
    """Passes events to a controller, and its actions to the running backend.

    Events may come from several threads and are handled one at a time. If a backend cannot apply an
    action, the controller gets the reason: nothing is skipped silently.
    """

    def __init__(
        self, controller: Controller, switch: Callable[[SwitchBackend], None] | None = None
    ) -> None:
        """``switch`` has another backend take over; without it, none can."""
        self.controller = controller
        self.backend: SteeredBackend | None = None
        self._switch = switch
        self._lock = threading.RLock()

    def tell(self, event: Event) -> None:
        """Pass an event on, and do what the controller returns."""
        with self._lock:
            for action in self.controller.handle(event):
                reason = self._do(action)
                if reason is not None:
                    self.tell(Refused(action, reason))

    def _do(self, action: Action) -> str | None:
        if isinstance(action, SwitchBackend):
            if self._switch is None:
                return "Nothing here can run the flow on another backend."
            self._switch(action)
            return None
        if self.backend is None:
            return "No backend runs the flow."
        reason = self.backend.can(action)
        if reason is None:
            self.backend.apply(action)
        return reason
