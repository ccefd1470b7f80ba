"""Parquet files, every batch exactly once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.errors import FlowFailed, InputError
from tailrace.spark.sinks.base import nothing
from tailrace.spark.sinks.once import Label, Once
from tailrace.spark.sinks.place import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.sinks.base import Publish
    from tailrace.spark.sinks.place import Place

_BATCH = re.compile(r"batch=(\d+)")
_LABEL = "_batch.json"
_MARK = "_tailrace-"
_OURS = ("_tailrace", "_staging", "_superseded", "._tailrace")


class Parquet(Once):
    """A directory of parquet files, every batch exactly once.

    A batch is written to a hidden directory, together with a label that says what it holds, and
    becomes visible by one rename, as ``path/batch=<id>``. An existing batch is not written again:
    after a crash the replay of a published batch changes nothing, and an unpublished one leaves no
    trace. A batch that holds other records under the same id is refused.

    The directory belongs to one checkpoint, by a mark in it, and to one run at a time. Renames are
    atomic on local disks and on HDFS, not on object stores.
    """

    def __init__(self, path: str | Path) -> None:
        """``path`` is new, empty, or what an earlier run with the same checkpoint wrote."""
        self.place = str(path)
        self._files: Place | None = None

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Claim the directory; refuse one that is in use or holds something else."""
        if identity == self.identity:
            self.release()  # held by a run that is over: two runs cannot share a checkpoint
        self._files = files = place_of(self.place, spark)
        self.identity, self._log = identity, None
        self._require_free(files)  # before anything is left in it
        locked = files.claim()
        try:
            self._require_free(files)
            if not files.exists(self._mark):
                self._take_over(files, locked)
                files.write(self._mark, "")
            files.remove(self._staging)
        except BaseException:
            files.release()
            raise

    def release(self) -> None:
        """Give up the directory for other runs."""
        if self._files is not None:
            self._files.release()

    @property
    def _mark(self) -> str:
        return f"{_MARK}{self.identity}"

    @property
    def _staging(self) -> str:
        return f"_staging-{self.identity}"

    def _require_free(self, files: Place) -> None:
        """Refuse a directory that holds anything that this checkpoint did not write."""
        held = files.names()
        if self._mark not in held and any(not name.startswith(_OURS) for name in held):
            raise InputError(
                f"The output directory {self.place} is not empty and was not written by this "
                "checkpoint: choose an empty one, or resume with the checkpoint that wrote it."
            )

    def _take_over(self, files: Place, locked: bool) -> None:
        """Take over a directory that has no published batches and that no run uses now."""
        held = files.names()
        marks = {name for name in held if name.startswith(_MARK)}
        if marks and not locked:
            raise InputError(
                f"The output directory {self.place} belongs to another checkpoint, which may be "
                f"running: choose another directory, or remove {min(marks)} from it."
            )
        for name in held:
            if name.startswith((_MARK, f".{_MARK}", "_staging")):
                files.remove(name)

    def published(self) -> list[int]:
        """The ids of the batches that are published, in order."""
        found = (_BATCH.fullmatch(name) for name in self._there().names())
        return sorted(int(match[1]) for match in found if match)

    def has(self, batch_id: int) -> bool:
        """Whether a batch of this id is published."""
        return self._there().exists(f"batch={batch_id}")

    def label_of(self, batch_id: int) -> Label | None:
        """The label of a published batch; None if it has none."""
        text = self._there().read(f"batch={batch_id}/{_LABEL}")
        return None if text is None else Label.read(text)

    def set_aside(self, batch_ids: Iterable[int]) -> None:
        """Rename batches so that readers skip them."""
        files = self._there()
        taken = files.names()
        for batch in batch_ids:
            name, again = f"_superseded-{batch}", 1
            while name in taken:
                name, again = f"_superseded-{batch}-{again}", again + 1
            self._move(files, f"batch={batch}", name)

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Write the batch where no reader looks, unless it is already published."""
        files, staged = self._there(), f"{self._staging}/batch={batch_id}"
        _require_readable(frame.columns)
        if self.holds(batch_id):
            return nothing
        (
            frame.write.mode("overwrite")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
            .parquet(files.address(staged))
        )
        files.write(f"{staged}/{_LABEL}", self.label(batch_id).text())
        return lambda: self._publish(files, staged, f"batch={batch_id}")

    def _publish(self, files: Place, staged: str, final: str) -> None:
        if not files.exists(self._mark):
            raise FlowFailed(
                f"The output directory {self.place} no longer belongs to this checkpoint: another "
                "flow took it over, so choose another directory and start again; the current batch "
                "was not published."
            )
        self._move(files, staged, final)

    def _move(self, files: Place, origin: str, target: str) -> None:
        if not files.move(origin, target):
            raise FlowFailed(
                f"The batch {files.address(target)} could not be published: check that the output "
                "directory is writable and that no other run writes to it."
            )

    def _there(self) -> Place:
        if self._files is None:
            raise InputError(f"The output {self.place} was not prepared: run it as a flow's sink.")
        return self._files


def _require_readable(columns: Iterable[str]) -> None:
    """Refuse a column that readers would not see: they read the directory names as a column."""
    hidden = [name for name in columns if name.lower() == "batch"]
    if hidden:
        raise InputError(
            f"The output has a column '{hidden[0]}', which readers of its parquet files would "
            "confuse with the batch=<id> in the names of their directories: rename the column."
        )
