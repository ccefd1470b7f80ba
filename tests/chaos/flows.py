"""The six flows that faults are put to, on a place of their own each.

Every one numbers its records, so that what came out can be compared with what went in. Their sinks
stop at named points when a point is armed: before a batch is computed, before it is published, and
before Spark commits it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import functions as sf

from tailrace.load import Constant, Trace, Uniform, generate
from tailrace.plan import Backend, Plan, first_plan
from tailrace.spark import kafka, sinks
from tailrace.spark.flow import Flow
from tailrace.spark.from_file import send_by_value
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from tailrace.graph import Graph
    from tailrace.spark.sinks import Publish

send_by_value(sys.modules[__name__])

FLOWS = ("stateless", "keyed", "aggregation", "outputs", "kafka", "realtime")
PUBLISHED = {
    "stateless": ("out", "dead"),
    "keyed": ("out",),
    "aggregation": ("out",),
    "outputs": ("all", "even"),
    "kafka": (),
    "realtime": (),
}
"""The directories of parquet files that a flow leaves."""

POINTS = ("compute", "publish", "commit")
"""Where a batch can be stopped: before each of these."""

KEYS = 12
RATE_PER_S = 120
LONGEST_S = 3_600
BAD = 97
"""Of the stateless flow, every record of such a number is a dead letter."""

BATCH_MS = 500.0
"""Of real-time mode: a tenth of what Spark allows unless told, so that more batches end."""

INTERVAL = "150 ms"


@dataclass(frozen=True, slots=True)
class How:
    """How a flow is started: what a user could have changed since the last time."""

    key_type: str = "int"
    step: str = "count"
    after_restore: bool = False
    deaf: bool = False

    def told(self) -> dict[str, Any]:
        """The same, to be sent."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one flow of a scene lives."""

    directory: Path
    servers: str = ""

    @property
    def checkpoint(self) -> Path:
        """What the flow is resumed from."""
        return self.directory / "flow"

    @property
    def spark(self) -> Path:
        """Spark's part of it."""
        return self.checkpoint / "checkpoint"

    @property
    def armed(self) -> Path:
        """Names the point to stop at."""
        return self.directory / "armed"

    @property
    def reached(self) -> Path:
        """Is there when it is reached."""
        return self.directory / "reached"

    def topic(self, way: str) -> str:
        """The Kafka topic for one way, ``in`` or ``out``."""
        return f"{self.directory.parent.name}-{way}"


@cache
def load() -> Trace:
    """What flows replay; the same in every process."""
    constant = Constant(RATE_PER_S, f"{LONGEST_S} s")
    return generate(constant, arrivals="poisson", keys=Uniform(KEYS), seed=7)


# --- stopping at a point -----------------------------------------------------------------------

ending = threading.Event()
"""Set when the driver ends, so that no point holds it."""


def reach(place: Place, point: str) -> None:
    """Stop here while this point is armed."""
    if _armed(place) != point:
        return
    place.reached.touch()
    while _armed(place) == point and not ending.wait(0.005):
        pass


def _armed(place: Place) -> str:
    try:
        return place.armed.read_text()
    except FileNotFoundError:
        return ""


def _pointed(place: Place, write: Callable[[], Publish]) -> Publish:
    reach(place, "compute")
    publish = write()
    reach(place, "publish")

    def act() -> None:
        publish()
        reach(place, "commit")

    return act


class PointedParquet(sinks.Parquet):
    """Parquet files that can be stopped on their way."""

    def __init__(self, place: Place, name: str) -> None:
        """``name`` is that of the output."""
        super().__init__(place.directory / name)
        self._place = place

    def write(self, *given: Any, **more: Any) -> Publish:
        """Write as always, with points."""
        return _pointed(self._place, lambda: sinks.Parquet.write(self, *given, **more))


class PointedKafka(kafka.KafkaSink):
    """A topic that can be stopped on its way."""

    @property
    def place(self) -> Place:
        """Where the flow lives, which travels with the options."""
        return Place(Path(self.options["chaos.place"]))

    def stream_options(self) -> dict[str, str]:
        """The options without our own."""
        given = kafka.KafkaSink.stream_options(self)
        return {key: value for key, value in given.items() if key != "chaos.place"}

    def write(self, *given: Any, **more: Any) -> Publish:
        """Write as always, with points."""
        return _pointed(self.place, lambda: kafka.KafkaSink.write(self, *given, **more))


# --- pipelines ---------------------------------------------------------------------------------


def double(row: Any) -> tuple[int, int]:
    if row.seq % BAD == 0:
        raise ValueError(f"a multiple of {BAD}")
    return row.seq, row.seq * 2


def count(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
    for row in rows:
        state["n"] += 1
        yield str(key), row.seq, state["n"]


def users(records: DataFrame, how: How) -> DataFrame:
    """Records with the number of their key, in the type that is told."""
    return records.selectExpr(f"cast(key as {how.key_type}) as user", "seq")


def counted(how: How) -> Callable[[DataFrame], DataFrame]:
    schema = "user string, seq long, n long"
    counting = keyed_step(how.step, count, schema, key="user", state={"n": 0})

    def pipeline(records: DataFrame) -> DataFrame:
        same = step("read", lambda row: (row.user, row.seq), f"user {how.key_type}, seq long")
        return users(records, how).transform(same).transform(counting)

    return pipeline


def summed(how: How) -> Callable[[DataFrame], DataFrame]:
    def pipeline(records: DataFrame) -> DataFrame:
        same = step("read", lambda row: (row.user, row.seq), f"user {how.key_type}, seq long")
        sums = users(records, how).transform(same).groupBy("user")
        found = sums.agg(sf.count("*").alias("records"), sf.sum("seq").alias("total"))
        return found.selectExpr("cast(user as string) as user", "records", "total")

    return pipeline


def parted(how: How) -> Callable[[DataFrame], dict[str, DataFrame]]:
    def pipeline(records: DataFrame) -> dict[str, DataFrame]:
        name = "double" if how.step == "count" else how.step
        doubled = records.transform(
            step(name, lambda row: (row.seq, row.seq * 2), "seq long, twice long")
        )
        return {"all": doubled, "even": doubled.where("seq % 2 = 0")}

    return pipeline


def doubled(how: How) -> Callable[[DataFrame], DataFrame]:
    name = "double" if how.step == "count" else how.step
    schema = "seq bigint, twice bigint"
    return lambda records: records.transform(step(name, double, schema, on_error="dead-letter"))


def answered(records: DataFrame) -> DataFrame:
    def answer(row: Any) -> tuple[str, str]:
        seq = json.loads(row.value)["seq"]
        return row.key, json.dumps({"seq": seq, "twice": 2 * seq})

    return records.transform(step("answer", answer, "key string, value string"))


def noted(directory: Path) -> Callable[[Any], None]:
    """A function that leaves a line for every result, whatever happens to the worker then."""
    place = str(directory)

    def note(row: Any) -> None:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        line = f"{row.user} {row.seq} {row.n}\n"
        file = os.open(f"{place}/{part}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    return note


# --- flows -------------------------------------------------------------------------------------


def made(name: str, place: Place, how: How) -> Flow:
    """One of the six flows, ready to be started."""
    common: dict[str, Any] = {"checkpoint": place.checkpoint, "mode": "observe"}
    batches = common | {"start_interval": INTERVAL}
    if name == "kafka":
        source = kafka.source(place.servers, place.topic("in"), starting="earliest")
        options = {"chaos.place": str(place.directory)}
        sent = PointedKafka(place.servers, place.topic("out"), options)
        return Flow(name, source, answered, sent, **batches)
    if name == "realtime":
        seen = place.directory / "seen"
        seen.mkdir(exist_ok=True)
        common |= {"backend": "realtime", "recovery": BATCH_MS}
        return Flow(name, replay(load()), counted(how), sinks.each(noted(seen)), **common)
    pipelines: dict[str, Any] = {
        "stateless": doubled,
        "keyed": counted,
        "aggregation": summed,
        "outputs": parted,
    }
    if name == "stateless":
        batches |= {"dead_letters": PointedParquet(place, "dead")}
    found = {out: PointedParquet(place, out) for out in PUBLISHED[name] if out != "dead"}
    sink = found if len(found) > 1 else found["out"]
    return Flow(name, replay(load()), pipelines[name](how), sink, **batches)


def planned(name: str) -> Callable[[Graph], Plan]:
    """Two partitions for keyed steps, whatever slots there are."""

    def plan(graph: Graph) -> Plan:
        if name == "realtime":
            return replace(first_plan(graph, BATCH_MS, slots=2), backend=Backend.REALTIME)
        return first_plan(graph, 150.0, slots=2)

    return plan
