"""The scalers by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.scaling.calibration import Priorities, Strategy
from tailrace.policy.scaling.predictive import Predictive
from tailrace.policy.scaling.reactive import Reactive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.policy.scaling.sizing import Scaler

DEFAULT = "predictive"

EXECUTORS = Strategy(weights=Priorities(qos=20.0), delay_steps=2)
"""For executors, which take about two intervals to come, and batches, which use up what a
bound leaves them. The bound weighs more than in the original, so that executors start before they
are missing: a start takes the time of machines that batches run on, and under an overload there is
none."""


def scalers() -> dict[str, Callable[[], Scaler]]:
    """What makes a scaler of each name. A run needs a new one, since it may remember."""
    return {"predictive": partial(Predictive, EXECUTORS), "reactive": Reactive}


def scaler_of(given: str | Scaler) -> Scaler:
    """A scaler of that name; one that is given is used as it is."""
    if not isinstance(given, str):
        return given
    known = scalers()
    if given not in known:
        raise InputError(f"There is no scaler '{given}': choose {', '.join(known)}.")
    return known[given]()
