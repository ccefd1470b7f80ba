"""An elastic operator: how a load is processed while the number of units changes.

Scalers are rehearsed against it. Records are a fluid with an arrival rate for each second; units
share them equally. Additional units start to work only ``start_ms`` after a request, removal is
immediate, and unfinished work stays. In micro-batch mode every batch is simulated, in record mode
the mean queue length is followed over time. A scaler sees the measurements, from which
:func:`learn` makes a model; of the constants it gets only the variations, which cannot be measured
in a fluid.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.simulation import kernels
from tailrace.errors import InputError
from tailrace.model.kingman import Kingman
from tailrace.model.microbatch import BatchModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SETTLED = 1_000_000
_SHORTEST_MS = 1.0
"""The minimum time between two cuts."""
_SLICE_MS = 100.0
_TAKEN = 0.95
"""Units that are busy for more than this share of the time block records."""
_NEWEST = 0.3
"""The weight of the latest control step in the moving mean."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one control step.

    The fields are those of a scaler's load. ``service_ms`` and ``latency_ms`` are None if no record
    was finished, and so is ``fixed_ms``, the time of a batch without its records, also if there are
    no batches. ``backlog`` counts the records that arrived and are not done.
    """

    at_us: int
    step_ms: float
    size: int
    wanted: int
    since_move: int
    rate_per_s: float
    done_per_s: float
    service_ms: float | None
    fixed_ms: float | None
    busy: float
    latency_ms: float | None
    backlog: float
    blocked: float
    cv_arrivals: float
    cv_service: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean latency in steady state, from the costs of a record and a batch.

    With batches, cut every ``C = max(interval, a/(1 - rho))``, it is ``C/2 + D``, which is
    ``1.5*a/(1 - rho)`` back to back. Without batches (``interval_ms`` None) the units are one G/G/1
    queue with service time ``T/n``, so that ``R = rho/(1 - rho) * (ca**2 + cs**2)/2 * T/n + T`` (De
    Matteis 2016, eq. 6.7 to 6.9).
    """

    service_ms: float
    fixed_ms: float = 0.0
    interval_ms: float | None = None
    cv_arrivals: float = 1.0
    cv_service: float = 1.0

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """``rho = lambda*T/n``: the share of the units' time that records take."""
        return rate_per_s * self.service_ms / 1_000.0 / size

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The mean latency on ``size`` units; infinite if they cannot keep up."""
        each_ms = self.service_ms / size
        if self.interval_ms is None:
            queue = Kingman(rate_per_s, each_ms, self.cv_arrivals, self.cv_service)
            return queue.mean_wait_ms + self.service_ms
        batch = BatchModel(self.fixed_ms, each_ms)
        cycle_ms = batch.cycle_ms(self.interval_ms, rate_per_s)
        if math.isinf(cycle_ms):
            return math.inf
        return cycle_ms / 2 + batch.duration_ms(rate_per_s * cycle_ms / 1_000.0)

    def least_size(self, rate_per_s: float, bound_ms: float, least: int, most: int) -> int | None:
        """The fewest units that keep the bound, from ``least`` to ``most``; None if none do."""
        sizes = range(least, most + 1)
        found = bisect_left(
            sizes, True, key=lambda size: self.latency_ms(size, rate_per_s) <= bound_ms
        )
        return sizes[found] if found < len(sizes) else None


def learn(before: Estimate | None, seen: Measured, interval_ms: float | None) -> Estimate | None:
    """Update the estimated costs after a control step: a moving mean of the measurements.

    None until a record has been finished. ``interval_ms`` is a setting, so it is known.
    """
    if seen.service_ms is None:
        return before
    service_ms, fixed_ms = seen.service_ms, seen.fixed_ms or 0.0
    if before is not None:
        service_ms = before.service_ms + _NEWEST * (service_ms - before.service_ms)
        fixed_ms = before.fixed_ms + _NEWEST * (fixed_ms - before.fixed_ms)
    return Estimate(service_ms, fixed_ms, interval_ms, seen.cv_arrivals, seen.cv_service)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlant:
    """One operator on a varying number of units.

    A record takes ``service_ms`` of one unit's time, with coefficient of variation ``cv_service``.
    Batches are cut every ``interval_ms``, 0 for back to back, and take ``fixed_ms`` each; without
    an interval records are handled one at a time. ``noise`` is the coefficient of variation of
    whole batches, or of the service time per control step, lognormal. New units work after
    ``start_ms``, and for the next ``cold_ms`` at ``1/cold`` of their speed.
    """

    service_ms: float
    cv_service: float = 1.0
    cv_arrivals: float = 1.0
    fixed_ms: float = 0.0
    interval_ms: float | None = None
    noise: float = 0.0
    start_ms: float = 5_000.0
    cold: float = 1.0
    cold_ms: float = 1_000.0

    def __post_init__(self) -> None:
        """Refuse an impossible plant."""
        costs = (self.fixed_ms, self.interval_ms or 0.0, self.start_ms, self.cold_ms)
        variations = (self.cv_service, self.cv_arrivals, self.noise)
        if not (0 < self.service_ms < math.inf and 1 <= self.cold < math.inf):
            raise InputError("A plant needs a service time above 0 ms and a cold factor from 1 up.")
        if not all(0 <= value < math.inf for value in (*costs, *variations)):
            raise InputError("The costs and variations of a plant must be finite, from 0 up.")
        if self.interval_ms is None and self.fixed_ms:
            raise InputError("Only batches have a fixed cost: give an interval, or leave it at 0.")

    @property
    def truth(self) -> Estimate:
        """The model with the true constants, to judge a scaler by."""
        costs = (self.service_ms, self.fixed_ms, self.interval_ms)
        return Estimate(*costs, self.cv_arrivals, self.cv_service)

    def start(self, rates: Floats, size: int, step_ms: float, rng: np.random.Generator) -> Elastic:
        """Run it in control steps, under a load given by the rate in each second."""
        return Elastic(self, rates, size, step_ms, rng)


class Elastic:
    """A running plant: :meth:`step` advances by one control step, :meth:`move` changes its size."""

    def __init__(
        self,
        plant: ElasticPlant,
        rates: Floats,
        size: int,
        step_ms: float,
        rng: np.random.Generator,
    ) -> None:
        """Start with an empty queue and all units warm.

        The number of records in a second varies as in a renewal process, with a standard deviation
        of ``cv_arrivals`` times the square root of its mean.
        """
        rates = np.asarray(rates, dtype=np.float64)
        if not (len(rates) and np.all(np.isfinite(rates)) and rates.min() >= 0):
            raise InputError("A load needs a finite rate from 0 up for each of its seconds.")
        if size < 1 or not 0 < step_ms <= 1e3 * len(rates):
            raise InputError(
                f"A plant of {size} units cannot be run in steps of {step_ms} ms: give at least "
                "1 unit, and a step no longer than the load."
            )
        chance = rng.standard_normal(len(rates))
        self._counts = np.maximum(0.0, rates + plant.cv_arrivals * np.sqrt(rates) * chance)
        self._plant, self._rng, self._step_ms = plant, rng, step_ms
        self.steps = int(1e3 * len(rates) / step_ms)
        """The number of whole control steps in the load."""
        self.size = self.wanted = size
        self._since_move, self._now_ms, self._ready_ms = _SETTLED, 0.0, 0.0
        self._speed, self._changes = float(size), list[tuple[float, float]]()
        self._flight = np.zeros(8)
        self._flight[_LOOK] = max(plant.interval_ms or plant.fixed_ms, _SHORTEST_MS)

    @property
    def moving(self) -> bool:
        """Whether units are still starting."""
        return self.wanted != self.size

    def move(self, size: int) -> None:
        """Request another size; refused while units are still starting."""
        if self.moving or size < 1:
            raise InputError(
                f"A move to {size} cannot be made: wait until {self.wanted} units work, and ask "
                "for at least 1."
            )
        if size == self.size:
            return
        added = size - self.size
        self.wanted = size
        if added < 0:
            self.size, self._since_move = size, 0
            self._speed, self._changes = float(size), []
            return
        plant = self._plant
        self._ready_ms = self._now_ms + plant.start_ms
        warm_ms, at_first = self._ready_ms + plant.cold_ms, added / plant.cold
        self._changes += [(self._ready_ms, at_first), (warm_ms, added - at_first)]
        self._changes.sort()
        self._settle()

    def step(self) -> Measured:
        """Advance by one control step and return its measurements."""
        begin_ms, until_ms = self._now_ms, self._now_ms + self._step_ms
        out = np.zeros(7)
        speeds = np.cumsum([self._speed, *(by for _, by in self._changes)])
        since_ms = np.array([-math.inf, *(at for at, _ in self._changes)])
        self._run(since_ms, speeds, (begin_ms, until_ms), out)
        self._now_ms = until_ms
        self._since_move += 1
        self._settle()
        return self._measured(begin_ms, out)

    def _settle(self) -> None:
        """Apply the changes that are due by now."""
        while self._changes and self._changes[0][0] <= self._now_ms:
            self._speed += self._changes.pop(0)[1]
        if self.moving and self._ready_ms <= self._now_ms:
            self.size, self._since_move = self.wanted, 0

    def _run(
        self, since_ms: Floats, speeds: Floats, span: tuple[float, float], out: Floats
    ) -> None:
        plant, counts, flight = self._plant, self._counts, self._flight
        sigma = math.sqrt(math.log1p(plant.noise**2))
        if plant.interval_ms is None:
            factor = math.exp(sigma * self._rng.standard_normal() - sigma**2 / 2)
            variation = (plant.cv_arrivals**2 + plant.cv_service**2) / 2
            costs = (plant.service_ms * factor, variation)
            _queue(counts, costs, since_ms, speeds, span, flight, out)
            return
        shortest_ms = max(plant.interval_ms, plant.fixed_ms / 2, _SHORTEST_MS)
        chance = self._rng.standard_normal((math.ceil(self._step_ms / shortest_ms) + 1, 2))
        each = (plant.service_ms, plant.cv_service, plant.fixed_ms, sigma, plant.interval_ms)
        _batches(counts, chance, each, since_ms, speeds, span, flight, out)

    def _measured(self, begin_ms: float, out: Floats) -> Measured:
        plant, step_ms, done = self._plant, self._step_ms, float(out[_DONE])
        came, _ = _come(self._counts, begin_ms, self._now_ms)
        if plant.interval_ms is None:
            backlog = float(self._flight[_RECORDS])
        else:
            waiting, _ = _come(self._counts, float(self._flight[_CUT_TO]), self._now_ms)
            backlog = waiting + float(self._flight[_RECORDS])
        batches = float(out[_NUMBER])
        return Measured(
            at_us=round(self._now_ms * 1e3),
            step_ms=step_ms,
            size=self.size,
            wanted=self.wanted,
            since_move=self._since_move,
            rate_per_s=came / step_ms * 1e3,
            done_per_s=done / step_ms * 1e3,
            service_ms=float(out[_WORK]) / done if done else None,
            fixed_ms=float(out[_FIXED]) / batches if batches else None,
            busy=float(out[_BUSY]) / step_ms,
            latency_ms=float(out[_LATENCY]) / done if done else None,
            backlog=backlog,
            blocked=float(out[_BLOCKED]) / step_ms,
            cv_arrivals=plant.cv_arrivals,
            cv_service=plant.cv_service,
        )


# --- kernels --------------------------------------------------------------------------------------
#
# The sums over a step, all times in milliseconds: records, their latencies, their unit time,
# batches and their fixed costs; and how long units were busy and blocked.
_DONE, _LATENCY, _WORK, _NUMBER, _FIXED, _BUSY, _BLOCKED = range(7)

# The state that is kept from step to step. The next cut is at _LOOK, the last was at _CUT_TO. The
# batch in flight holds _RECORDS, which had waited for _WAITED in total at its cut; its fixed part
# ends at _BEGIN, _LEFT remains of its _WORKED unit time, and _OVER is the share by which it is too
# long. In record mode only _RECORDS is used: the queue.
_LOOK, _CUT_TO, _BEGIN, _RECORDS, _WAITED, _WORKED, _LEFT, _OVER = range(8)


@kernels.kernel
def _come(counts: Floats, start: float, end: float) -> tuple[float, float]:
    """The records that arrive in a time span, and their total waiting time at its end."""
    records, waited = 0.0, 0.0
    while start < end:
        second = int(start // 1e3)
        edge = min(end, (second + 1) * 1e3)
        if second < len(counts):
            some = counts[second] * (edge - start) / 1e3
            records += some
            waited += some * (end - (start + edge) / 2)
        start = edge
    return records, waited


@kernels.kernel
def _queue(  # noqa: PLR0917 - numba takes arguments by position
    counts: Floats,
    costs: tuple[float, float],
    since: Floats,
    speeds: Floats,
    span: tuple[float, float],
    flight: Floats,
    out: Floats,
) -> None:
    """Follow the mean length of the queue through a control step.

    In steady state Kingman's queue has ``L = V*rho**2/(1 - rho)``, with ``V`` the variation.
    Assuming this at each moment, the units are busy for ``rho(L)`` of their time, and ``dL/dt =
    lambda - mu*rho(L)`` (Wang, Tipper and Banerjee 1996). It converges to Kingman's formula, and
    grows like a fluid in an overload. An implicit step is a quadratic equation in ``rho``, which is
    stable for slices of any length. Records leave after a wait of ``L/(mu*rho)``, by Little's law.
    """
    service, variation = costs
    begin, until = span
    slices = max(1, math.ceil((until - begin) / _SLICE_MS))
    length = (until - begin) / slices
    for number in range(slices):
        start = begin + number * length
        came, _ = _come(counts, start, start + length)
        speed = speeds[np.searchsorted(since, start + length / 2, side="right") - 1]
        could = length * speed / service
        there = flight[_RECORDS] + came
        if there <= 0:
            continue
        root = math.sqrt((there - could) ** 2 + 4 * variation * there)
        taken = 2 * there / (there + could + root)
        left = max(0.0, there - could * taken)
        done = there - left
        out[_DONE] += done
        out[_LATENCY] += length * (flight[_RECORDS] + left) / 2 + done * service
        out[_WORK] += done * service
        out[_BUSY] += taken * length
        if taken > _TAKEN:
            out[_BLOCKED] += length
        flight[_RECORDS] = left


@kernels.kernel
def _batches(  # noqa: PLR0917 - numba takes arguments by position
    counts: Floats,
    chance: Floats,
    costs: tuple[float, float, float, float, float],
    since: Floats,
    speeds: Floats,
    span: tuple[float, float],
    flight: Floats,
    out: Floats,
) -> None:
    """Cut and process batches until the control step is over.

    A batch is cut one interval after the previous one, but not before that is done, and takes all
    records that have arrived. After a fixed part the units work on it, including those that join,
    and all its records are done at its end. It blocks for the share by which it is too long at its
    start: longer than the interval, or back to back longer than the time in which its records
    arrived, because then they arrive faster than they are processed.
    """
    service, cv, fixed, sigma, interval = costs
    now, until = span
    cuts = 0
    while True:
        if flight[_RECORDS] == 0:
            look = flight[_LOOK]
            if look >= until:
                return
            records, waited = _come(counts, flight[_CUT_TO], look)
            if records <= 0:
                flight[_LOOK] = look + max(interval, _SHORTEST_MS)
                continue
            spread = 1 + cv / math.sqrt(max(records, 1.0)) * chance[cuts, 0]
            factor = max(0.5, math.exp(sigma * chance[cuts, 1] - sigma * sigma / 2))
            cuts += 1
            work = service * records * max(0.1, spread) * factor
            speed = speeds[np.searchsorted(since, look, side="right") - 1]
            lasts = fixed * factor + work / speed
            due = interval if interval > 0 else look - flight[_CUT_TO]
            flight[_CUT_TO], flight[_BEGIN] = look, look + fixed * factor
            flight[_RECORDS], flight[_WAITED] = records, waited
            flight[_WORKED], flight[_LEFT] = work, work
            flight[_OVER] = max(0.0, 1 - due / lasts)
            now = look
        cut, begin = flight[_CUT_TO], flight[_BEGIN]
        end, flight[_LEFT] = _worked(flight[_LEFT], since, speeds, max(begin, now), until)
        out[_BUSY] += max(0.0, end - max(begin, now))
        out[_BLOCKED] += (end - now) * flight[_OVER]
        if flight[_LEFT] > 0:
            return
        out[_DONE] += flight[_RECORDS]
        out[_LATENCY] += flight[_WAITED] + flight[_RECORDS] * (end - cut)
        out[_WORK] += flight[_WORKED]
        out[_NUMBER] += 1
        out[_FIXED] += begin - cut
        flight[_RECORDS] = 0.0
        flight[_LOOK] = max(cut + max(interval, _SHORTEST_MS), end)


@kernels.kernel
def _worked(
    left: float, since: Floats, speeds: Floats, now: float, until: float
) -> tuple[float, float]:
    """When the units have done ``work``, or the time is over, and the work left then."""
    piece = np.searchsorted(since, now, side="right") - 1
    while now < until:
        stop = until if piece + 1 == len(since) else min(until, since[piece + 1])
        if left <= speeds[piece] * (stop - now):
            return now + left / speeds[piece], 0.0
        left -= speeds[piece] * (stop - now)
        now = stop
        piece += 1
    return until, left
