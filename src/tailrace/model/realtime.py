"""The real-time model: what the lifetime of a hand-over does to latency, and what it saves.

Records for a chain of Python steps gather in an open batch. It is handed over when it is ``T`` ms
old or full, but not while Python works on the one before: the output batch of Lohrmann 2016,
section 4.5.2, in front of a bulk server. A hand-over of n records keeps Python busy for
``S(n) = a + c*n``: ``a`` is paid by every hand-over, ``c`` by every record, its steps included.

Between two real-time batches nothing flows for a gap, and what arrived in it is worked off after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import InputError
from tailrace.model.distribution import MIDDLES, WEIGHTS, Distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_RECORDS = 2_000
"""A hand-over is full with this many records."""

NEGLIGIBLE_SHARE = 0.05
"""A fixed cost below this share of the work on the records is not worth waiting for."""

_NORMAL, _NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(13)
_NORMAL_WEIGHTS = _NORMAL_WEIGHTS / _NORMAL_WEIGHTS.sum()
_PLACES: Floats = (np.arange(12) + 0.5) / 12
_MOST_STATES = 160
_LOG_FACTORIALS: Floats = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, _MOST_STATES)))))


@dataclass(frozen=True, slots=True)
class HandOverModel:
    """How long a hand-over keeps Python busy, ``S(n) = a + c*n``, and what follows from it.

    Rates are those of one task. Arrivals are a Poisson process unless ``even``.
    """

    fixed_ms: float
    per_record_ms: float
    most: int = MOST_RECORDS

    def __post_init__(self) -> None:
        """Refuse costs that no hand-over can have."""
        if not (0 <= self.fixed_ms < math.inf and 0 <= self.per_record_ms < math.inf):
            raise InputError(
                f"A hand-over cannot cost {self.fixed_ms} ms and {self.per_record_ms} ms a "
                "record: give two finite costs that are not negative."
            )
        if self.most < 1:
            raise InputError(f"A hand-over of {self.most} records cannot be: allow at least 1.")

    @classmethod
    def of(
        cls,
        engine_ms: float,
        engine_record_ms: float,
        work_ms: float,
        call_ms: float = 0.0,
        group: float = 1.0,
    ) -> HandOverModel:
        """The hand-over to a chain, from what the engine takes for it and what its steps do.

        ``S(n) = (h + f) + (e + w)*n``: the engine takes h and e for each record, the steps f for a
        call and w for each record. Records that come in groups of g at once are like single ones
        that take g times as long, of which g times fewer fill a hand-over.
        """
        most = max(1, round(MOST_RECORDS / group))
        return cls(engine_ms + call_ms, (engine_record_ms + work_ms) * group, most)

    def service_ms(self, records: float) -> float:
        """``S(n) = a + c*n``."""
        return self.fixed_ms + self.per_record_ms * records

    def utilisation(self, rate_per_s: float) -> float:
        """``rho = c*lambda``: the share of time that the records keep busy, without ``a``."""
        return self.per_record_ms * rate_per_s / 1_000.0

    @property
    def highest_rate_per_s(self) -> float:
        """Full hand-overs back to back, ``most/(a + c*most)``: at this rate the queue runs away."""
        busy_ms = self.service_ms(self.most)
        return self.most / busy_ms * 1_000.0 if busy_ms else math.inf

    def stable(self, rate_per_s: float) -> bool:
        """Whether the hand-overs keep up: ``lambda*c < 1`` where a hand-over never fills."""
        return rate_per_s < self.highest_rate_per_s

    def records(self, rate_per_s: float, lifetime_ms: float, *, even: bool = False) -> float:
        """The mean number of records of a hand-over.

        Evenly spaced arrivals give ``n = lambda*C`` with ``C = max(T + 1/lambda, a/(1 - rho))``:
        the lifetime after the record that opened the batch, or what came while Python was busy.
        """
        if rate_per_s <= 0:
            return 1.0
        if not self.stable(rate_per_s):
            return float(self.most)
        if even:
            return self._even_records(rate_per_s, lifetime_ms)
        return min(self._queue(rate_per_s, lifetime_ms).records, float(self.most))

    def cpu_per_record_ms(self, rate_per_s: float, lifetime_ms: float) -> float:
        """``a/n + c``, which falls as the lifetime grows."""
        return self.fixed_ms / self.records(rate_per_s, lifetime_ms) + self.per_record_ms

    def latency(self, rate_per_s: float, lifetime_ms: float, *, even: bool = False) -> Distribution:
        """From entering the open batch to coming back from Python; infinite when unstable."""
        if not self.stable(rate_per_s):
            return Distribution.constant(math.inf)
        if rate_per_s <= 0:
            return Distribution.constant(lifetime_ms + self.service_ms(1))
        build = self._even_latency if even else self._poisson_latency
        return build(rate_per_s, lifetime_ms)

    def wait_ms(self, rate_per_s: float, lifetime_ms: float, *, even: bool = False) -> float:
        """The mean time in the open batch, which is what the lifetime changes.

        For Poisson arrivals and an idle server ``T*(1 + lambda*T/2)/(1 + lambda*T)``: all of T for
        a record that comes alone, half of it in dense traffic (Lohrmann 2016, section 4.5.3).
        """
        if not self.stable(rate_per_s):
            return math.inf
        if rate_per_s <= 0:
            return lifetime_ms
        if even:
            busy_ms = self.service_ms(self._even_records(rate_per_s, lifetime_ms))
            return self._even_latency(rate_per_s, lifetime_ms).mean_ms - busy_ms
        waits, weights, _ = _waits(self._queue(rate_per_s, lifetime_ms))
        return float(np.sum(waits * weights) / np.sum(weights))

    def useful_lifetime_ms(self, rate_per_s: float) -> float:
        """Beyond this a longer lifetime saves nothing worth having.

        With ``n = a/(0.05*c)`` records the fixed cost is 5 % of the work on them, and no
        hand-over holds more than ``most``. It takes ``(n - 1)/lambda`` to gather them, less where
        records also gather behind a busy task.
        """
        enough = self.fixed_ms / NEGLIGIBLE_SHARE
        most = float(self.most)
        wanted = min(most, enough / self.per_record_ms) if self.per_record_ms else most
        if self.fixed_ms == 0 or wanted <= 1 or not self.stable(rate_per_s):
            return 0.0
        if rate_per_s <= 0:
            return math.inf
        alone_ms = (wanted - 1) / rate_per_s * 1_000.0
        return longest_within(partial(self.records, rate_per_s), wanted, alone_ms) or 0.0

    def expiry_ms(self, rate_per_s: float, lifetime_ms: float) -> float:
        """The lifetime, or the time to fill a batch where that is shorter."""
        if rate_per_s <= 0:
            return lifetime_ms
        return min(lifetime_ms, (self.most - 1) / rate_per_s * 1_000.0)

    def _even_records(self, rate_per_s: float, lifetime_ms: float) -> float:
        per_ms = rate_per_s / 1_000.0
        gathered = 1 + math.floor(per_ms * self.expiry_ms(rate_per_s, lifetime_ms) + 1e-9)
        busy = per_ms * self.fixed_ms / (1 - self.utilisation(rate_per_s))
        return max(float(gathered), busy)

    def _even_latency(self, rate_per_s: float, lifetime_ms: float) -> Distribution:
        per_ms = rate_per_s / 1_000.0
        records = self._even_records(rate_per_s, lifetime_ms)
        expiry_ms = self.expiry_ms(rate_per_s, lifetime_ms)
        gathered = 1 + math.floor(per_ms * expiry_ms + 1e-9)
        if records > gathered:
            waits = Distribution.even(0.0, records / per_ms)
        else:
            ages = expiry_ms - np.arange(gathered) / per_ms
            waits = Distribution.of(ages, np.ones(gathered))
        return waits.later(self.service_ms(records))

    @lru_cache(maxsize=256)  # noqa: B019 - of plain values, and no more than these
    def _queue(self, rate_per_s: float, lifetime_ms: float) -> _Queue:
        """How long Python is still busy when a lifetime has passed, for Poisson arrivals.

        After a hand-over of X records Python is busy for ``S = a + c*X``. The next one happens a
        lifetime after its first record or, if that is later, when Python is free. With
        ``R = max(0, S - T)`` it therefore holds ``X' = max(A, 1) + B`` records, where A came in R
        and B in a time T. That is a Markov chain over X: solved as such while it is short, by its
        first two moments when hand-overs are large.
        """
        per_ms = rate_per_s / 1_000.0
        expiry_ms = self.expiry_ms(rate_per_s, lifetime_ms)
        mean, variance = self._moments(per_ms, expiry_ms)
        states = math.ceil(mean + 9 * math.sqrt(variance)) + 16
        if states > _MOST_STATES:
            squared = math.log1p(variance / mean**2)
            sizes = mean * np.exp(math.sqrt(squared) * _NORMAL - squared / 2)
            weights = _NORMAL_WEIGHTS
        else:
            sizes = np.arange(1.0, states)
            weights = _stationary(per_ms * self._rests(sizes, expiry_ms), per_ms * expiry_ms)
        return _Queue(self._rests(sizes, expiry_ms), weights, expiry_ms, per_ms)

    def _rests(self, sizes: Floats, expiry_ms: float) -> Floats:
        """``R = max(0, S - T)``."""
        return np.maximum(0.0, self.fixed_ms + self.per_record_ms * sizes - expiry_ms)

    def _moments(self, per_ms: float, expiry_ms: float) -> tuple[float, float]:
        """The mean and the variance of the records of a hand-over.

        With ``p = E exp(-lambda*R)``, the chance that none came in R,

        - ``E X = lambda*T + lambda*E R + p``,
        - ``Var X = lambda*T + (lambda*E R + lambda^2*E R^2 + p) - (lambda*E R + p)^2``.

        The right-hand sides follow from a lognormal X of that mean and variance; iteration finds
        the fixed point, in larger steps as their slopes, rho and rho^2 while R > 0, allow.
        """
        rho = self.per_record_ms * per_ms
        mean = max(1 + per_ms * expiry_ms, per_ms * self.fixed_ms / (1 - rho))
        variance = mean
        for _ in range(100):
            squared = math.log1p(variance / mean**2)
            sizes = mean * np.exp(math.sqrt(squared) * _NORMAL - squared / 2)
            rests = self._rests(sizes, expiry_ms)
            none = float(_NORMAL_WEIGHTS @ np.exp(-per_ms * rests))
            first = per_ms * float(_NORMAL_WEIGHTS @ rests)
            second = per_ms**2 * float(_NORMAL_WEIGHTS @ rests**2)
            busy = float(_NORMAL_WEIGHTS @ (rests > 0))
            mean_by = per_ms * expiry_ms + first + none - mean
            variance_by = per_ms * expiry_ms + first + second + none - (first + none) ** 2
            variance_by -= variance
            mean = max(1.0, mean + mean_by / (1 - rho * busy))
            variance = max(0.0, variance + variance_by / (1 - rho**2 * busy))
            if abs(mean_by) < 1e-5 * mean and abs(variance_by) < 1e-3 * mean:
                break
        return mean, variance

    def _poisson_latency(self, rate_per_s: float, lifetime_ms: float) -> Distribution:
        """A record's wait, then the service of its batch: itself and whoever came beside it."""
        waits, weights, others = _waits(self._queue(rate_per_s, lifetime_ms))
        counted, likely = _poisson_points(others[..., None])
        counted = np.clip(counted, 0.0, self.most - 1.0)
        latencies = waits[..., None] + self.service_ms(1) + self.per_record_ms * counted
        return Distribution.of(latencies, weights[..., None] * likely)


@dataclass(frozen=True, slots=True, eq=False)
class _Queue:
    """The values of ``R = max(0, S - T)`` and how likely each is."""

    rests_ms: Floats
    weights: Floats
    expiry_ms: float
    per_ms: float

    @property
    def records(self) -> float:
        """``E X = lambda*T + lambda*E R + E exp(-lambda*R)``."""
        came = self.per_ms * (self.expiry_ms + self.rests_ms)
        return float(self.weights @ (came + np.exp(-self.per_ms * self.rests_ms)))


def _stationary(busy: Floats, after: float) -> Floats:
    """How often a hand-over has 1, 2, ... records, where ``busy[n-1] = lambda*R(n)``.

    ``max(A, 1) + B`` is Poisson with mean ``busy + after``, but for one more record when A is 0.
    """
    sizes = np.arange(1, len(busy) + 1)
    alone = np.exp(-busy)[:, None]
    step = _poisson(sizes, busy[:, None] + after)
    step = step + alone * (_poisson(sizes - 1, after) - _poisson(sizes, after))
    step = np.maximum(step, 0.0)
    step /= step.sum(axis=1, keepdims=True)
    found: Floats = step[0]
    for _ in range(400):
        before, found = found, found @ step
        if np.abs(found - before).max() < 1e-7:
            break
    return found


def _poisson(counts: NDArray[np.int64], mean: Floats | float) -> Floats:
    logs = np.log(np.maximum(mean, 1e-300))
    found: Floats = np.exp(counts * logs - mean - _LOG_FACTORIALS[counts])
    return found


def _poisson_points(means: Floats) -> tuple[Floats, Floats]:
    """Thirteen values of a Poisson variable and their weights: counts if few, else normal."""
    counts = np.arange(len(_NORMAL))
    few = means < 4
    exact = _poisson(counts, np.minimum(means, 4.0))
    normal = means + np.sqrt(means) * _NORMAL + (_NORMAL**2 - 1) / 6
    weights = np.where(few, exact / exact.sum(axis=-1, keepdims=True), _NORMAL_WEIGHTS)
    return np.where(few, counts, normal), weights


def _waits(queue: _Queue) -> tuple[Floats, Floats, Floats]:
    """Waits in the open batch, how many records have them, and how many come with each.

    For every R: ``lambda*R`` records came while Python was busy and wait from T to T + R; if none
    did, one opens the batch later and waits T; ``lambda*T`` came after and wait up to T. Seen from
    a record the others of its batch are Poisson, beside the one that opened it.
    """
    likely = queue.weights > 1e-7
    rests, share = queue.rests_ms[likely, None], queue.weights[likely, None]
    per_ms, expiry_ms = queue.per_ms, queue.expiry_ms
    none = np.exp(-per_ms * rests)
    busy = expiry_ms + rests * _PLACES
    after = np.broadcast_to(expiry_ms * _PLACES, busy.shape)
    place = share / len(_PLACES)
    waits = np.concatenate((busy, after, np.full(rests.shape, expiry_ms)), axis=1)
    came = (per_ms * rests * place, per_ms * expiry_ms * place)
    weights = [np.broadcast_to(part, busy.shape) for part in came]
    together = per_ms * (expiry_ms + rests)
    others = [np.broadcast_to(part, busy.shape) for part in (together, together + none)]
    return (
        waits,
        np.concatenate((*weights, none * share), axis=1),
        np.concatenate((*others, np.full(rests.shape, per_ms * expiry_ms)), axis=1),
    )


def longest_within(
    rising: Callable[[float], float], limit_ms: float, high_ms: float
) -> float | None:
    """The longest lifetime up to ``high_ms`` that keeps the limit, None when 0 does not.

    By bisection to 0.5 %, or 0.01 ms: lifetimes are not felt finer than that.
    """
    if rising(0.0) > limit_ms:
        return None
    if rising(high_ms) <= limit_ms:
        return high_ms
    low_ms = 0.0
    while high_ms - low_ms > max(0.01, 0.005 * low_ms):
        middle_ms = (low_ms + high_ms) / 2
        kept = rising(middle_ms) <= limit_ms
        low_ms, high_ms = (middle_ms, high_ms) if kept else (low_ms, middle_ms)
    return low_ms


def _reach_ms(target_ms: float, quantile: float | None) -> float:
    """No lifetime above this has its mean, or that quantile, within the target."""
    return target_ms / min(0.5, quantile or 0.5)


def hop(flush_ms: float, hop_ms: float = 0.0) -> Distribution:
    """How long a shuffle takes: until its buffers are swept, every ``flush_ms``, and the way."""
    return Distribution.even(0.0, flush_ms).later(hop_ms)


@dataclass(frozen=True, slots=True)
class HandOver:
    """A hand-over of a flow: its costs, the rate of one task, and its lifetime."""

    model: HandOverModel
    rate_per_s: float
    lifetime_ms: float = 0.0

    def latency(self) -> Distribution:
        """From entering the open batch to coming back from Python."""
        return self.model.latency(self.rate_per_s, self.lifetime_ms)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where one real-time batch ends and the next begins: nothing flows for ``gap_ms``.

    A crash repeats at most one batch, so ``length_ms`` is also the recovery time.
    """

    gap_ms: float
    length_ms: float

    def gaps_in(self, every_ms: float) -> float:
        """How many gaps the worst window of that length holds, a cut-off one in part."""
        if self.gap_ms <= 0:
            return 0.0
        whole, rest = divmod(every_ms, self.gap_ms + self.length_ms)
        return whole + min(rest / self.gap_ms, 1.0)

    def share_of_windows(self, every_ms: float) -> float:
        """How many of all windows of that length hold a gap or a part of one."""
        if self.gap_ms <= 0:
            return 0.0
        return min(1.0, (every_ms + self.gap_ms) / (self.gap_ms + self.length_ms))

    def excess(self, hand_overs: Sequence[HandOver], every_ms: float) -> Distribution:
        """What the gaps of the worst window add to the latency of the records in it.

        A gap is a cycle of length ``C0 = gap + T``, and the next cycles drain what came in it:
        ``C' = max(T, a + rho*C)`` in the busiest hand-over, down to the usual cycle C*. Records
        of a cycle wait up to ``C - C*`` longer and are served in hand-overs that are larger by
        ``c*lambda*(C - C*)``. With little load the mean grows by ``gap^2/(2*every)``.
        """
        gaps = self.gaps_in(every_ms)
        if not hand_overs:
            lasting = [self.gap_ms]
        else:
            busiest = max(hand_overs, key=lambda h: h.model.utilisation(h.rate_per_s))
            lasting = _drain(busiest, self.gap_ms)
        work = math.fsum(h.model.utilisation(h.rate_per_s) for h in hand_overs)
        longer = np.array(lasting)
        spans = np.array([self.gap_ms, *lasting[1:]])
        weights = gaps * spans / every_ms
        weights = weights / max(1.0, float(weights.sum()))
        values = longer[:, None] * (MIDDLES + work)
        shares = weights[:, None] * WEIGHTS
        rest = max(0.0, 1 - float(weights.sum()))
        return Distribution.of(np.append(values.ravel(), 0.0), np.append(shares.ravel(), rest))


def _drain(hand_over: HandOver, gap_ms: float) -> list[float]:
    """By how much longer records wait in the cycles after a gap, the gap itself first.

    Usually they wait up to a cycle where traffic is dense, up to the lifetime where it is not.
    """
    model, rate = hand_over.model, hand_over.rate_per_s
    if rate <= 0:
        return [gap_ms]
    rho, expiry_ms = model.utilisation(rate), model.expiry_ms(rate, hand_over.lifetime_ms)
    steady_ms = max(expiry_ms, model.fixed_ms / (1 - rho))
    usual_ms = min(steady_ms, 2 * model.wait_ms(rate, hand_over.lifetime_ms))
    filled = rate * gap_ms / 1_000.0 >= model.most
    cycle_ms = gap_ms if filled else gap_ms + expiry_ms
    longer: list[float] = [cycle_ms - usual_ms]
    while len(longer) < 400:
        fulls = max(1.0, rate * cycle_ms / 1_000.0 / model.most)
        cycle_ms = max(expiry_ms, model.fixed_ms * fulls + rho * cycle_ms)
        if cycle_ms - steady_ms < 0.01 * gap_ms:
            break
        longer.append(cycle_ms - usual_ms)
    return [max(0.0, ms) for ms in longer]


@dataclass(frozen=True, slots=True)
class FlowModel:
    """A path through a flow in real-time mode.

    ``hops`` shuffles are swept every ``flush_ms``, so that a record waits half of that on
    average. ``steps_ms`` is the time in steps outside of chains; those inside are part of the
    cost of a record in their hand-over. ``sink_ms`` is from the last step to the visible result.
    """

    hand_overs: tuple[HandOver, ...] = ()
    hops: int = 0
    flush_ms: float = 0.0
    steps_ms: float = 0.0
    sink_ms: float = 0.0

    def stable(self) -> bool:
        """Whether every hand-over keeps up with its rate."""
        return all(h.model.stable(h.rate_per_s) for h in self.hand_overs)

    def latency(self) -> Distribution:
        """The latency of records in the middle of a real-time batch, its parts independent."""
        whole = Distribution.constant(self.steps_ms + self.sink_ms)
        if not self.stable():
            return whole.later(math.inf)
        for hand_over in self.hand_overs:
            whole = whole + hand_over.latency()
        for _ in range(self.hops):
            whole = whole + hop(self.flush_ms)
        return whole

    def latency_across(self, boundary: Boundary, every_ms: float) -> Distribution:
        """The latency of the records of the worst window, the one with most gaps in it."""
        if not self.stable():
            return self.latency()
        return self.latency() + boundary.excess(self.hand_overs, every_ms)

    def statistic_ms(
        self, quantile: float | None, every_ms: float, boundary: Boundary | None = None
    ) -> float:
        """What a constraint measures, in the worst window if there are boundaries."""
        spread = self.latency() if boundary is None else self.latency_across(boundary, every_ms)
        return spread.statistic_ms(quantile)

    def with_lifetimes(self, lifetimes_ms: Sequence[float]) -> FlowModel:
        """The same path under other lifetimes."""
        pairs = zip(self.hand_overs, lifetimes_ms, strict=True)
        hand_overs = tuple(replace(h, lifetime_ms=ms) for h, ms in pairs)
        return replace(self, hand_overs=hand_overs)

    def useful_lifetimes_ms(self) -> tuple[float, ...]:
        """The lifetime of each hand-over beyond which nothing is saved."""
        return tuple(h.model.useful_lifetime_ms(h.rate_per_s) for h in self.hand_overs)

    def longest_lifetimes_ms(
        self,
        target_ms: float,
        quantile: float | None,
        every_ms: float,
        boundary: Boundary | None = None,
    ) -> tuple[float, ...] | None:
        """The longest lifetimes that keep the target, None when lifetime 0 does not.

        The hand-overs share one lifetime, as the streams of a path share the budget for batching
        in Lohrmann 2016, algorithm 3, except that none gets more than is of use to it. None is
        longer than ``every_ms``, so that each window sees a hand-over.
        """
        most = self.useful_lifetimes_ms()

        def latency_ms(lifetime_ms: float) -> float:
            flow = self.with_lifetimes([min(lifetime_ms, ms) for ms in most])
            return flow.statistic_ms(quantile, every_ms, boundary)

        high_ms = min(every_ms, max(most, default=0.0), _reach_ms(target_ms, quantile))
        found_ms = longest_within(latency_ms, target_ms, max(0.0, high_ms))
        return None if found_ms is None else tuple(min(found_ms, ms) for ms in most)

    @property
    def cores(self) -> float:
        """How many cores the hand-overs keep busy, one task each: ``lambda*(a/n + c)``."""
        return math.fsum(
            h.rate_per_s / 1_000.0 * h.model.cpu_per_record_ms(h.rate_per_s, h.lifetime_ms)
            for h in self.hand_overs
        )
