"""How many records per second a load asks for, over time.

A profile knows its rate, the integral of it (how many records are expected by a time) and the
inverse of the integral (by what time a given number is expected). The inverse is what turns a
steady stream of arrivals into one that follows the profile; see `tailrace.load.arrivals`.

Wherever a profile takes a rate it takes a number of records per second or a text such as
"2 k/s"; wherever it takes a time it takes a number of seconds or a text such as "60 s".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tailrace import units
from tailrace.errors import LoadError, UnitError

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = NDArray[np.float64]
Rate = str | float
Time = str | float | timedelta


MOST_PIECES: Final = 1_000_000
"""The most pieces of a profile: each takes memory whenever the profile is evaluated."""


class RateProfile(Protocol):
    """A rate over the time from 0 to `duration_s`; every method takes and returns whole arrays."""

    @property
    def duration_s(self) -> float:
        """How long the load lasts."""

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate."""

    def time_of(self, records: Floats) -> Floats:
        """The time by which this many records are expected: the inverse of `expected`."""


class _Steps:
    """A profile with a constant rate in each of a few pieces, so everything is exact."""

    __slots__ = ()

    def pieces(self) -> tuple[Floats, Floats]:
        """The edges of the pieces in seconds, from 0 to the end, and the rate in each piece."""
        raise NotImplementedError

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""
        edges_s, rates = self.pieces()
        piece = np.searchsorted(edges_s[1:-1], t_s, side="right")
        inside = (np.asarray(t_s) >= 0) & (np.asarray(t_s) <= edges_s[-1])
        return np.where(inside, rates[piece], 0.0)

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate."""
        edges_s, rates = self.pieces()
        return np.interp(t_s, edges_s, _integral(edges_s, rates))

    def time_of(self, records: Floats) -> Floats:
        """The time by which this many records are expected: the inverse of `expected`."""
        edges_s, rates = self.pieces()
        return np.interp(records, _integral(edges_s, rates), edges_s)


@dataclass(frozen=True, slots=True, init=False)
class Constant(_Steps):
    """The same rate all the time."""

    rate_per_s: float
    duration_s: float

    def __init__(self, rate_per_s: Rate, duration_s: Time) -> None:
        """Make the profile; see the module for what a rate and a time may be."""
        object.__setattr__(self, "rate_per_s", _rate(rate_per_s, "the rate"))
        object.__setattr__(self, "duration_s", _seconds(duration_s, "the duration"))

    def pieces(self) -> tuple[Floats, Floats]:
        """One piece."""
        return np.array([0.0, self.duration_s]), np.array([self.rate_per_s])


@dataclass(frozen=True, slots=True, init=False)
class Recorded(_Steps):
    """A recorded load: a sequence of rates, each of which lasts `step_s`."""

    rates_per_s: tuple[float, ...]
    step_s: float

    def __init__(self, rates_per_s: Sequence[float], step_s: Time) -> None:
        """Make the profile; a rate of 0 means that nothing arrives."""
        object.__setattr__(self, "rates_per_s", tuple(float(rate) for rate in rates_per_s))
        object.__setattr__(self, "step_s", _seconds(step_s, "the length of a step"))
        _check_pieces(float(len(self.rates_per_s)))
        if not self.rates_per_s or not all(0 <= rate < math.inf for rate in self.rates_per_s):
            raise LoadError(
                "The rates of a recorded load must be finite and not below 0: correct them."
            )

    @property
    def duration_s(self) -> float:
        """How long the load lasts."""
        return len(self.rates_per_s) * self.step_s

    def pieces(self) -> tuple[Floats, Floats]:
        """One piece for each rate."""
        edges_s = np.arange(len(self.rates_per_s) + 1, dtype=np.float64) * self.step_s
        return edges_s, np.array(self.rates_per_s)


@dataclass(frozen=True, slots=True, init=False)
class Staircase(_Steps):
    """Up from `low` to `high` in equal steps and down again (PrimeTest, Lohrmann 2016, 5.1.2).

    With d = (high - low) / steps, the rates are: low (the warm-up), low + d, low + 2 d, ...,
    high (the plateau), high - d, ..., low. Each lasts `step_s`, so there are 2 * steps + 1 of
    them. The original is ``Staircase("10 k/s", "80 k/s", steps=7, step_s=60)``.
    """

    low: float
    high: float
    steps: int
    step_s: float

    def __init__(self, low: Rate, high: Rate, steps: int, step_s: Time) -> None:
        """Make the profile; see the module for what a rate and a time may be."""
        object.__setattr__(self, "low", _rate(low, "the low rate"))
        object.__setattr__(self, "high", _rate(high, "the high rate"))
        object.__setattr__(self, "steps", _whole(steps, "the number of steps"))
        object.__setattr__(self, "step_s", _seconds(step_s, "the length of a step"))
        _check_pieces(2.0 * self.steps + 1)
        if self.low >= self.high:
            raise LoadError(
                f"A staircase from {units.show_rate(self.low)} to {units.show_rate(self.high)} "
                "does not go up: make the high rate larger than the low one."
            )

    @property
    def duration_s(self) -> float:
        """How long the load lasts: 2 * steps + 1 steps."""
        return (2 * self.steps + 1) * self.step_s

    def pieces(self) -> tuple[Floats, Floats]:
        """One piece for each step."""
        up = np.linspace(self.low, self.high, self.steps + 1)
        edges_s = np.arange(2 * self.steps + 2, dtype=np.float64) * self.step_s
        return edges_s, np.concatenate([up, up[-2::-1]])


@dataclass(frozen=True, slots=True, init=False)
class Burst(_Steps):
    """A steady `base` rate with one period at the `peak` rate (TwitterSentiments' spike)."""

    base: float
    peak: float
    at_s: float
    length_s: float
    duration_s: float

    def __init__(
        self, base: Rate, peak: Rate, at_s: Time, length_s: Time, duration_s: Time
    ) -> None:
        """Make the profile; see the module for what a rate and a time may be."""
        object.__setattr__(self, "base", _rate(base, "the base rate"))
        object.__setattr__(self, "peak", _rate(peak, "the peak rate"))
        object.__setattr__(self, "at_s", _seconds(at_s, "the time of the burst", zero=True))
        object.__setattr__(self, "length_s", _seconds(length_s, "the length of the burst"))
        object.__setattr__(self, "duration_s", _seconds(duration_s, "the duration"))
        if self.at_s + self.length_s > self.duration_s:
            raise LoadError(
                f"A burst from {self.at_s:g} s to {self.at_s + self.length_s:g} s does not fit "
                f"into a load of {self.duration_s:g} s: make the load longer or the burst earlier."
            )

    def pieces(self) -> tuple[Floats, Floats]:
        """Before, during and after the burst; a piece may be empty."""
        edges_s = np.array([0.0, self.at_s, self.at_s + self.length_s, self.duration_s])
        return edges_s, np.array([self.base, self.peak, self.base])


@dataclass(frozen=True, slots=True, init=False)
class RandomWalk(_Steps):
    """A rate that wanders: every `every_s` it moves by up to `step`, up or down, at random.

    The moves are uniform in [-step, step]. A move beyond `low` or `high` is reflected there.
    Because the moves are symmetric, reflecting each of them is the same as folding the free walk
    into the band, which needs no loop.
    """

    start: float
    step: float
    every_s: float
    low: float
    high: float
    duration_s: float
    seed: int

    def __init__(
        self,
        start: Rate,
        step: Rate,
        every_s: Time,
        *,
        low: Rate,
        high: Rate,
        duration_s: Time,
        seed: int,
    ) -> None:
        """Make the profile; see the module for what a rate and a time may be."""
        object.__setattr__(self, "start", _rate(start, "the start rate"))
        object.__setattr__(self, "step", _rate(step, "the step of the walk"))
        object.__setattr__(self, "every_s", _seconds(every_s, "the time between moves"))
        object.__setattr__(self, "low", _rate(low, "the low rate"))
        object.__setattr__(self, "high", _rate(high, "the high rate"))
        object.__setattr__(self, "duration_s", _seconds(duration_s, "the duration"))
        object.__setattr__(self, "seed", _whole(seed, "the seed", zero=True))
        _check_pieces(self.duration_s / self.every_s)
        if not self.low < self.high or not self.low <= self.start <= self.high:
            raise LoadError(
                f"A walk cannot start at {units.show_rate(self.start)} between "
                f"{units.show_rate(self.low)} and {units.show_rate(self.high)}: "
                "make the low rate smaller than the high one, and start between them."
            )

    def pieces(self) -> tuple[Floats, Floats]:
        """One piece for each move; the last may be shorter."""
        count = max(1, math.ceil(self.duration_s / self.every_s))
        moves = np.random.default_rng(self.seed).uniform(-self.step, self.step, count - 1)
        free = np.concatenate([[self.start], moves]).cumsum()
        band = self.high - self.low
        offset = np.mod(free - self.low, 2 * band)
        edges_s = np.minimum(np.arange(count + 1) * self.every_s, self.duration_s)
        return edges_s, self.low + np.minimum(offset, 2 * band - offset)


@dataclass(frozen=True, slots=True, init=False)
class Sine:
    """Day and night: mean + amplitude * sin(2 pi t / period).

    The amplitude stays below the mean, so the rate is always above zero.
    """

    mean: float
    amplitude: float
    period_s: float
    duration_s: float

    def __init__(self, mean: Rate, amplitude: Rate, period_s: Time, duration_s: Time) -> None:
        """Make the profile; see the module for what a rate and a time may be."""
        object.__setattr__(self, "mean", _rate(mean, "the mean rate"))
        object.__setattr__(self, "amplitude", _rate(amplitude, "the amplitude"))
        object.__setattr__(self, "period_s", _seconds(period_s, "the period"))
        object.__setattr__(self, "duration_s", _seconds(duration_s, "the duration"))
        if self.amplitude >= self.mean:
            raise LoadError(
                f"An amplitude of {units.show_rate(self.amplitude)} around a mean of "
                f"{units.show_rate(self.mean)} takes the rate to zero: make it smaller."
            )

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""
        t_s = np.asarray(t_s)
        rate = self.mean + self.amplitude * np.sin(2 * np.pi / self.period_s * t_s)
        return np.where((t_s >= 0) & (t_s <= self.duration_s), rate, 0.0)

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate.

        It is mean t + amplitude (period / 2 pi) (1 - cos(2 pi t / period)), written with the
        square of the sine of the half angle, which keeps its digits near zero.
        """
        t_s = np.clip(t_s, 0.0, self.duration_s)
        half = np.sin(np.pi / self.period_s * t_s)
        return self.mean * t_s + self.amplitude * self.period_s / np.pi * half * half

    def time_of(self, records: Floats) -> Floats:
        """The time by which this many records are expected: the inverse of `expected`.

        There is no closed form. Whole periods are subtracted first: each holds mean * period
        records. A grid over one period gives a first guess, off by less than a ten-millionth of the
        period unless the amplitude is close to the mean; a Newton step squares that.
        """
        records = np.clip(records, 0.0, self.expected(np.array([self.duration_s])))
        whole = np.floor(records / (self.mean * self.period_s))
        rest = records - whole * (self.mean * self.period_s)
        angle = np.linspace(0.0, 2 * np.pi, 2**14 + 1)
        per_radian = self.period_s / (2 * np.pi)
        guess = np.interp(
            rest, per_radian * (self.mean * angle + self.amplitude * (1 - np.cos(angle))), angle
        )
        sine, cosine = np.sin(guess), np.cos(guess)
        error = self.mean * guess + self.amplitude * (1 - cosine) - rest / per_radian
        guess -= error / (self.mean + self.amplitude * sine)
        return np.clip((whole * (2 * np.pi) + guess) * per_radian, 0.0, self.duration_s)


@dataclass(frozen=True, slots=True, init=False)
class Together:
    """Several profiles at once, each until its own end: their rates add up.

    Day and night with a burst on some evening is ``Together(Sine(...), Burst(...))``.
    """

    profiles: tuple[RateProfile, ...]

    def __init__(self, *profiles: RateProfile) -> None:
        """Take the profiles, at least one."""
        object.__setattr__(self, "profiles", profiles)
        if not profiles:
            raise LoadError("There is no profile to add up: give at least one.")

    @property
    def duration_s(self) -> float:
        """How long the load lasts: until the last profile ends."""
        return max(profile.duration_s for profile in self.profiles)

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""
        rates: Floats = np.sum([profile.rate_at(t_s) for profile in self.profiles], axis=0)
        return rates

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate."""
        records: Floats = np.sum([profile.expected(t_s) for profile in self.profiles], axis=0)
        return records

    def time_of(self, records: Floats) -> Floats:
        """The time by which this many records are expected: the inverse of `expected`.

        A grid brackets each answer between two times and gives a first guess. Newton's method takes
        a few steps from there. Where the rate jumps, a step may leave the bracket or go round in
        circles; bisection then takes its place.
        """
        enough_s = 1e-12 * self.duration_s
        grid_s = np.linspace(0.0, self.duration_s, 2**14 + 1)
        by_then = self.expected(grid_s)
        records = np.clip(records, 0.0, by_then[-1])
        cell = np.minimum(np.searchsorted(by_then, records, side="right"), len(grid_s) - 1)
        low_s, high_s = grid_s[cell - 1], grid_s[cell]
        t_s, step_s = np.interp(records, by_then, grid_s), high_s - low_s
        while np.any(step_s > enough_s):
            error = self.expected(t_s) - records
            low_s, high_s = np.where(error <= 0, t_s, low_s), np.where(error >= 0, t_s, high_s)
            with np.errstate(divide="ignore", invalid="ignore"):  # no rate, no step
                newton_s = t_s - error / self.rate_at(t_s)
            nearer = np.abs(newton_s - t_s) <= np.maximum(step_s / 2, enough_s)
            trusted = nearer & (low_s <= newton_s) & (newton_s <= high_s)
            next_s = np.where(trusted, newton_s, (low_s + high_s) / 2)
            t_s, step_s = next_s, np.abs(next_s - t_s)
        return t_s


@dataclass(frozen=True, slots=True, init=False)
class First:
    """The beginning of a profile: all of it if it is shorter."""

    profile: RateProfile
    length_s: float

    def __init__(self, profile: RateProfile, length_s: Time) -> None:
        """Take the beginning; see the module for what a time may be."""
        object.__setattr__(self, "profile", profile)
        object.__setattr__(self, "length_s", _seconds(length_s, "the length of the beginning"))

    @property
    def duration_s(self) -> float:
        """How long the load lasts."""
        return min(self.length_s, self.profile.duration_s)

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""
        return np.where(np.asarray(t_s) <= self.duration_s, self.profile.rate_at(t_s), 0.0)

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate."""
        return self.profile.expected(np.minimum(t_s, self.duration_s))

    def time_of(self, records: Floats) -> Floats:
        """The time by which so many records are expected: the inverse of `expected`."""
        return np.minimum(self.profile.time_of(records), self.duration_s)


@dataclass(frozen=True, slots=True)
class Faster:
    """A profile at `times` its speed: the same records in less time.

    Two weeks of tweets replayed in 100 minutes are ``Faster(two_weeks, 200)`` (TwitterSentiments,
    Lohrmann 2016, 5.1.3). For existing records see `Trace.speed`.
    """

    profile: RateProfile
    times: float

    def __post_init__(self) -> None:
        """Check the speed."""
        if not 0 < self.times < math.inf:
            raise LoadError(f"A profile cannot run {self.times!r} times as fast: use 2 or 0.5.")

    @property
    def duration_s(self) -> float:
        """How long the load lasts."""
        return self.profile.duration_s / self.times

    def rate_at(self, t_s: Floats) -> Floats:
        """Records per second at each time; zero before the start and after the end."""
        return self.times * self.profile.rate_at(self._in_profile(t_s))

    def expected(self, t_s: Floats) -> Floats:
        """Records expected from the start to each time: the integral of the rate."""
        return self.profile.expected(self._in_profile(t_s))

    def time_of(self, records: Floats) -> Floats:
        """The time by which this many records are expected: the inverse of `expected`."""
        return self.profile.time_of(records) / self.times

    def _in_profile(self, t_s: Floats) -> Floats:
        """The time within the profile; its end is hit exactly, which rounding might miss."""
        at_end = np.asarray(t_s) == self.duration_s
        return np.where(at_end, self.profile.duration_s, np.asarray(t_s) * self.times)


def _integral(edges_s: Floats, rates: Floats) -> Floats:
    """Records expected by each edge."""
    return np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * rates)])


def _check_pieces(count: float) -> None:
    if not count <= MOST_PIECES:
        raise LoadError(
            f"A load of {count:,.0f} pieces is too long: give {MOST_PIECES:,} at most, by fewer or "
            "longer steps."
        )


def _rate(value: Rate, what: str) -> float:
    """Read a rate above zero, in records per second."""
    try:
        rate = units.rate_per_s(value)
    except UnitError as error:
        raise LoadError(f"{what}: {error}") from None
    if rate == 0:
        raise LoadError(f'{what}: {value!r} must be above zero: write "850 /s" or "2 k/s".')
    return rate


def _seconds(value: Time, what: str, *, zero: bool = False) -> float:
    """Read a time above zero (or from zero up), in seconds; a number without a unit is seconds."""
    try:
        read = units.duration_ms(value)
    except UnitError as error:
        raise LoadError(f"{what}: {error}") from None
    with_unit = isinstance(value, timedelta) or (
        isinstance(value, str) and value.strip()[-1].isalpha()
    )
    seconds = read / 1e3 if with_unit else read
    if seconds == 0 and not zero:
        raise LoadError(f'{what}: {value!r} must be above zero: write seconds or "60 s".')
    return seconds


def _whole(value: int, what: str, *, zero: bool = False) -> int:
    """Read a whole number above zero (or from zero up)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < (0 if zero else 1):
        raise LoadError(f"{what}: {value!r} is not a whole number above zero.")
    return value
