"""Plans on the command line: how options change one, and how one is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tailrace.cli import options
from tailrace.errors import InputError
from tailrace.outside import LARGEST
from tailrace.plan import Backend, chain_name
from tailrace.units import show_duration

if TYPE_CHECKING:
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

_COUNT: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """What a user wants to change in the plan of a profile."""

    interval: options.Interval = None
    cores: options.Cores = None
    partitions: options.Partitions = None
    backend: options.OnBackend = None
    lifetime: options.Lifetime = None
    row_limit: options.RowLimit = None

    def on(self, profile: Profile) -> Plan:
        """The plan of the profile with the changes."""
        plan = profile.plan
        if self.backend is not None:
            plan = _moved(plan, self.backend)
        if self.interval is not None:
            interval_ms = options.duration(self.interval, "--interval", zero=True)
            plan = replace(plan, interval_ms=interval_ms)
        if self.lifetime is not None:
            ms = options.duration(self.lifetime, "--lifetime", zero=True)
            plan = replace(plan, lifetimes_ms={chain_name(chain): ms for chain in plan.chains})
        if self.cores is not None:
            plan = replace(plan, cores=options.count(self.cores, "--cores"))
        if self.row_limit is not None:
            plan = replace(plan, row_limit=options.count(self.row_limit, "--row-limit", LARGEST))
        return replace(plan, partitions=plan.partitions | self._partitions_by_step(profile))

    def _partitions_by_step(self, profile: Profile) -> dict[str, int]:
        found = {}
        for pair in self.partitions or []:
            name, _, number = pair.partition("=")
            if not _COUNT.fullmatch(number):
                raise InputError(
                    f"'{pair}' does not give a number of partitions: write --partitions step=8."
                )
            found[profile.step(name).name] = options.count(int(number), f"--partitions {name}")
        return found


def _moved(plan: Plan, backend: str) -> Plan:
    """The plan on another backend, with the interval that is usual there."""
    if backend not in set(Backend):
        raise InputError(f"--backend {backend} is not known: write microbatch or realtime.")
    if plan.backend == backend:
        return plan
    length_ms = 60_000.0 if backend == Backend.REALTIME else 0.0
    return replace(plan, backend=Backend(backend), interval_ms=length_ms, lifetimes_ms={})


def plan_text(plan: Plan) -> str:
    """A plan in one line."""
    every = f"every {show_duration(plan.interval_ms)}" if plan.interval_ms else "back to back"
    parts = [f"micro-batches {every}"]
    if plan.backend is Backend.REALTIME:
        longest_ms = max(plan.lifetimes_ms.values(), default=0.0)
        parts = [f"real-time, lifetimes {show_duration(longest_ms)}"]
    if plan.cores is not None:
        parts.append("1 core" if plan.cores == 1 else f"{plan.cores} cores")
    if len(plan.chains) > 1:
        parts.append(f"{len(plan.chains)} chains")
    parts += [f"{name} on {count}" for name, count in plan.partitions.items()]
    if plan.row_limit is not None:
        parts.append(f"at most {plan.row_limit} rows")
    return ", ".join(parts)
