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
    """The batch model of a flow on ``slots``, asked about executors of ``cores`` each.

    Batches hold ``records``, ``busy_ms`` is the time that tasks spend on one of them, and
    ``widest`` the most tasks that share them. The latency is that of a constraint over ``every_ms``
    (of a quantile, or the mean): ``fixed_ms`` beside the batches, and what the model says back to
    back times ``ratio``, the fitting factor of Lohrmann 2016, eq. 4.5. Back to back, because
    whatever is left of the bound is spent on longer batches.
    """

    batches: BatchModel
    slots: int
    records: float
    busy_ms: float
    every_ms: float
    quantile: float | None = None
    cores: int = 1
    widest: int | None = None
    fixed_ms: float = 0.0
    ratio: float = 1.0

    def on(self, size: int) -> BatchModel:
        """The batch model on so many executors."""
        whole_ms = self.batches.duration_ms(self.records)
        fixed_ms = max(0.0, whole_ms - self.busy_ms / self._shared(self.slots) * self.records)
        return BatchModel(fixed_ms, self.busy_ms / self._shared(size * self.cores))

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The constrained latency on so many executors, batches back to back."""
        floor_ms = self.on(size).floor_ms(rate_per_s, self.every_ms, self.quantile)
        return self.fixed_ms + self.ratio * floor_ms

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """The share of time that the records would take on so many executors."""
        return self.on(size).utilisation(rate_per_s)

    def _shared(self, slots: int) -> int:
        return slots if self.widest is None else min(slots, self.widest)
