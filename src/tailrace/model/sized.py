"""What batches would take on another number of executors.

A batch of n records on s slots takes ``D(n) = a + b*n/s``, with b the time that tasks are busy with
a record. Batches of about one size tell D, but not how it splits into a part that shrinks with more
slots and one that does not; the steps tell, for they measure b. So ``a = D - b*n/s`` at the size
that batches have, and on s' slots ``D' = a + b*n/s'``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.model.microbatch import BatchModel


@dataclass(frozen=True, slots=True)
class SizedBatches:
    """The batch model of a flow, asked about executors of ``cores`` each.

    ``batch_ms`` is the part of a batch that does not shrink with more slots, ``busy_ms`` the time
    that tasks spend on a record, and ``widest`` the most tasks that share them. The latency is that
    of a constraint over ``every_ms`` (of a quantile, or the mean): ``fixed_ms`` beside the batches,
    and what the model says back to back times ``ratio``, the fitting factor of Lohrmann 2016,
    eq. 4.5. Back to back, because whatever is left of the bound is spent on longer batches.
    """

    batch_ms: float
    busy_ms: float
    every_ms: float
    quantile: float | None = None
    cores: int = 1
    widest: int | None = None
    fixed_ms: float = 0.0
    ratio: float = 1.0

    def on(self, size: int) -> BatchModel:
        """The batch model on so many executors."""
        shared = _shared(size * self.cores, self.widest)
        return BatchModel(self.batch_ms, self.busy_ms / shared)

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The constrained latency on so many executors, batches back to back."""
        floor_ms = self.on(size).floor_ms(rate_per_s, self.every_ms, self.quantile)
        return self.fixed_ms + self.ratio * floor_ms

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """The share of time that the records would take on so many executors."""
        return self.on(size).utilisation(rate_per_s)


def unshared_ms(
    batches: BatchModel, records: float, busy_ms: float, slots: int, widest: int | None = None
) -> float:
    """The part of a batch of so many records that more slots would not shrink: ``D - b*n/s``."""
    return max(0.0, batches.duration_ms(records) - busy_ms / _shared(slots, widest) * records)


def _shared(slots: int, widest: int | None) -> int:
    return slots if widest is None else min(slots, widest)
