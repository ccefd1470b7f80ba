"""Starts: how long does a flow in real-time mode take from its start to its first result?

The first one of a new session, which is cold; one more beside those that run already; and many at
once, from a few threads, until the last of them has its first result. Every flow is three trivial
Python steps over 100 records/s, and goes on while the others start.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tailrace import load
from tailrace.errors import FlowFailed
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tailrace.spark.session import session
from tailrace.spark.sources import replay
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.run import Run

FLOWS = 16
THREADS = 4
"""What starts them all. A start is work for driver and JVM: on few cores more do not help."""

RATE_PER_S = 100
LASTING_S = 600
LOOK_S = 0.01
LONGEST_S = 300.0
"""How long a first result may be waited for before the benchmark is given up."""

SCHEMA = "seq long, n long"


def measure(*, quick: bool) -> dict[str, Any]:
    """Start flows cold, one by one, and all at once, in a session that has slots for them all."""
    sessions = [_in_a_session(alone=4 if quick else 8) for _ in range(1 if quick else 3)]
    seconds = {
        name: round(statistics.median(s for found in sessions for s in found[name]), 2)
        for name in ("cold_s", "warm_s", "together_s")
    }
    return {**seconds, "flows": FLOWS, "threads": THREADS, "machine": described()}


def _in_a_session(alone: int) -> dict[str, list[float]]:
    """What starts took in a session of their own, in which ``alone`` flows start one by one."""
    spark = session("starts", master=f"local[{max(FLOWS, alone)}]")
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-") as directory:
            starts = Starts(spark, Path(directory))
            cold_s = starts.together(["cold"])
            starts.stop()
            warm_s = [starts.together([f"warm {number}"]) for number in range(alone)]
            starts.stop()
            together_s = starts.together([f"one of {FLOWS}, {n}" for n in range(FLOWS)])
            starts.stop()
    finally:
        spark.stop()
    return {"cold_s": [cold_s], "warm_s": warm_s, "together_s": [together_s]}


class Starts:
    """Starts flows, each of which leaves a file when it has its first result."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        """The directory is for those files."""
        self._spark = spark
        self._directory = directory
        self._runs: list[Run] = []

    def together(self, names: list[str]) -> float:
        """Start flows at once; the seconds until the last of them has its first result."""
        began_s = time.time()
        with ThreadPoolExecutor(THREADS) as pool:
            self._runs += pool.map(self._start, names)
        return max(self._first_s(name) for name in names) - began_s

    def stop(self) -> None:
        """Stop all that run."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda run: run.stop(), self._runs))
        self._runs.clear()

    def _start(self, name: str) -> Run:
        source = replay(
            load.generate(load.Constant(RATE_PER_S, LASTING_S), arrivals="even"), partitions=1
        )
        sink = sinks.each(noting(self._directory / name))
        flow = Flow(name, source, three_steps, sink, backend="realtime", warm_up=0)
        return flow.keep(mean="1 s").start(self._spark)

    def _first_s(self, name: str) -> float:
        """When a flow had its first result, in seconds since the epoch."""
        file = self._directory / name
        deadline_s = time.monotonic() + LONGEST_S
        while not file.exists():
            if time.monotonic() > deadline_s:
                raise FlowFailed(f"Nothing came of flow '{name}' in {LONGEST_S:.0f} s: try again.")
            threading.Event().wait(LOOK_S)
        return file.stat().st_mtime


def three_steps(records: DataFrame) -> DataFrame:
    """Three steps in one chain."""
    first = records.transform(step("first", lambda row: (row.seq, row.seq * 3), SCHEMA))
    second = first.transform(step("second", lambda row: (row.seq, row.n + 1), SCHEMA))
    return second.transform(step("third", lambda row: (row.seq, row.n * 2), SCHEMA))


def noting(file: Path) -> Callable[[Any], None]:
    """What a sink does with each record: the first makes a file, whose time is what counts."""
    path = str(file)

    def note(_: Any) -> None:
        with suppress(FileExistsError):
            Path(path).open("x").close()

    return note


def table(result: dict[str, Any]) -> Table:
    """The result for a person."""
    shown = Table(title="From the start of a flow in real-time mode to its first result")
    shown.add_column("")
    shown.add_column("", justify="right")
    for what, seconds in rows(result):
        shown.add_row(what, show_duration(seconds * 1e3))
    return shown


def rows(result: dict[str, Any]) -> Iterable[tuple[str, float]]:
    """What was measured, and its seconds."""
    yield "the first of a session", result["cold_s"]
    yield "one more, beside those that run", result["warm_s"]
    yield f"{result['flows']} at once, until the last has one", result["together_s"]
