"""Tails of waiting times: transforms and their inversion, exact series, rates of decay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize, special  # it ships no types

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Complexes = NDArray[np.complex128]
    Tail = Callable[[float], float]


def later(tail: Tail, by_ms: float) -> Tail:
    """The tail after a constant delay."""
    return lambda ms: 1.0 if ms < by_ms else tail(ms - by_ms)


def log_gamma_transform(s: Complexes, cv: float) -> Complexes:
    """The logarithm of ``E[exp(-s*S)]`` for gamma distributed S with mean 1."""
    return np.asarray(-special.log1p(s * cv**2) / cv**2, dtype=np.complex128)


_DAMPING = 18.4
_PLAIN_TERMS, _AVERAGED_TERMS = 100, 11


def _inversion() -> tuple[Complexes, Floats]:
    """Points and weights of the inversion of a Laplace transform, both to be divided by t.

    A Fourier series whose alternating sum is averaged over its last partial sums with binomial
    weights (Abate and Whitt 1995, the Euler method). The damping makes the error of sampling
    ``exp(-18.4) = 1e-8`` of the tail at three times t. A hundred terms before the averaging, not
    the usual 15, follow distributions with corners, as those of nearly constant service are.
    """
    count = _PLAIN_TERMS + _AVERAGED_TERMS
    terms = np.arange(count + 1)
    weights = np.ones(count + 1)
    weights[0] = 0.5
    binomial = special.binom(_AVERAGED_TERMS, np.arange(_AVERAGED_TERMS)) / 2**_AVERAGED_TERMS
    weights[_PLAIN_TERMS + 1 :] = 1 - np.cumsum(binomial)
    weights *= np.where(terms % 2, -1, 1) * math.exp(_DAMPING / 2)
    points = np.asarray(_DAMPING / 2 + 1j * np.pi * terms, dtype=np.complex128)
    return points, weights


_POINTS, _WEIGHTS = _inversion()


def inverted(survival: Callable[[Complexes], Complexes], at_zero: float) -> Tail:
    """The tail that has this transform, and this value at zero."""
    return lambda t: float(_WEIGHTS @ survival(_POINTS / t).real) / t if t else at_zero


_SERIES_SERVICES = 40
"""From so many services on, the tail of M/D/1 is its exponential to 1e-12."""


def constant_service_tail(rho: float) -> Tail:
    """``P(W > t)`` of M/D/1, t in services.

    Erlang's series alternates and is lost to rounding. Franx (2001) has one of positive terms:
    ``P(W <= t) = sum over j < k of Q(k - 1 - j) * Poisson(j; rho*(k - t))`` for ``k - 1 <= t < k``,
    where Q is the distribution of the number that wait. The number in the station is found by
    balancing what crosses each level, positive terms again:
    ``p(n)*a(0) = p(0)*A(n) + sum over 0 < j < n of p(j)*A(n - j + 1)``, with a the probabilities
    of so many arrivals in a service, and A their tails.
    """
    decay = decay_rate(rho, 1.0, 0.0)
    height = (1 - rho) / (rho * math.exp(decay) - 1)
    at_least = special.pdtrc(np.arange(-1, _SERIES_SERVICES + 1), rho)
    at_least[0] = 1.0
    numbers = np.zeros(_SERIES_SERVICES + 2)
    numbers[0] = 1 - rho
    for n in range(1, len(numbers)):
        crossing = numbers[0] * at_least[n] + numbers[1:n] @ at_least[n:1:-1]
        numbers[n] = crossing * math.exp(rho)
    waiting = np.cumsum(numbers)[1:]

    def tail(services: float) -> float:
        if services >= _SERIES_SERVICES:
            return height * math.exp(-decay * services)
        k = math.floor(services) + 1
        mean, terms = rho * (k - services), np.arange(k)
        chances = np.exp(special.xlogy(terms, mean) - mean - special.gammaln(terms + 1))
        return 1 - float(chances @ waiting[k - 1 :: -1])

    return tail


def decay_rate(rho: float, arrival_cv: float, service_cv: float) -> float:
    """The rate at which the tail of a GI/G/1 wait falls, per service time: gamma distributed.

    The root ``theta > 0`` of ``log E[exp(theta*S)] + log E[exp(-theta*A)] = 0`` (Cramer and
    Lundberg). Near saturation it is ``2*(1 - rho)/(ca**2 + cs**2)``; with no load, the service's.
    """
    arrival, service = arrival_cv**2, service_cv**2
    rho = max(rho, 1e-100)

    def exponent(theta: float) -> float:
        leaving = -math.log1p(-theta * service) / service if service else theta
        coming = math.log1p(theta / rho * arrival) / arrival if arrival else theta / rho
        return leaving - coming

    pole = (1 - 1e-15) / service if service else math.inf
    low = high = min(2 * rho * (1 - rho) / (service * rho**2 + arrival), pole)
    if 1 - rho < 1e-9:
        return low
    while exponent(high) <= 0:
        if high == pole:
            return pole
        low, high = high, min(2 * high, pole)
    while exponent(low) >= 0:
        low /= 2
    return float(optimize.brentq(exponent, low, high, xtol=1e-12 * high, rtol=1e-12))
