"""How long a scaling operation disturbs a dataflow, read from its throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Series = Sequence[float] | NDArray[np.float64]

CROSSINGS = 4
"""The number of crossings: twice above the average and twice below it."""

STEADY = 0.05
"""The deviation from the average, as a share of it, within which throughput is stable."""

_LEVEL = 1e-3
_NOTHING = 1e-6


def convergence_s(times_s: Series, throughput: Series) -> float | None:
    """From the first sample, where the operation starts, until throughput is stable.

    It is stable when it has gone twice above and twice below the average after scaling, while
    deviating from it by at most 5 % (root mean square) (Xu 2021, section 2.4.4). The average is
    that of the second half of the samples. A sample within a thousandth of the average counts as
    one on the other side of it, since a constant throughput crosses nothing. None if the throughput
    never becomes stable, or falls to zero.
    """
    times, rates = np.asarray(times_s, dtype=float), np.asarray(throughput, dtype=float)
    average = float(rates[len(rates) // 2 :].mean()) if len(rates) else 0.0
    if average <= 0:
        return None
    off = rates - average
    crossed: list[int] = []
    side = 0
    for index, distance in enumerate(off):
        now = -side if abs(distance) <= _LEVEL * average else int(np.sign(distance))
        if side and now != side:
            crossed.append(index)
        side = now or 1
        if len(crossed) >= CROSSINGS:
            swing = off[crossed[-CROSSINGS] : index + 1]
            if np.sqrt(np.mean(swing**2)) <= STEADY * average:
                return float(times[index] - times[0])
    return None


def downtime_s(times_s: Series, throughput: Series) -> float:
    """How long there was no output (Xu 2021, section 2.4.5); a sample holds until the next one.

    "No output" means less than a millionth of the largest throughput.
    """
    times, rates = np.asarray(times_s, dtype=float), np.asarray(throughput, dtype=float)
    if len(rates) < 2:
        return 0.0
    lasts = np.diff(times, append=2 * times[-1] - times[-2])
    return float(lasts[rates <= _NOTHING * rates.max()].sum())
