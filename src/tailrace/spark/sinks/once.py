"""Keeping every batch once: how a published batch is distinguished from another of the same id.

An id alone does not say what a batch holds. A checkpoint that was restored from an older copy, or
that lost its last entries in a power cut, continues from an earlier id with other offsets; and
another flow counts from 0 like every flow. So each published batch has a label: its owner, its id,
and the range of the input that it was made of. A batch that comes again with the same label is the
same batch and is not kept twice; with another label it is refused.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.spark.checkpoints.batch_log import Range
from tailrace.spark.sinks.base import OnceSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.spark.checkpoints.batch_log import BatchLog
    from tailrace.spark.sinks.base import Sink

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Label:
    """What a published batch is: its owner, its id, and its part of the input."""

    identity: str
    batch: int
    range: Range

    def text(self) -> str:
        """The label as it is stored with the batch."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, text: str) -> Label | None:
        """A label from its stored text; None if it is not in this format."""
        try:
            told = json.loads(text)
            known = told["format"] == FORMAT
            return cls(told["identity"], told["batch"], Range(**told["range"])) if known else None
        except (ValueError, TypeError, KeyError):
            return None


class Once(ABC):
    """The part of a sink that compares published batches with the log of the checkpoint."""

    place: str
    """The output's name in messages."""

    identity = ""
    _log: BatchLog | None = None

    @abstractmethod
    def published(self) -> list[int]:
        """The ids of the batches that are published, in order."""

    @abstractmethod
    def has(self, batch_id: int) -> bool:
        """Whether a batch of this id is published."""

    @abstractmethod
    def label_of(self, batch_id: int) -> Label | None:
        """The label of a published batch; None if it has none, as in older outputs."""

    @abstractmethod
    def set_aside(self, batch_ids: Iterable[int]) -> None:
        """Take batches out of the output, and keep them where readers do not look."""

    def label(self, batch_id: int) -> Label:
        """The label of a batch of this run."""
        covered = Range() if self._log is None else self._log.range_of(batch_id)
        return Label(self.identity, batch_id, covered)

    def holds(self, batch_id: int) -> bool:
        """Whether this very batch is published; another one of the same id is refused."""
        if not self.has(batch_id):
            return False
        if self.label_of(batch_id) != self.label(batch_id):
            raise self._another(batch_id)
        return True

    def follow(self, log: BatchLog, *, complete: bool, after_restore: bool) -> tuple[str, ...]:
        """Compare what is published with the log, before anything runs."""
        self._log = log
        held = self.published()
        strange = [batch for batch in held if batch > log.begun or not self._fits(batch, log)]
        if strange and not after_restore:
            raise self._another(strange[0])
        if strange:
            self.set_aside(strange)
            return (f"{self.place}: {_set_aside(strange)}",)
        return self._gap(held, log, after_restore) if complete and held else ()

    def _fits(self, batch_id: int, log: BatchLog) -> bool:
        """Whether a published batch is the one that the log has offsets of, if the log can tell.

        A batch without a label was published before labels existed; it is trusted if the log has
        committed it.
        """
        if not log.knows(batch_id):
            return True
        label = self.label_of(batch_id)
        return batch_id <= log.committed if label is None else label == self.label(batch_id)

    def _gap(self, held: list[int], log: BatchLog, after_restore: bool) -> tuple[str, ...]:
        """Report or refuse an output that ends before the checkpoint.

        A batch without input is no loss: Spark makes one when it repartitions its operators' state.
        """
        later = range(held[-1] + 1, log.committed + 1)
        lost = [b for b in later if not (log.knows(b) and log.range_of(b).is_empty)]
        if not lost:
            return ()
        missing = f"batches {lost[0]} to {lost[-1]}"
        if after_restore:
            return (f"The output {self.place} lacks {missing}, which the checkpoint committed.",)
        raise InputError(
            f"The output {self.place} lacks {missing}, which the checkpoint has committed: put "
            "them back, restore the checkpoint of the same time, or continue without them with "
            "--after-restore (after_restore=True)."
        )

    def _another(self, batch_id: int) -> InputError:
        return InputError(
            f"The output {self.place} holds a batch {batch_id} of other records than the "
            "checkpoint has for it, so the checkpoint is older than the output, probably an "
            "earlier copy: put back the newer one, or continue with --after-restore "
            "(after_restore=True), which sets such batches aside and computes their records again."
        )


def _set_aside(batches: list[int]) -> str:
    first, last = batches[0], batches[-1]
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    return f"{which}, unknown to the checkpoint, set aside; their records are computed again."


def compare(
    sinks: Mapping[str, Sink],
    dead_letters: Sink | None,
    log: BatchLog,
    *,
    after_restore: bool,
) -> tuple[str, ...]:
    """Compare what sinks have published with the log; returns notes for the report."""
    if after_restore:
        log.forget_commits()
    log.check()
    found: list[str] = []
    for sink in (*sinks.values(), dead_letters):
        if isinstance(sink, OnceSink):
            complete = sink is not dead_letters
            found += sink.follow(log, complete=complete, after_restore=after_restore)
    return tuple(found)
