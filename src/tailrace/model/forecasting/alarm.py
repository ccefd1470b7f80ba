"""Predicts when a limit will be exceeded, and whether scaling ahead is worth it.

A forecast of the rate is compared with the rate at which each step saturates, or above which a
bound is missed. The first limit to be exceeded is named, with its time and probability (Caladrius:
Cooper 2020, appendix D.3). Scaling ahead is useful only if it is finished before then (section
1.3.3). The current time and the time zone are passed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from tailrace.model.forecasting.forecast import Forecast

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest rate that an element can take, in the unit of the forecast.

    ``element`` is what breaks, such as ``step sentiment``. With a ``bound``, such as ``p99 of
    1 s``, the limit is the rate above which it is missed; without, the rate of saturation.
    """

    element: str
    rate_per_s: float
    bound: str = ""

    def __post_init__(self) -> None:
        """Refuse impossible limits; a step that never saturates has an infinite one."""
        if not self.rate_per_s >= 0:
            raise InputError(
                f"{self.element} cannot have a limit of {self.rate_per_s} records/s: give a rate "
                "from 0 up."
            )

    def __str__(self) -> str:
        """Why it breaks, as half a sentence."""
        rate = show_rate(self.rate_per_s)
        if self.bound:
            return f"{self.element} keeps {self.bound} only up to {rate}"
        return f"{self.element} saturates at {rate}"


@dataclass(frozen=True, slots=True)
class Breach:
    """When a limit is exceeded: by the mean of the forecast, and by the upper edge of its band.

    Each is the start of the first such step, or None if there is none within the horizon.
    ``chance`` is the probability of exceeding the limit by the end of the step at ``expected_us``,
    or within the whole horizon if no breach is expected.
    """

    limit: Limit
    expected_us: int | None
    possible_us: int | None
    chance: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """What breaks first, and the breach of each limit in that order.

    ``sentence`` is the alarm in words, in the given time zone.
    """

    first: Breach
    breaches: tuple[Breach, ...]
    band: float
    now_us: int
    horizon_ms: float
    """From now to the end of the forecast."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether to scale ahead, why, and the latest time to start."""

    advised: bool
    reason: str
    start_by_us: int | None = None


def when_broken(
    forecast: Forecast,
    limits: float | Sequence[Limit],
    band: float = 0.8,
    *,
    now_us: int | None = None,
    tz: tzinfo = UTC,
) -> Alarm:
    """Find the first time at which a forecast exceeds a limit.

    Args:
        forecast: The rates to come. Steps that are already over are ignored.
        limits: A capacity in records per second, or the limits of several elements.
        band: The level of the band whose upper edge counts as possible.
        now_us: The current time in microseconds since the epoch; None for the forecast's start.
        tz: The time zone of the sentence.

    Raises:
        InputError: If there is no limit, or if the forecast is over.
    """
    named = [Limit("the flow", limits)] if isinstance(limits, (int, float)) else list(limits)
    if not named:
        raise InputError("There is no limit to compare the forecast with: name at least one.")
    now_us = forecast.start_us if now_us is None else now_us
    steps = len(forecast.mean_per_s)
    if forecast.at_us(steps) <= now_us:
        ended = _clock(forecast.at_us(steps), now_us, tz, forecast.step_ms)
        raise InputError(f"The forecast was over {ended}, which is past: forecast again.")
    first = next(step for step in range(steps) if forecast.at_us(step + 1) > now_us)
    upper = [high for _, high in forecast.band(band)]
    breaches = sorted((_breach(forecast, limit, upper, first) for limit in named), key=_order)
    horizon_ms = (forecast.at_us(steps) - now_us) / 1_000
    sentence = _sentence(breaches[0], forecast, band, now_us, tz)
    return Alarm(breaches[0], tuple(breaches), band, now_us, horizon_ms, sentence)


def scale_ahead(alarm: Alarm, modelling_ms: float, scaling_ms: float, tz: tzinfo = UTC) -> Advice:
    """Whether to start scaling now for a forecast load, rather than wait for it.

    This is useful iff ``tau_f > tau_model + tau_scale``: a better plan must be found and in place
    before the predicted time (Cooper 2020, section 1.3.3). That is the time when the mean exceeds
    the limit; to be safe, the plan should be in place when the upper edge of the band does.
    """
    if not (0 <= modelling_ms < math.inf and 0 <= scaling_ms < math.inf):
        raise InputError(
            f"Modelling for {modelling_ms} ms and scaling for {scaling_ms} ms is impossible: give "
            "finite times from 0 up."
        )
    needed_ms = modelling_ms + scaling_ms
    takes = (
        f"finding a plan takes {show_duration(modelling_ms)} and scaling takes "
        f"{show_duration(scaling_ms)}"
    )
    if alarm.horizon_ms <= needed_ms:
        seen = show_duration(alarm.horizon_ms)
        return Advice(
            False, f"Do not scale ahead: the forecast sees {seen} ahead and {takes}; look further."
        )
    first = alarm.first
    if first.expected_us is None:
        seen = show_duration(alarm.horizon_ms)
        return Advice(
            False,
            f"Do not scale ahead: within {seen} nothing is expected to break, and the chance that "
            f"something does is {first.chance:.0%}.",
        )
    lead_ms = (first.expected_us - alarm.now_us) / 1_000
    if lead_ms <= needed_ms:
        when = f"in {show_duration(lead_ms)}" if lead_ms > 0 else "now"
        return Advice(
            False,
            f"Scaling ahead comes too late: the bound breaks {when}, because {first.limit}, and "
            f"{takes}; react at once.",
        )
    safe_us = first.expected_us if first.possible_us is None else first.possible_us
    start_us = max(alarm.now_us, safe_us - round(needed_ms * 1_000))
    when = _clock(start_us, alarm.now_us, tz, 1_000)
    start = "now" if start_us == alarm.now_us else f"by {when.removeprefix('at ')}"
    return Advice(
        True,
        f"Start to scale {start}: the bound breaks in {show_duration(lead_ms)}, because "
        f"{first.limit}, and {takes}.",
        start_us,
    )


def _breach(forecast: Forecast, limit: Limit, upper: Sequence[float], first: int) -> Breach:
    steps = range(first, len(upper))
    mean = forecast.mean_per_s
    expected = next((step for step in steps if mean[step] > limit.rate_per_s), None)
    possible = next((step for step in steps if upper[step] > limit.rate_per_s), None)
    chances = forecast.chance_by(limit.rate_per_s, first)
    last = len(upper) - 1 if expected is None else expected
    return Breach(
        limit,
        None if expected is None else forecast.at_us(expected),
        None if possible is None else forecast.at_us(possible),
        chances[last - first],
    )


def _order(breach: Breach) -> tuple[float, float, float]:
    """Order by earliest expected breach, then by earliest possible breach, then by lowest limit."""
    expected, possible = (
        math.inf if at_us is None else at_us for at_us in (breach.expected_us, breach.possible_us)
    )
    return expected, possible, breach.limit.rate_per_s


def _sentence(breach: Breach, forecast: Forecast, band: float, now_us: int, tz: tzinfo) -> str:
    at_us = breach.possible_us if breach.expected_us is None else breach.expected_us
    if at_us is None:
        until = _clock(forecast.at_us(len(forecast.mean_per_s)), now_us, tz, forecast.step_ms)
        return (
            f"Nothing breaks until {until.removeprefix('at ')}: {breach.limit}, and the chance of "
            f"exceeding that by then is {breach.chance:.0%}."
        )
    when = "now"
    if at_us > now_us:
        away = show_duration((at_us - now_us) / 1_000)
        when = f"{_clock(at_us, now_us, tz, forecast.step_ms)}, {away} from now"
    if breach.expected_us is None:
        return (
            f"The bound may break {when}, where the upper edge of the {band:.0%} band exceeds "
            f"the limit ({breach.limit}); the chance within the forecast is {breach.chance:.0%}."
        )
    return (
        f"The bound breaks {when}, because {breach.limit}; the chance of it by then is "
        f"{breach.chance:.0%}."
    )


def _clock(at_us: int, now_us: int, tz: tzinfo, step_ms: float) -> str:
    """A time of day, with the day unless it is today, and with seconds if steps need them."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    at = (epoch + timedelta(microseconds=at_us)).astimezone(tz)
    days = (at.date() - (epoch + timedelta(microseconds=now_us)).astimezone(tz).date()).days
    time = f"at {at:%H:%M}" if step_ms % _MINUTE_MS == 0 else f"at {at:%H:%M:%S}"
    if days == 0:
        return time
    return f"tomorrow {time}" if days == 1 else f"on {at:%Y-%m-%d} {time}"
