"""Stalls: a step that returns nothing, or a batch that takes far longer than usual."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stall:
    """A step (or a batch, if no step is known to hang) that made no progress for ``seconds``.

    ``phase`` says what it was doing: ``step`` inside a step, ``computing`` or ``publishing`` a
    batch as a whole, or the status that Spark gives for the query. ``stack`` is the stack of the
    Python code, innermost frame last. ``over`` is whether it has resumed since.
    """

    phase: str
    batch: int
    seconds: float
    step: str | None = None
    partition: int | None = None
    sink: str | None = None
    stack: tuple[str, ...] = ()
    over: bool = False

    @property
    def place(self) -> tuple[object, ...]:
        """What identifies a stall."""
        return self.phase, self.batch, self.step, self.partition, self.sink

    @property
    def sentence(self) -> str:
        """The sentence about it in reports and warnings."""
        lasted = f"for {self.seconds:.0f} s{self._at()}{', then went on' if self.over else ''}"
        if self.step is not None:
            hung = "hung" if self.over else "has hung"
            where = f"in partition {self.partition} of batch {self.batch}"
            return f"Step '{self.step}' {hung} {where} {lasted}."
        was = "was" if self.over else "has been"
        if self.sink is not None:
            return f"Batch {self.batch} {was} {self.phase} for the sink '{self.sink}' {lasted}."
        return f"The query {was} at '{self.phase}' {lasted}."

    def as_json(self) -> dict[str, Any]:
        """It as plain data, for a report."""
        return asdict(self) | {"seconds": round(self.seconds, 1), "stack": list(self.stack)}

    def _at(self) -> str:
        return f" (at {self.stack[-1]})" if self.stack else ""
