"""What hangs: a step of which nothing comes, or a batch that lasts far longer than usual."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stall:
    """A step, or where no step is known to hang, a batch, that did not go on for ``seconds``.

    ``phase`` says what was being done: ``step`` inside a step, ``computing`` or ``publishing`` a
    batch as a whole, or what Spark says of its query. ``stack`` is where the Python code is, its
    innermost frame last. ``over`` is whether it has gone on since.
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
        """What tells one stall from another."""
        return self.phase, self.batch, self.step, self.partition, self.sink

    @property
    def sentence(self) -> str:
        """What a report and a warning say of it."""
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
        """It as a report holds it."""
        return asdict(self) | {"seconds": round(self.seconds, 1), "stack": list(self.stack)}

    def _at(self) -> str:
        return f" (at {self.stack[-1]})" if self.stack else ""
