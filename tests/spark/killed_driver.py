"""A driver to be killed: copies a load to parquet until it is.

Usage: killed_driver.py DIRECTORY MOST_RECORDS. The directory holds ``load.trace`` and gets
everything else; a batch takes so many records at most. The session is made at once; the flow starts
with a line of standard input, and not at all when that ends before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tailrace.load import Trace
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.settings import session
from tailrace.spark.sources import replay
from tailrace.spark.step import step


def main(directory: Path, most_records: int) -> None:
    """Run until killed, or until the flow fails."""

    def double(row: Any) -> tuple[int, int]:
        if row.seq % 97 == 0:
            raise ValueError("a multiple of 97")
        return row.seq, row.seq * 2

    spark = session("killed", master="local[2]")
    if not sys.stdin.readline():
        spark.stop()
        return
    run = Flow(
        "killed",
        replay(Trace.load(directory / "load.trace"), most_records=most_records),
        lambda f: f.transform(
            step("double", double, "seq bigint, twice bigint", on_error="dead-letter")
        ),
        sinks.parquet(directory / "out"),
        dead_letters=sinks.parquet(directory / "dead"),
        checkpoint=directory / "checkpoint",
        mode="observe",
    ).start(spark)
    run.wait()
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
