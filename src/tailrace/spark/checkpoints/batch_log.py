"""Spark's log of a checkpoint: which batches were begun, which committed, and what each holds.

Spark writes the offsets of a batch before the batch runs and its commit afterwards. Between two
runs this log alone says how far a flow has come, so everything kept beside it (published batches,
state) is compared with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

HEADER_LINES = 2
"""The version and the settings come before the offsets of the sources."""


@dataclass(frozen=True, slots=True)
class Range:
    """The part of the input that a batch holds, as digests of the offsets at its two ends.

    Offsets of a topic with a thousand partitions are long; only whether they are the same matters.
    """

    start: str = ""
    end: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no record lies between its two ends."""
        return self.start == self.end


@dataclass(frozen=True, slots=True)
class BatchLog:
    """The log in Spark's own checkpoint directory."""

    directory: Path

    @property
    def begun(self) -> int:
        """The last batch whose offsets were logged; -1 if there is none."""
        return self._last("offsets")

    @property
    def committed(self) -> int:
        """The last batch that was committed; -1 if there is none."""
        return self._last("commits")

    def knows(self, batch: int) -> bool:
        """Whether the offsets of a batch, and where it began, are still in the log."""
        offsets = self.directory / "offsets"
        return all((offsets / str(end)).exists() for end in (batch - 1, batch) if end >= 0)

    def range_of(self, batch: int) -> Range:
        """The part of the input in a batch that the log knows."""
        return Range(self._digest(batch - 1), self._digest(batch))

    def settings(self, batch: int) -> dict[str, str]:
        """The settings with which the query resumes from a batch, whatever the session has."""
        settings: dict[str, str] = json.loads(self._lines(batch)[1])["conf"]
        return settings

    def check(self) -> None:
        """Refuse a log that has lost the offsets of a committed batch."""
        if self.committed > self.begun:
            raise InputError(
                f"The checkpoint {self.directory.parent} has lost the offsets of batch "
                f"{self.committed}, which it committed: restore a complete copy of it, or continue "
                f"from batch {self.begun} with --after-restore."
            )

    def forget_commits(self) -> None:
        """Remove commits of batches whose offsets are lost: Spark could not commit them again."""
        for batch in range(self.begun + 1, self.committed + 1):
            (self.directory / "commits" / str(batch)).unlink(missing_ok=True)
            (self.directory / "commits" / f".{batch}.crc").unlink(missing_ok=True)

    def _last(self, log: str) -> int:
        place = self.directory / log
        names = (entry.name for entry in place.iterdir()) if place.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _digest(self, batch: int) -> str:
        if batch < 0:
            return ""
        offsets = "\n".join(self._lines(batch)[HEADER_LINES:])
        return hashlib.sha256(offsets.encode()).hexdigest()[:32]

    def _lines(self, batch: int) -> list[str]:
        place = self.directory / "offsets" / str(batch)
        try:
            lines = place.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            lines = []
        if len(lines) <= HEADER_LINES:
            raise InputError(
                f"The checkpoint {self.directory.parent} has no offsets of batch {batch}: restore "
                "a complete copy of it, or start with a new checkpoint."
            )
        return lines
