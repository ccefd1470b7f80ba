"""A real-time flow on a cluster that loses executors: while it runs, and just before it starts.

Usage: lost_executor.py DIRECTORY. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tailrace.load import Trace
from tailrace.spark import sinks
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.cluster.local import Cluster
from tailrace.spark.flow import Flow
from tailrace.spark.from_file import send_by_value
from tailrace.spark.pipeline.step import keyed_step
from tailrace.spark.session import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT, KEYS, RATE = 60_000, 5, 300
PATIENCE_S = 120.0


def numbered(key: str, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[int, str, int]]:
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield row.seq, key, state["n"]


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not in {PATIENCE_S:.0f} s: {what}")
        threading.Event().wait(0.1)


def kill_an_executor() -> None:
    """Kill one, and wait until it is gone."""
    found = next(p for p in psutil.Process().children(recursive=True) if is_executor(p))
    found.kill()
    psutil.wait_procs([found])


def is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def flow_in(directory: Path) -> Flow:
    due = (np.arange(COUNT) * 1e6 / RATE).astype(np.int64)
    key = (np.arange(COUNT) % KEYS).astype(np.int32)
    names = tuple(f"k{i}" for i in range(KEYS))
    load = Trace(due, key, np.zeros(COUNT, np.int32), names)
    results = str(directory / "results")

    def append(row: Any) -> None:
        with (Path(results) / str(os.getpid())).open("a") as file:
            file.write(f"{row.seq} {row.key} {row.n}\n")

    step = keyed_step(
        "count", numbered, "seq bigint, key string, n bigint", key="key", scale=(2, 2)
    )
    return Flow(
        "lost",
        replay(load, partitions=1),
        lambda records: records.transform(step),
        sinks.each(append),
        checkpoint=directory / "flow",
        mode="observe",
        backend="realtime",
        recovery="2 s",
    )


def written(directory: Path) -> int:
    """How much has come out."""
    return sum(file.stat().st_size for file in (directory / "results").iterdir())


def exact(directory: Path) -> tuple[bool, int]:
    """Whether the results are those of a sequential run, each at least once, and how many."""
    files = (directory / "results").iterdir()
    lines = {line for file in files for line in file.read_text().splitlines(keepends=True)}
    found = {tuple(line.split()) for line in lines if line.endswith("\n")}
    most = max(int(seq) for seq, _, _ in found) + 1
    wanted = {(str(seq), f"k{seq % KEYS}", str(seq // KEYS + 1)) for seq in range(most)}
    late = {row for row in wanted - found if int(row[0]) > most - RATE}  # still under way
    return found | late == wanted, len(found)


def main(directory: Path) -> dict[str, Any]:
    (directory / "results").mkdir()
    log = BatchLog(directory / "flow/checkpoint")
    with Cluster(workers=2, cores=2, memory="512 MiB") as cluster:
        spark = session("lost", master=cluster.master, settings={"spark.executor.cores": "2"})
        try:
            run = flow_in(directory).start(spark)
            until(lambda: log.committed >= 0, "a batch")
            results = written(directory)
            until(lambda: written(directory) > results, "the next one")
            kill_an_executor()
            reached = log.committed
            until(lambda: log.committed >= reached + 2, "batches after the loss")
            first = run.stop()
            kill_an_executor()
            again = flow_in(directory).start(spark)
            reached = log.committed
            until(lambda: log.committed >= reached + 2, "batches of the second run")
            again.stop()
        finally:
            spark.stop()
    right, rows = exact(directory)
    return {"exact": right, "rows": rows, "notes": first.data["notes"]}


if __name__ == "__main__":
    send_by_value(sys.modules["__main__"])
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
