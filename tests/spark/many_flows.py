"""Many flows of one session, started at once: what came of them, and what they left behind.

Usage: many_flows.py DIRECTORY FLOWS SLOTS. Says it as JSON, for a session with that many slots.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.backends.slots import _claims_of
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tailrace.spark.session import session
from tailrace.spark.sources import replay
from tests.spark.collected import Files, plan_on
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.spark.run import Run

if __name__ != "__main__":
    by_value(__name__)

COUNT = 300
RATE_PER_S = 100.0
THREADS = 8
PATIENCE_S = 240.0

REGISTRIES = ("handover.Lifetime", "handover.FlushInterval")


def lifetime_ms(number: int) -> float:
    """What the plan of a flow says; no two are alike."""
    return 10.0 * (number + 1)


class Many:
    """So many flows, whose steps have the same name and do different things."""

    def __init__(self, spark: SparkSession, directory: Path, flows: int) -> None:
        self.spark = spark
        self.files = [Files(directory / str(number)) for number in range(flows)]
        self.runs: dict[int, Run] = {}
        self.refused: dict[int, str] = {}

    def start(self) -> None:
        """Start all of them at once, from threads that did nothing with Spark before."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._start, range(len(self.files))))

    def _start(self, number: int) -> None:
        source = replay(even_trace(COUNT, RATE_PER_S), partitions=1)
        sink = self.files[number].sink
        how: dict[str, Any] = {"mode": "observe", "backend": "realtime", "warm_up": 0}
        flow = Flow(f"flow {number}", source, multiplied(number), sink, **how)
        try:
            self.runs[number] = flow.start(plan=planned(number))
        except EnvironmentUnfit as error:
            self.refused[number] = str(error)

    def lifetimes_ms(self) -> dict[int, float]:
        """The lifetime that the JVM has for the one chain of each flow that runs."""
        flows = registry(self.spark, "handover.Lifetime")
        found = {}
        for number, run in self.runs.items():
            backend: Any = run._backend
            (values,) = flows.get(backend.flow_id).values()
            nanos = values.getClass().getDeclaredField("nanos")
            nanos.setAccessible(True)
            found[number] = nanos.getLong(values) / 1e6
        return found

    def finish(self) -> None:
        """Wait until all that run have given out every record."""
        for number in self.runs:
            until(self.files[number].hold(COUNT), f"records of flow {number}", PATIENCE_S)

    def stop(self) -> list[list[str]]:
        """Stop them; what each report says of what went on."""
        with ThreadPoolExecutor(THREADS) as pool:
            reports = list(pool.map(lambda run: run.stop("60 s"), self.runs.values()))
        return [list(report.data["notes"]) for report in reports]

    def exact(self) -> dict[int, bool]:
        """Whether the results of each are what a sequential run would give, each once."""
        return {
            number: self.files[number].counted()
            == Counter((seq, seq * (number + 1)) for seq in range(COUNT))
            for number in self.runs
        }


def multiplied(number: int) -> Callable[[DataFrame], DataFrame]:
    """A pipeline of one step, which is called the same in every flow."""

    def pipeline(records: DataFrame) -> DataFrame:
        schema = "seq bigint, n bigint"
        return records.transform(step("a", lambda row: (row.seq, row.seq * (number + 1)), schema))

    return pipeline


def planned(number: int) -> Callable[[Graph], Plan]:
    """A plan with the lifetime of that flow."""
    return lambda graph: replace(
        plan_on("realtime")(graph), lifetimes_ms={"a": lifetime_ms(number)}
    )


def registry(spark: SparkSession, name: str) -> Any:
    """What the JVM keeps by flow."""
    jvm: Any = spark.sparkContext._jvm
    field = jvm.java.lang.Class.forName(f"tailrace.{name}").getDeclaredField("FLOWS")
    field.setAccessible(True)
    return field.get(None)


def held(spark: SparkSession) -> dict[str, Any]:
    """What flows hold in this process, in the JVM and on disk while they run.

    The threads that pass on what the JVM prints are the session's.
    """
    context = spark.sparkContext
    jvm: Any = context._jvm
    there = context.defaultParallelism
    stacks = [stack.getName() for stack in jvm.java.lang.Thread.getAllStackTraces().keySet()]
    threads = {thread.name for thread in threading.enumerate()} - {"tailrace-relay"}
    return {
        "threads": sorted(name for name in threads if name.startswith("tailrace")),
        "jvm threads": sorted(name for name in stacks if name.startswith("tailrace")),
        "ports": len(psutil.Process().net_connections("udp")),
        "directories": sorted(p.name for p in Path(tempfile.gettempdir()).glob("tailrace-*")),
        "registries": {name: registry(spark, name).size() for name in REGISTRIES},
        "queries": len(spark.streams.active),
        "slots": there - _claims_of(context.applicationId or "").room(None, there),
    }


def story(spark: SparkSession, directory: Path, flows: int) -> dict[str, Any]:
    """Start ``flows`` flows, let them work and stop them; returns what was seen."""
    before = held(spark)
    many = Many(spark, directory, flows)
    try:
        many.start()
        during, lifetimes_ms = held(spark), many.lifetimes_ms()
        many.finish()
    finally:
        notes = many.stop()
    until(lambda: held(spark) == before, "the end of all that flows held")
    return {
        "before": before,
        "during": during,
        "lifetimes_ms": lifetimes_ms,
        "refused": many.refused,
        "notes": notes,
        "exact": many.exact(),
    }


if __name__ == "__main__":
    where, number_of_flows, number_of_slots = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    (where / "tmp").mkdir()
    tempfile.tempdir = str(where / "tmp")
    here = session("many-flows", master=f"local[{number_of_slots}]")
    print(json.dumps(story(here, where / "results", number_of_flows)))
    here.stop()
