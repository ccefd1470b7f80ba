"""Make a trace from a rate profile, an arrival process, keys and payloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from tailrace import units
from tailrace.errors import LoadError, UnitError
from tailrace.load.arrivals import Arrivals, Even, Poisson, due_us
from tailrace.load.keys import Keys, Uniform
from tailrace.load.texts import Texts
from tailrace.load.trace import Trace

if TYPE_CHECKING:
    from tailrace.load.rates import RateProfile

Payload = int | str | Callable[[np.random.Generator, NDArray[np.int32]], list[str]]
_NAMED: Final[dict[str, Arrivals]] = {"even": Even(), "poisson": Poisson()}
_ONE_KEY: Final = Uniform(1)


def generate(
    rate: RateProfile,
    *,
    arrivals: Literal["even", "poisson"] | Arrivals = "poisson",
    keys: Keys = _ONE_KEY,
    payload: Payload = 0,
    seed: int = 0,
) -> Trace:
    """Make a load; the same arguments give the same load, record by record.

    Due times, keys and payloads each have their own random stream, so changing one leaves the
    others as they were.

    Args:
        rate: How many records are due per second, over time.
        arrivals: How they are spaced: "poisson", "even", or a process such as ``Pareto(1.5)``.
        keys: Which keys they have; a single key by default.
        payload: The size of each payload, such as 64 or "1 kB" (filler is replayed), or a
            function of a random generator and the key indices that returns every payload.
        seed: Seed of the random numbers.

    Raises:
        LoadError: If no record is due, too many are, or an argument is invalid.
    """
    process = _NAMED.get(arrivals) if isinstance(arrivals, str) else arrivals
    if process is None:
        raise LoadError(
            f"{arrivals!r} is not an arrival process: "
            'use "even", "poisson" or a process such as Pareto(shape=1.5).'
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise LoadError(f"{seed!r} is not a seed: use a whole number from 0 up.")
    for_times, for_keys, for_payloads = np.random.default_rng(seed).spawn(3)
    due = due_us(rate, process, for_times)
    if not len(due):
        raise LoadError("No record of this load is due: raise its rate or its duration.")
    drawn = keys.draw(len(due), for_keys)
    size, texts = _payloads(payload, drawn, for_payloads)
    return Trace(due, drawn, size, keys.names, texts)


def _payloads(
    payload: Payload, keys: NDArray[np.int32], rng: np.random.Generator
) -> tuple[NDArray[np.int32], Texts | None]:
    """The size of each payload, and the payloads themselves if they are given."""
    if callable(payload):
        texts = Texts.of(payload(rng, keys))
        if len(texts) != len(keys):
            raise LoadError(
                f"The payload function returned {len(texts)} payloads for {len(keys)} records: "
                "return one for each."
            )
        return texts.sizes().astype(np.int32), texts
    try:
        size = units.size_bytes(payload)
    except UnitError as error:
        raise LoadError(f"the payload: {error}") from None
    if size > np.iinfo(np.int32).max:
        raise LoadError(f"A payload of {units.show_size(size)} is too large: stay below 2 GiB.")
    return np.full(len(keys), size, np.int32), None
