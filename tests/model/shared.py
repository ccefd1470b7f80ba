"""A queue whose load is shared, for tests to compare with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.model.kingman import Kingman


def shared(queue: Kingman, workers: int, instead_of: int = 1) -> Kingman:
    """The queue at each worker when the load of some is shared by others in their place.

    Service and variation stay as they are, so ``W(p) = a/(p - b)`` with ``b = p0*rho`` and
    ``a = e*S*b*(ca**2 + cs**2)/2`` (Lohrmann 2016, eq. 4.7): convex and falling in p.
    """
    return replace(queue, rate_per_s=queue.rate_per_s * instead_of / workers)
