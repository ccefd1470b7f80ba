"""Log the progress of a query, for Tailrace to read; there is no Tailrace in the query.

    python examples/plain_progress.py out/progress.jsonl

A listener writes what Spark says of every batch, one line each: take ``ProgressLog`` into your own
program, and nothing else of it changes. The query here sums up orders by customer. They come as
files of different sizes, and that is worth something: batches of one size could not tell what a
batch costs and what a record costs.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

FILES = 84
STARTS = 2
SECONDS_EACH = 85


class ProgressLog(StreamingQueryListener):
    """Appends the progress of every query of a session to a file."""

    def __init__(self, path: Path, private: str) -> None:
        """Open the file; what is ``private`` to this machine does not get into it."""
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._private = private

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Write what Spark says of a batch."""
        self._file.write(event.progress.json.replace(self._private, "") + "\n")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to log."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to log."""


def write_orders(folder: Path) -> None:
    """Files of 10,000 to 400,000 orders."""
    chance = random.Random(7)  # noqa: S311 - no secret
    folder.mkdir()
    for number in range(FILES):
        orders = round(10_000 * 40 ** chance.random())
        text = "".join(f"{chance.randrange(1_000)},{n % 97}\n" for n in range(orders))
        (folder / f"{number:03}.csv").write_text(text)


def start(spark: SparkSession, folder: str) -> StreamingQuery:
    """What each customer has spent, every two seconds."""
    orders = spark.readStream.schema("customer long, amount double").option("maxFilesPerTrigger", 1)
    spent = orders.csv(f"{folder}/orders").groupBy("customer").agg(F.sum("amount"))
    return (
        spent.writeStream.format("noop")
        .outputMode("update")
        .queryName("orders")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="2 seconds")
        .start()
    )


def main() -> None:
    """Run the query, and once more from where it was stopped."""
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master("local[2]").appName("orders")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    try:
        with tempfile.TemporaryDirectory() as folder:
            spark.streams.addListener(ProgressLog(path, f"file:{folder}/"))
            write_orders(Path(folder) / "orders")
            for _ in range(STARTS):
                query = start(spark, folder)
                time.sleep(SECONDS_EACH)
                query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
