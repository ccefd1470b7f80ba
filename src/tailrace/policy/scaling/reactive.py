"""Reactive scaling of one size: the fewest units that keep the bound at the rate just measured.

In micro-batch mode all stages share the same units, so there is a single number to choose, and the
model of the batch takes the place of the queues of :mod:`tailrace.policy.scaling.rebalance`. What
to do in a bottleneck and how long to wait afterwards is the same (Lohrmann 2016, section 4.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.policy.decision import Alternative
from tailrace.policy.scaling.sizing import Move
from tailrace.policy.scaling.waits import BOTTLENECK, BUSY_UP_TO
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Load

LARGEST = 4_096
"""No more units than this are looked at to say what it would take to keep a bound."""

CLEAR_RISE = 0.1
"""A rate that is above another by more than this share is more than noise."""


@dataclass(slots=True)
class Reactive:
    """Answers a load with the fewest units that keep the bound at the rate it arrived at.

    ``margin`` is the share of the bound that is kept free for what the model does not see. No
    size is chosen at which units would be more than 90 % busy, unless the limits force it.

    **Up.** A bottleneck (95 % busy by the model; or as busy by measurement while the backlog
    grows) at least doubles, to ``2*n*max(1, rho)`` (Lohrmann 2016, eq. 4.12). It gets more only
    if it takes more to keep the bound and to work the backlog off in ``drain_steps``, and then no
    more than that.

    **Pause.** After a rise nothing is decided until it has been complete for ``pause`` steps, since
    measurements until then are of the old size. The original always waits three intervals
    (Lohrmann 2016, section 4.6.5), and a load that goes on rising meanwhile misses its
    bound for all of them. So there is one way out: the bound is being missed, the model asks for
    more, and the rate is more than a tenth above the one that the rise was made for. The last
    condition is what tells a new cause from the old one, whose backlog is still being worked off.

    **Down.** Steps down may follow each other. Each must keep the bound even if the rate were
    higher by the share ``ease``, so that noise does not bring it straight back; there is none
    while a move is under way, while the bound is being missed, or while more records wait than
    come in a step.
    """

    margin: float = 0.08
    ease: float = 0.1
    pause: int = 3
    drain_steps: int = 3
    _raised_for_per_s: float | None = field(default=None, init=False, repr=False)
    _backlog: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        if not (0 <= self.margin < 1 and 0 <= self.ease < math.inf):
            raise InputError(
                f"A margin of {self.margin} and an ease of {self.ease} leave no size to choose: "
                "give a share of the bound below 1, and a share of the rate from 0 up."
            )
        if self.pause < 0 or self.drain_steps < 1:
            raise InputError(
                f"Steps are counted from 0 for the pause and from 1 for draining, not "
                f"{self.pause} and {self.drain_steps}."
            )

    @property
    def name(self) -> str:
        """What reports call it."""
        return "reactive"

    def decide(self, load: Load, /) -> Move:
        """The size to run on from now on."""
        view = _View(load, self.margin, (1 + self.ease) * load.rate_per_s)
        jammed = self._jammed(view)
        self._backlog = load.backlog
        wanted = self._unjammed(view) if jammed else view.fewest(load.rate_per_s)
        doubling = f"a bottleneck at least doubles and drains in {self.drain_steps} steps"
        if pausing := self._pausing(load):
            return view.stay(pausing, wanted)
        if wanted > view.held:
            self._raised_for_per_s = load.rate_per_s
            return view.up(wanted, doubling if jammed else "")
        obstacle = doubling if jammed else _obstacle(load)
        eased = view.fewest(view.eased_per_s)
        if eased < view.held and not obstacle:
            self._raised_for_per_s = None
            return view.down(eased)
        return view.stay(obstacle, wanted)

    def _jammed(self, view: _View) -> bool:
        """Whether the present size is a bottleneck, by the model or by what was measured."""
        load = view.load
        growing = load.backlog > self._backlog and load.rate_per_s > load.done_per_s
        return view.busy(load.size) >= BOTTLENECK or (load.busy >= BOTTLENECK and growing)

    def _unjammed(self, view: _View) -> int:
        """Twice the size or more; or what keeps the bound and drains the backlog, if larger."""
        load = view.load
        doubled = 2 * load.size * max(1.0, view.busy(load.size))
        draining_per_s = load.rate_per_s + load.backlog / (self.drain_steps * load.step_ms / 1e3)
        enough = (
            size
            for size in view.sizes
            if view.keeps(size, load.rate_per_s)
            and load.model.utilisation(size, draining_per_s) <= 1
        )
        return load.limits.within(max(doubled, next(enough, load.limits.most)))

    def _pausing(self, load: Load) -> str:
        """Why nothing may be decided so soon after a rise; empty if it may.

        That the model asks for more need not be checked: while the bound is missed, nothing else
        can be decided.
        """
        if self._raised_for_per_s is None or (not load.moving and load.since_move >= self.pause):
            return ""
        rose = load.rate_per_s > (1 + CLEAR_RISE) * self._raised_for_per_s
        if rose and _missed(load):
            return ""
        if load.moving:
            return "the last rise is still under way"
        return f"the last rise has been complete for {load.since_move} of {self.pause} steps"


def _missed(load: Load) -> bool:
    return load.latency_ms is not None and load.latency_ms > load.bound_ms


def _obstacle(load: Load) -> str:
    """Why no unit may be given back, even if the model allows it; empty if one may."""
    if load.moving:
        return "a move is under way"
    if _missed(load):
        return "the bound is being missed"
    if load.backlog > load.rate_per_s * load.step_ms / 1_000.0:
        return f"{load.backlog:,.0f} records wait, more than come in a step"
    return ""


@dataclass(frozen=True, slots=True)
class _View:
    """One load seen through its model: what sizes would do, and moves with their reasons."""

    load: Load
    margin: float
    eased_per_s: float

    @property
    def held(self) -> int:
        """What runs on if nothing is decided: what was asked for last, within the limits."""
        load = self.load
        return load.limits.within(load.size if load.wanted is None else load.wanted)

    @property
    def sizes(self) -> range:
        return range(self.load.limits.least, self.load.limits.most + 1)

    @property
    def target_ms(self) -> float:
        return (1 - self.margin) * self.load.bound_ms

    def latency_ms(self, size: int) -> float:
        return self.load.model.latency_ms(size, self.load.rate_per_s)

    def busy(self, size: int) -> float:
        return self.load.model.utilisation(size, self.load.rate_per_s)

    def keeps(self, size: int, rate_per_s: float | None = None) -> bool:
        """Whether a size keeps the bound less the margin, and is at most 90 % busy."""
        model, rate = self.load.model, self.load.rate_per_s if rate_per_s is None else rate_per_s
        return (
            model.utilisation(size, rate) <= BUSY_UP_TO
            and model.latency_ms(size, rate) <= self.target_ms
        )

    def fewest(self, rate_per_s: float) -> int:
        """The least size that keeps the bound at a rate, or the most if none does."""
        kept = (size for size in self.sizes if self.keeps(size, rate_per_s))
        return next(kept, self.load.limits.most)

    def beyond(self) -> int | None:
        """The least size above the limits that would keep the bound, if one does.

        Each is looked at, since more units do not always help: a batch pays for every task.
        """
        return next(filter(self.keeps, range(self.load.limits.most + 1, LARGEST + 1)), None)

    def up(self, size: int, doubling: str) -> Move:
        """More units: the fewest that keep the bound, or what a bottleneck gets."""
        kept = f", the fewest that keep {self._goal}" if self.keeps(size) else ""
        why = f", as {doubling}" if doubling else kept
        return self._move(size, f"{size} take {self._shown(size)}{why}", doubling)

    def down(self, size: int) -> Move:
        """Fewer units, which keep the bound at a higher rate too."""
        even = f"and keep {self._goal} even at {show_rate(self.eased_per_s)}"
        return self._move(size, f"{size} take {self._shown(size)} {even}")

    def stay(self, obstacle: str, wanted: int) -> Move:
        """The same units, though more are wanted, or since fewer are out of the question."""
        if wanted > self.held:
            said = f"{wanted} would take {self._shown(wanted)}, but {obstacle}"
        elif self.held > self.load.limits.least:
            fewer = self.held - 1
            said = f"{fewer} would take {self._shown(fewer)}: {self._too_few(fewer, obstacle)}"
        else:
            said = "there may not be fewer"
        return self._move(self.held, said, obstacle)

    def _move(self, size: int, said: str, obstacle: str = "") -> Move:
        rate, held = show_rate(self.load.rate_per_s), self.held
        alternatives = []
        if size - 1 in self.sizes:
            alternatives.append(self._alternative(size - 1, self._too_few(size - 1, obstacle)))
        if size + 1 in self.sizes:
            enough = f"{size} keep {self._goal} already"
            too_many = enough if self.keeps(size) else obstacle or "more units do not help"
            alternatives.append(self._alternative(size + 1, too_many))
        now = f"At {rate} {held} units take {self._shown(held)}"
        reason = f"{now}; {said}.{self._shortfall(size)}"
        return Move(size, reason, self.latency_ms(size), tuple(alternatives))

    def _shortfall(self, size: int) -> str:
        """What it would take, where the most units that are allowed do not keep the bound."""
        if size < self.load.limits.most or self.keeps(size):
            return ""
        enough = self.beyond()
        if enough is not None:
            would = f"{enough} would take {self._shown(enough)}, the fewest that keep it"
        else:
            largest = max(LARGEST, size)
            would = f"no number of units does, {largest} still take {self._shown(largest)}"
        return f" No more than {size} are allowed, which miss {self._goal}: {would}."

    def _alternative(self, size: int, why_not: str) -> Alternative:
        return Alternative(f"{size} units", self.latency_ms(size), f"{why_not}.")

    def _too_few(self, size: int, obstacle: str) -> str:
        if not self.keeps(size):
            return f"more than {self._goal}"
        return obstacle or f"it would not keep {self._goal} at {show_rate(self.eased_per_s)}"

    @property
    def _goal(self) -> str:
        bound = f"{show_duration(self.load.bound_ms)} less {self.margin:.0%}"
        return f"{show_duration(self.target_ms)} ({bound}) at up to {BUSY_UP_TO:.0%} busy"

    def _shown(self, size: int) -> str:
        return f"{show_duration(self.latency_ms(size))} at {self.busy(size):.0%} busy"
