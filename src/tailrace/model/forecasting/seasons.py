"""Seasons: after how many steps rates repeat.

A straight line is subtracted first. A season is a lag at which the autocorrelation peaks, and which
fits into the series at least three times. The peak must be 0.3 above the lowest value before it, at
least 0.2, and higher than chance could make it (three divided by the square root of the number of
rates). The height of a peak is the mean over the multiples of its lag, which distinguishes a season
from the lags next to it. Since every multiple of a season is a season too, the first peak is taken
that is within 0.05, or half of the chance level, of the highest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def season_of(rates: Floats) -> int | None:
    """The season of rates, in steps; None if there is none. NaN is a gap."""
    longest = len(rates) // 3
    if longest < 2:
        return None
    known = ~np.isnan(rates)
    steps = np.arange(len(rates), dtype=np.float64)
    height, slope = straight_line(steps[known], rates[known])
    flat = np.where(known, rates - height - slope * steps, 0.0)
    if float(flat @ flat) <= 1e-18 * float(np.nansum(rates**2)):
        return None
    correlation = _autocorrelation(flat, known)
    tallies = [correlation[lag : 2 * longest : lag].mean() for lag in range(1, longest + 1)]
    heights = np.array([1.0, *tallies])
    lowest = np.minimum.accumulate(correlation[: longest + 1])
    chance = 3 / math.sqrt(float(known.sum()))
    fit = (correlation[: longest + 1] - lowest >= 0.3) & (heights >= max(0.2, chance))
    left = np.concatenate(([np.inf], heights[:-1]))
    right = np.concatenate((heights[1:], [-np.inf]))
    peaks = np.flatnonzero(
        fit & (heights >= left) & (heights >= right) & (np.arange(longest + 1) > 1)
    )
    if not len(peaks):
        return None
    return int(peaks[np.argmax(heights[peaks] >= heights[peaks].max() - max(0.05, chance / 2))])


def _autocorrelation(flat: Floats, known: NDArray[np.bool_]) -> Floats:
    """By Fourier transform; each lag is over the pairs of measured rates at that distance."""
    size = 2 * len(flat)

    def products(values: Floats) -> Floats:
        spectrum = np.fft.rfft(values, size)
        return np.fft.irfft(spectrum * spectrum.conj(), size)[: len(values)]

    pairs = np.maximum(np.round(products(known.astype(np.float64))), 1.0)
    covariance = products(flat) / pairs
    correlation: Floats = covariance / covariance[0]
    return correlation


def straight_line(steps: Floats, rates: Floats) -> tuple[float, float]:
    """The value at step 0 and the slope of the least-squares line."""
    middle = float(steps.mean())
    offsets = steps - middle
    slope = float(offsets @ rates) / (float(offsets @ offsets) or 1.0)
    return float(rates.mean()) - slope * middle, slope
