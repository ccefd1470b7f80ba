"""Stationary queues at one station: how long records wait there, on average and in the tail.

Every kind has the same shape: records enter at ``rate_per_s``, each needs ``service_ms``, and a
:class:`Queue` says how busy the station is, how long a record waits, and how long it stays.

===================================  ==========================================================
:class:`MMc`                         exact; with one server it is M/M/1
:class:`MG1`                         exact mean; exact quantiles for gamma distributed service,
                                     M/D/1 and M/M/1 among them
:class:`Kingman`, :class:`KLB`       GI/G/1 from two moments of arrivals and service: approximate
:class:`Bounded`                     M/M/c/K behind a source that is held back: exact
===================================  ==========================================================

A queue that cannot keep up has an infinite wait; that is an answer, not an error. Where only the
mean and the coefficient of variation of a time are known it is taken to be gamma distributed, as
in the simulator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize, special  # it ships no types

from tailrace.errors import InputError
from tailrace.model.queueing.tails import (
    constant_service_tail,
    decay_rate,
    inverted,
    later,
    log_gamma_transform,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Complexes = NDArray[np.complex128]
    Tail = Callable[[float], float]

_SMALLEST_INVERTED = 1e-8
"""Transforms are inverted down to here; beyond, a tail goes on at its exact rate of decay."""

_NEARLY_SATURATED = 1e-3
"""With so little time left free a wait is exponential, and its transform is lost to rounding."""

_CONSTANT_BELOW = 0.02
"""A service time that varies less than this is added to the wait as if it were constant."""


@dataclass(frozen=True, slots=True)
class Queue(ABC):
    """A station where records wait for a server and are then served."""

    rate_per_s: float
    service_ms: float

    def __post_init__(self) -> None:
        """Refuse what no station can have."""
        for field in fields(self):
            value, whole = getattr(self, field.name), field.type == "int"
            if not (1 if whole else 0) <= value < math.inf or (whole and value != int(value)):
                wanted = "a whole number from 1 up" if whole else "a finite number from 0 up"
                raise InputError(f"A queue cannot have {field.name}={value}: give {wanted}.")

    @property
    def utilisation(self) -> float:
        """``rho = lambda*b``: the share of time that a server is busy, or would have to be."""
        return self.rate_per_s * self.service_ms / 1_000.0

    @property
    @abstractmethod
    def mean_wait_ms(self) -> float:
        """How long a record waits until it is served, on average."""

    @property
    def mean_ms(self) -> float:
        """How long a record stays, on average: wait and service."""
        return self.mean_wait_ms + self.service_ms

    @property
    def mean_number(self) -> float:
        """How many records are here, waiting or served, on average: Little's law."""
        return self.rate_per_s * self.mean_ms / 1_000.0 if self.rate_per_s else 0.0

    def wait_exceeds(self, ms: float) -> float:
        """The share of records that wait longer than this."""
        return self._share(self._wait_tail, ms)

    def exceeds(self, ms: float) -> float:
        """The share of records that stay longer than this."""
        return self._share(self._tail, ms)

    def wait_quantile_ms(self, quantile: float) -> float:
        """The wait that this share of the records does not exceed."""
        return self._quantile(self._wait_tail, quantile)

    def quantile_ms(self, quantile: float) -> float:
        """The stay that this share of the records does not exceed."""
        return self._quantile(self._tail, quantile)

    @abstractmethod
    def _wait_tail(self) -> Tail:
        """``t -> P(wait > t)`` of a stable queue, for t from 0 up."""

    @abstractmethod
    def _tail(self) -> Tail:
        """``t -> P(wait + service > t)`` of a stable queue, for t from 0 up."""

    def _share(self, tail: Callable[[], Tail], ms: float) -> float:
        if ms < 0 or math.isinf(self.mean_wait_ms):
            return 1.0
        return min(max(tail()(ms), 0.0), 1.0)

    def _quantile(self, tail: Callable[[], Tail], quantile: float) -> float:
        check_quantile(quantile)
        if math.isinf(self.mean_wait_ms):
            return math.inf
        return inverse(tail(), 1 - quantile, self.mean_ms)


def check_quantile(quantile: float) -> None:
    """Refuse a quantile that is none: an unbounded latency has no maximum to ask for."""
    if not 0 <= quantile < 1:
        raise InputError(
            f"{quantile} is not a quantile of a latency: give a share from 0 to below 1."
        )


def inverse(tail: Tail, left: float, scale_ms: float) -> float:
    """The time at which a falling tail comes down to ``left``.

    Tails fall about exponentially, so that their logarithm is nearly a line and few steps do.
    """
    if scale_ms == 0 or tail(0.0) <= left:
        return 0.0
    low_ms, high_ms = 0.0, scale_ms
    while tail(high_ms) > left:
        low_ms, high_ms = high_ms, 2 * high_ms

    def above(ms: float) -> float:
        return math.log(max(tail(ms), 1e-300) / left)

    return float(optimize.brentq(above, low_ms, high_ms, xtol=1e-10 * high_ms, rtol=1e-10))


def network_mean_ms(queues: Iterable[Queue], entering_per_s: float) -> float:
    """How long a record is in a network of queues, on average, over all the ways through it.

    By Little's law, ``W = sum(L_i)/gamma``. Where every queue is :class:`MMc` it is the product
    form of Jackson, ``W = sum(rho_i/(1 - rho_i))/gamma`` for single servers (Cooper 2020, eq.
    4.1; Fu 2015), and exact if arrivals are Poisson and routing is by chance.
    """
    if not 0 < entering_per_s < math.inf:
        raise InputError(
            f"A network cannot be entered by {entering_per_s} records/s: give a rate above 0."
        )
    return math.fsum(queue.mean_number for queue in queues) / entering_per_s * 1_000.0


@dataclass(frozen=True, slots=True)
class MMc(Queue):
    """Poisson arrivals, exponential service, ``servers`` that share one line. Exact.

    With one server it is M/M/1: ``mean = b/(1 - rho)``, and the stay is exponential.
    """

    servers: int = 1

    @property
    def utilisation(self) -> float:
        """``rho = lambda*b/c``: the share of time that each server is busy."""
        return self.rate_per_s * self.service_ms / 1_000.0 / self.servers

    @property
    def waiting_share(self) -> float:
        """The share of records that find every server busy (Erlang's C).

        ``C = B/(1 - rho*(1 - B))`` from Erlang's B, the loss without a line, and
        ``1/B = 1 + c/a + c*(c - 1)/a**2 + ...`` for a load of ``a = c*rho`` servers. All terms
        are positive, and where they run over, B is zero: stable for any number of servers.
        """
        if self.utilisation >= 1:
            return 1.0
        if self.utilisation == 0:
            return 0.0
        with np.errstate(over="ignore"):
            factors = np.arange(self.servers, 0, -1) / (self.servers * self.utilisation)
            blocked = 1 / (1 + float(np.cumprod(factors).sum()))
        return blocked / (1 - self.utilisation * (1 - blocked))

    @property
    def mean_wait_ms(self) -> float:
        """``C*b/(c*(1 - rho))``."""
        if self.utilisation >= 1:
            return math.inf
        return self.waiting_share * self.service_ms / (self.servers * (1 - self.utilisation))

    @property
    def _wait_decay_per_ms(self) -> float:
        return self.servers * (1 - self.utilisation) / self.service_ms

    def _wait_tail(self) -> Tail:
        share = self.waiting_share
        decay = self._wait_decay_per_ms if share else 0.0
        return lambda ms: share * math.exp(-decay * ms)

    def _tail(self) -> Tail:
        """``exp(-t/b) * (1 + C*(t/b)*g(t))``, ``g = (1 - exp(-x))/x``, ``x = (decay - 1/b)*t``.

        The sum of two exponentials in a form that holds when their rates are the same.
        """
        if not self.service_ms:
            return lambda _: 0.0
        share, rate = self.waiting_share, 1 / self.service_ms
        faster = self._wait_decay_per_ms - rate

        def tail(ms: float) -> float:
            gap = faster * ms
            if gap < -1:
                # Written so that no power of e runs over: the wait outlasts the service.
                both = (math.exp(-rate * ms - gap) - math.exp(-rate * ms)) / -gap
            else:
                both = math.exp(-rate * ms) * (-math.expm1(-gap) / gap if gap else 1.0)
            return math.exp(-rate * ms) + share * rate * ms * both

        return tail


@dataclass(frozen=True, slots=True)
class MG1(Queue):
    """Poisson arrivals, one server, service of any kind with this coefficient of variation.

    The mean is exact for every distribution (Pollaczek and Khinchine). Quantiles need more than
    two moments and are those of gamma distributed service: constant at ``service_cv`` 0 (M/D/1),
    exponential at 1 (M/M/1). The transform of the wait is inverted numerically, to 1e-5 of
    probability or better; for M/D/1, whose distribution has corners, a series replaces it.
    """

    service_cv: float = 1.0

    @property
    def mean_wait_ms(self) -> float:
        """``rho*b*(1 + cv**2)/(2*(1 - rho))``."""
        rho = self.utilisation
        if rho >= 1:
            return math.inf
        return rho * self.service_ms * (1 + self.service_cv**2) / (2 * (1 - rho))

    def _wait_tail(self) -> Tail:
        rho, cv = self.utilisation, self.service_cv
        if rho == 0:
            return lambda _: 0.0
        if 1 - rho < _NEARLY_SATURATED:
            return self._exponential_kind()._wait_tail()

        def survival(s: Complexes) -> Complexes:
            """``(1 - W(s))/s`` with ``W(s) = (1 - rho)*s/(s - rho*(1 - B(s)))``."""
            work = -rho * special.expm1(log_gamma_transform(s, cv))
            waits: Complexes = (rho * s - work) / (s * (s - work))
            return waits

        exact = inverted(survival, rho) if cv else constant_service_tail(rho)
        return self._in_ms(exact)

    def _tail(self) -> Tail:
        rho, cv = self.utilisation, self.service_cv
        if not self.service_ms:
            return lambda _: 0.0
        if cv < _CONSTANT_BELOW:
            return later(self._wait_tail(), self.service_ms)
        if 1 - rho < _NEARLY_SATURATED:
            return self._exponential_kind()._tail()

        def survival(s: Complexes) -> Complexes:
            """``(1 - W(s)*B(s))/s``."""
            served = log_gamma_transform(s, cv)
            work = -rho * special.expm1(served)
            stays: Complexes = (s - work - (1 - rho) * s * np.exp(served)) / (s * (s - work))
            return stays

        return self._in_ms(inverted(survival, 1.0))

    def _exponential_kind(self) -> Kingman:
        return Kingman(self.rate_per_s, self.service_ms, 1.0, self.service_cv)

    def _in_ms(self, tail: Tail) -> Tail:
        """From a tail in services, good down to 1e-8, to one in milliseconds, good further down."""

        def whole(ms: float) -> float:
            services = ms / self.service_ms
            exceeding = tail(services)
            if exceeding > _SMALLEST_INVERTED:
                return exceeding
            end = inverse(tail, _SMALLEST_INVERTED, self.mean_ms / self.service_ms)
            decay = decay_rate(self.utilisation, 1.0, self.service_cv)
            return min(_SMALLEST_INVERTED, tail(0.0)) * math.exp(-decay * (services - end))

        return whole


@dataclass(frozen=True, slots=True)
class Kingman(Queue):
    """GI/G/1 by Kingman's formula, fitted to what is measured by a ``correction``.

    ``W = e * b*rho/(1 - rho) * (ca**2 + cs**2)/2`` (Lohrmann 2016, eq. 4.4 to 4.6; De Matteis
    2016, eq. 6.9 and 6.10). It is exact for Poisson arrivals, and near saturation. With arrivals
    more regular than that it is too long (by 57 % at 60 % load with cv 0.5 in both, by 8 % at
    90 %), with more irregular ones too short (by 20 to 25 % at 60 % load and an arrival cv of 2.5).

    The tail is taken as exponential, ``P(W > t) = height * exp(-theta*t)``. Its rate is the exact
    one of gamma distributed times, the root of ``E[exp(theta*(S - A))] = 1``; its height gives it
    the mean. A mean too long for a height of 1 slows the rate down. Fitted to the true mean, the
    90 % and 99 % quantiles are within 5 % of a simulation from 60 % load up where arrivals vary no
    more than a Poisson process, and within 15 % up to an arrival cv of 2.5; with the mean of the
    formula they err by half as much as it does, or less.
    """

    arrival_cv: float = 1.0
    service_cv: float = 1.0
    correction: float = 1.0

    @property
    def uncorrected_wait_ms(self) -> float:
        """The mean wait by the formula alone, which a measured one is compared with."""
        rho = self.utilisation
        if rho >= 1:
            return math.inf
        variation = (self.arrival_cv**2 + self.service_cv**2) / 2
        return rho / (1 - rho) * variation * self.service_ms * self._factor

    @property
    def _factor(self) -> float:
        return 1.0

    @property
    def mean_wait_ms(self) -> float:
        """The formula, times the correction."""
        return math.inf if self.utilisation >= 1 else self.correction * self.uncorrected_wait_ms

    def shared_by(self, workers: int, instead_of: int = 1) -> Kingman:
        """The queue at each worker when the load of some is shared by others in their place.

        Service and variation stay as they are, so ``W(p) = a/(p - b)`` with ``b = p0*rho`` and
        ``a = e*S*b*(ca**2 + cs**2)/2`` (Lohrmann 2016, eq. 4.7): convex and falling in p.
        """
        if workers < 1 or instead_of < 1:
            raise InputError(
                f"A load cannot be shared by {workers} workers instead of {instead_of}: "
                "give whole numbers from 1 up."
            )
        return replace(self, rate_per_s=self.rate_per_s * instead_of / workers)

    @property
    def _exponential(self) -> tuple[float, float]:
        """Height and rate of the tail of the wait."""
        mean_ms = self.mean_wait_ms
        if mean_ms == 0:
            return 0.0, 0.0
        decay = decay_rate(self.utilisation, self.arrival_cv, self.service_cv) / self.service_ms
        return min(1.0, decay * mean_ms), min(decay, 1 / mean_ms)

    def _wait_tail(self) -> Tail:
        height, rate = self._exponential
        return lambda ms: height * math.exp(-rate * ms) if height else 0.0

    def _tail(self) -> Tail:
        """Wait and gamma distributed service together, in closed form.

        ``P(S > t) + height*exp(-rate*t)*E[exp(rate*S); S <= t]``; the last is a gamma
        distribution again, of another rate.
        """
        if not self.service_ms:
            return self._wait_tail()
        if self.service_cv < _CONSTANT_BELOW:
            return later(self._wait_tail(), self.service_ms)
        height, rate = self._exponential
        shape = self.service_cv**-2
        own = shape / self.service_ms
        stretch = -shape * math.log1p(-rate / own)

        def tail(ms: float) -> float:
            alone = float(special.gammaincc(shape, own * ms))
            within = float(special.gammainc(shape, (own - rate) * ms))
            if not within:
                return alone
            return alone + height * math.exp(stretch - rate * ms + math.log(within))

        return tail


@dataclass(frozen=True, slots=True)
class KLB(Kingman):
    """GI/G/1 by Kraemer and Langenbach-Belz (1976): Kingman's formula, made smaller at low load.

    ``exp(-2*(1 - rho)*(1 - ca**2)**2/(3*rho*(ca**2 + cs**2)))`` for arrivals up to Poisson's
    variation, ``exp(-(1 - rho)*(ca**2 - 1)/(ca**2 + 4*cs**2))`` above. For Poisson arrivals both
    are 1 and the mean is exact. With arrivals and service of cv 0.5 it is within 5 % from 60 %
    load up, where Kingman is 57 % too long. With irregular arrivals of the gamma kind it is
    further off than Kingman, which is too short already.
    """

    @property
    def _factor(self) -> float:
        rho, arrival, service = self.utilisation, self.arrival_cv**2, self.service_cv**2
        if arrival > 1:
            return math.exp(-(1 - rho) * (arrival - 1) / (arrival + 4 * service))
        if rho * (arrival + service) == 0:
            return 0.0
        return math.exp(-2 * (1 - rho) * (1 - arrival) ** 2 / (3 * rho * (arrival + service)))


@dataclass(frozen=True, slots=True)
class Correction:
    """How far measured waits are from the formula's: the factor e of the fitted Kingman.

    Lohrmann 2016 (eq. 4.6) takes the last ratio as it is, and in bursts over-scales. Here, as De
    Matteis does, it is the mean of the last three, and 1 until there are three. A ratio counts as
    ``lowest`` or ``highest`` at most, so that one burst does not rule three intervals.
    """

    ratios: tuple[float, ...] = ()
    span: int = 3
    lowest: float = 0.2
    highest: float = 5.0

    @property
    def factor(self) -> float:
        """What to multiply the formula with."""
        return math.fsum(self.ratios) / self.span if len(self.ratios) == self.span else 1.0

    def after(self, measured_wait_ms: float, predicted: Kingman) -> Correction:
        """The correction after another interval, for which the formula had predicted this queue."""
        return self.learned(measured_wait_ms, predicted.uncorrected_wait_ms)

    def learned(self, measured_ms: float, formula_ms: float) -> Correction:
        """The correction after another interval: what was measured, and what the formula gave.

        Nothing is learned from a queue that was saturated, that the formula gives no wait at all,
        or in which no wait was measured (NaN).
        """
        if not (1e-9 < formula_ms < math.inf and 0 <= measured_ms < math.inf):
            return self
        ratio = min(max(measured_ms / formula_ms, self.lowest), self.highest)
        return replace(self, ratios=(*self.ratios, ratio)[-self.span :])


@dataclass(frozen=True, slots=True)
class Bounded(Queue):
    """M/M/c/K behind a source that is held back while there is no room: nothing is lost.

    ``room`` counts the records that wait and those that are served. A Poisson source that pauses
    while the station is full and one whose records are refused then give the same chain of
    states, so the formulas are those of the loss system; only the meaning differs. Waits are
    those of records let in, without the time that the source was held. Never unstable: beyond
    its capacity the source is slowed down to it.
    """

    room: int = 1
    servers: int = 1

    def __post_init__(self) -> None:
        """Refuse what no station can have."""
        Queue.__post_init__(self)
        if self.room < self.servers:
            raise InputError(
                f"A queue with room={self.room} has no use for servers={self.servers}: "
                "give room for at least one record a server."
            )

    @property
    def _states(self) -> Floats:
        """The probability of 0, 1, ..., room records: ``p(n) = p(n - 1)*a/min(n, c)``."""
        load = self.rate_per_s * self.service_ms / 1_000.0
        servers = np.minimum(np.arange(1, self.room + 1), self.servers)
        with np.errstate(divide="ignore"):
            logs = np.concatenate(([0.0], np.cumsum(np.log(load / servers))))
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    @property
    def held_share(self) -> float:
        """The share of time that the source is held back."""
        return float(self._states[-1])

    @property
    def effective_rate_per_s(self) -> float:
        """The rate that gets through, ``lambda*(1 - p(K))``, at most that of the servers."""
        return self.rate_per_s * float(self._states[:-1].sum())

    @property
    def utilisation(self) -> float:
        """The share of time that each server is busy, with the source held back."""
        return self.effective_rate_per_s * self.service_ms / 1_000.0 / self.servers

    @property
    def mean_number(self) -> float:
        """How many records are here, waiting or served, on average."""
        states = self._states
        return float((np.arange(len(states)) * states).sum())

    @property
    def mean_wait_ms(self) -> float:
        """Of records let in, by Little's law: the mean line over the rate that gets through."""
        states = self._states
        waiting = np.maximum(np.arange(len(states)) - self.servers, 0)
        rate = self.effective_rate_per_s
        return float((waiting * states).sum()) / rate * 1_000.0 if rate else 0.0

    @property
    def _found(self) -> Floats:
        """How many are waiting or served when a record is let in."""
        before = self._states[:-1]
        return np.asarray(before / before.sum())

    def _wait_tail(self) -> Tail:
        """Behind n others a record waits for ``n - c + 1`` services, at the pace of c servers."""
        if not self.service_ms:
            return lambda _: 0.0
        behind = self._found[self.servers :]
        pace, ahead = self.servers / self.service_ms, np.arange(len(behind))
        return lambda ms: float(behind @ special.pdtr(ahead, pace * ms))

    def _tail(self) -> Tail:
        if not self.service_ms:
            return lambda _: 0.0
        found, servers, rate = self._found, self.servers, 1 / self.service_ms
        if servers == 1:
            ahead = np.arange(len(found))
            return lambda ms: float(found @ special.pdtr(ahead, rate * ms))
        at_once, behind = float(found[:servers].sum()), found[servers:]
        steps = np.arange(1, len(behind) + 1)
        growth, wait_tail = steps * math.log(servers / (servers - 1)), self._wait_tail()

        def tail(ms: float) -> float:
            """At once served; still waiting; or waited for m steps and is in service since."""
            with np.errstate(divide="ignore"):
                served = np.log(special.pdtrc(steps - 1, (servers - 1) * rate * ms))
            in_service = float(behind @ np.exp(growth + served - rate * ms))
            return at_once * math.exp(-rate * ms) + wait_tail(ms) + in_service

        return tail
