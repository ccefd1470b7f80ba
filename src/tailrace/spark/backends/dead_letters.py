"""Dead letters in real-time mode: put aside by tasks, published when their batch is committed.

A task writes the records that its steps could not process to a file of its own, under the id of
the batch, before the batch is committed. The driver publishes the files of committed batches and
removes them; files of a batch that was never committed are removed when the flow starts again.
So every dead letter is published once, even after a crash, if the sink keeps each batch id once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.sinks import Sink

SCHEMA = "batch_id long, step string, record string, error string"


def frame_of(spark: SparkSession, rows: list[tuple[int, str, str, str]]) -> DataFrame:
    """Dead letters with their batch, as a frame of one task: a flow may hold the other slots."""
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


class DeadLetters:
    """The driver's side: what tasks have put aside, by batch."""

    def __init__(self, directory: Path, committed: int) -> None:
        """Remove files of batches after the last committed one."""
        self._directory = directory
        for place in self._files():
            if place.suffix == ".tmp" or _batch(place) > committed:
                place.unlink(missing_ok=True)

    def publish(self, spark: SparkSession, sink: Sink, committed: int) -> None:
        """Publish the letters of every committed batch."""
        found: defaultdict[int, list[Path]] = defaultdict(list)
        for place in self._files():
            if place.suffix == ".json" and _batch(place) <= committed:
                found[_batch(place)].append(place)
        for batch in sorted(found):
            letters = [letter for place in found[batch] for letter in json.loads(place.read_text())]
            rows = [(batch, *letter) for letter in letters]
            sink.write(frame_of(spark, rows), batch)()
            for place in found[batch]:
                place.unlink()

    def _files(self) -> Iterable[Path]:
        return sorted(self._directory.iterdir()) if self._directory.is_dir() else ()


def _batch(place: Path) -> int:
    return int(place.name.split("-")[0])
