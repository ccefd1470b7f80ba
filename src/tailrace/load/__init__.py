"""Loads: tables of due times, keys and payloads, made from a seed and exactly repeatable.

A rate profile says how many records are due per second, an arrival process how they are spaced, and
a distribution which keys they have. `generate` turns these into a `Trace`, which can be saved to a
file and is replayed by the replay source at its due times.

>>> trace = generate(Constant("2 k/s", "60 s"), arrivals="even", keys=Zipf(100, 1.0), seed=7)
>>> len(trace)
120000
"""

from tailrace.load.arrivals import Arrivals, Even, Pareto, Poisson
from tailrace.load.generator import generate
from tailrace.load.keys import Frequencies, Keys, Uniform, Zipf
from tailrace.load.rates import (
    Burst,
    Constant,
    Faster,
    First,
    RandomWalk,
    RateProfile,
    Recorded,
    Sine,
    Staircase,
    Together,
)
from tailrace.load.texts import Texts
from tailrace.load.trace import Trace

__all__ = [
    "Arrivals",
    "Burst",
    "Constant",
    "Even",
    "Faster",
    "First",
    "Frequencies",
    "Keys",
    "Pareto",
    "Poisson",
    "RandomWalk",
    "RateProfile",
    "Recorded",
    "Sine",
    "Staircase",
    "Texts",
    "Together",
    "Trace",
    "Uniform",
    "Zipf",
    "generate",
]
