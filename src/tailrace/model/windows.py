"""How long records wait for the others of their count window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tailrace.model.loads import SOME_KEYS

if TYPE_CHECKING:
    from tailrace.model.loads import Loads
    from tailrace.profile.profile import Profile, StepProfile


def window_wait_ms(profile: Profile, loads: Loads) -> float:
    """The mean wait of a record for the one that completes its window, over all steps.

    The i-th of n records of a window waits for n - i more, so the mean is ``(n - 1)/(2*lambda)``
    at the rate of its key; Cooper 2020, section 4.13.1, has n instead of n - 1. A key with the
    share p of the records gets ``p*lambda``, and so has each of K keys the same part in the mean:
    ``K*(n - 1)/(2*lambda)``.
    """
    return math.fsum(
        _keys(profile.step(name)) * (profile.step(name).window - 1) / (2 * rate) * 1e3
        for name, rates in loads.entering.items()
        if profile.step(name).window > 1 and (rate := float(rates.sum())) > 0
    )


def _keys(step: StepProfile) -> int:
    if not step.keyed_by:
        return 1
    return step.distinct or len(step.keys) or SOME_KEYS
