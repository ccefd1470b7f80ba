"""What options of planning commands mean: numbers within limits, plans, bounds and ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import InputError
from tailrace.goals import only_constraint
from tailrace.outside import LARGEST, MOST_MS, MOST_RATE_PER_S, MOST_TASKS
from tailrace.plan import Backend, chain_name
from tailrace.units import duration_ms, positive_duration_ms, rate_per_s, show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.goals import Constraint
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

_SWEEP: Final = re.compile(r"rate=(?P<low>[^.]+(?:\.\d+)?[^.]*)\.\.(?P<high>.+)")
_COUNT: Final = re.compile(r"[0-9]{1,18}")


def count(value: int, option: str, most: int = MOST_TASKS) -> int:
    """A whole number of things that a plan has."""
    if not 1 <= value <= most:
        raise InputError(f"{option} {value} cannot be: give at least 1, and {most:,} at most.")
    return value


def records(value: float, option: str) -> float:
    """A number of records that wait."""
    if not 0 <= value <= LARGEST:
        raise InputError(f"{option} {value:g} cannot be: give from 0 to {LARGEST:,} records.")
    return value


def rate(text: str, option: str) -> float:
    """A rate, in records per second."""
    found = rate_per_s(text)
    if found > MOST_RATE_PER_S:
        raise InputError(f"{option} {text} is too high: {show_rate(MOST_RATE_PER_S)} is the most.")
    return found


def duration(text: str, option: str, *, zero: bool = False) -> float:
    """A time above zero, or zero too, in milliseconds."""
    found_ms = duration_ms(text) if zero else positive_duration_ms(text, option)
    if found_ms > MOST_MS:
        raise InputError(f"{option} {text} is too long: give {show_duration(MOST_MS)} at most.")
    return found_ms


def bound(mean: str | None, p95: str | None, p99: str | None) -> Constraint | None:
    """The one bound that was given, if any was."""
    given = {"mean": mean, "p95": p95, "p99": p99}
    texts = {name: text for name, text in given.items() if text is not None}
    found = only_constraint(texts, "5 s")
    for name, text in texts.items():
        duration(text, f"--{name}")
    return found


def sweep(text: str) -> tuple[float, float]:
    """The ends of a range of rates."""
    match = _SWEEP.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{text}' is not a range of rates: write --sweep rate=5k/s..80k/s.")
    low, high = (rate(match[part], "--sweep") for part in ("low", "high"))
    if not 0 < low < high:
        raise InputError(f"'{text}' does not rise from a rate above 0: turn its ends around.")
    return low, high


@dataclass(frozen=True, slots=True)
class Changes:
    """What a user wants to be otherwise in the plan of a profile."""

    interval: str | None
    cores: int | None
    partitions: list[str] | None
    backend: str | None
    lifetime: str | None
    row_limit: int | None

    def on(self, profile: Profile) -> Plan:
        """The plan of the profile with the changes."""
        plan = profile.plan
        if self.backend is not None:
            plan = _moved(plan, self.backend)
        if self.interval is not None:
            plan = replace(plan, interval_ms=duration(self.interval, "--interval", zero=True))
        if self.lifetime is not None:
            ms = duration(self.lifetime, "--lifetime", zero=True)
            plan = replace(plan, lifetimes_ms={chain_name(chain): ms for chain in plan.chains})
        if self.cores is not None:
            plan = replace(plan, cores=count(self.cores, "--cores"))
        if self.row_limit is not None:
            plan = replace(plan, row_limit=count(self.row_limit, "--row-limit", LARGEST))
        return replace(plan, partitions=plan.partitions | self._numbers(profile))

    def _numbers(self, profile: Profile) -> dict[str, int]:
        found = {}
        for pair in self.partitions or []:
            name, _, number = pair.partition("=")
            if not _COUNT.fullmatch(number):
                raise InputError(f"'{pair}' is no number of partitions: write --partitions step=8.")
            found[profile.step(name).name] = count(int(number), f"--partitions {name}")
        return found


def _moved(plan: Plan, backend: str) -> Plan:
    """The plan on another backend, with the waits that are usual there."""
    if backend not in set(Backend):
        raise InputError(f"--backend {backend} is not known: write microbatch or realtime.")
    if plan.backend == backend:
        return plan
    length_ms = 60_000.0 if backend == Backend.REALTIME else 0.0
    return replace(plan, backend=Backend(backend), interval_ms=length_ms, lifetimes_ms={})
