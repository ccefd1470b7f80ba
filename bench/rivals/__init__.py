"""The scalers that ours are compared with, by name."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from bench.rivals.ds2 import MINUTE_MS, Ds2
from bench.rivals.dynamic_allocation import DynamicAllocation
from bench.rivals.rules import LatencyRule, Peak, ThresholdRule
from bench.rivals.spl import Spl
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.policy.scaling.sizing import Scaler


def rivals(hurry: float = 1.0) -> dict[str, Callable[[], Scaler]]:
    """A factory for every rival, by name, with its published parameters.

    DS2 takes, at every step, the size that the true rate needs at a utilisation of 70 %, Flink's
    default, without the pauses and windows that Flink (here as ``Flink``) or its authors add.
    ``hurry`` divides the minutes and hours of Flink's defaults: under a load that plays a day in
    minutes they have to pass as fast as the load does, or it would never move at all.
    """
    if not 0 < hurry < math.inf:
        raise InputError(f"Time cannot pass {hurry} times as fast: give a number above 0.")
    flink = partial(
        Ds2,
        window_ms=15 * MINUTE_MS / hurry,
        stabilisation_ms=5 * MINUTE_MS / hurry,
        scale_down_ms=60 * MINUTE_MS / hurry,
        catch_up_ms=30 * MINUTE_MS / hurry,
        restart_ms=5 * MINUTE_MS / hurry,
    )
    core = partial(
        Ds2,
        boundary=0.0,
        window_ms=0.0,
        stabilisation_ms=0.0,
        scale_down_ms=0.0,
        catch_up_ms=0.0,
        restart_ms=0.0,
        max_down=1.0,
        name="DS2",
    )
    return {
        "peak": Peak,
        "Th-Rule": ThresholdRule,
        "Lat-Rule": LatencyRule,
        "SPL": Spl,
        "DS2": core,
        "Flink": flink,
        "Spark": DynamicAllocation,
    }
