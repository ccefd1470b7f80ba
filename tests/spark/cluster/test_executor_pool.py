"""Flows that decide on executors which are made up: what the backend does about them, on Spark."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.policy.scaling.ondemand import OnDemand
from tailrace.spark import sinks
from tailrace.spark.backends.microbatch import Pool
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tests.spark.flows import Running
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.load import Trace

by_value(__name__)

NOBODY = "1 executors were asked for and 0 are there: add workers."


class MadeUp:
    """Executors of one core that come as soon as they are asked for, on a cluster with room."""

    cores, most = 1, None
    warm_up: Any = None
    room = 8

    def __init__(self, _: object) -> None:
        self.running = self.wanted = min(1, self.room)
        self.asked: list[int] = []

    @property
    def requested(self) -> int:
        return self.wanted

    def there(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.running)))

    ready = there

    def ask_for(self, total: int) -> None:
        if total != self.wanted:
            self.asked.append(total)
        self.wanted = total
        self.running = max(self.running, min(total, self.room))

    def missing(self) -> str | None:
        return NOBODY if self.running < self.wanted else None

    def surplus(self) -> tuple[str, ...]:
        return self.there()[self.wanted :]

    def end_surplus(self) -> tuple[str, ...]:
        ended = self.surplus()
        self.running -= len(ended)
        return ended


def doubled(records: DataFrame) -> DataFrame:
    return records.transform(step("double", lambda row: 2 * row.seq, "n long", scale=(1, 4)))


def elastic(load: Trace, **how: Any) -> Flow:
    how = {"executors": (1, 3), "interval": "500 ms", "warm_up": 0, **how}
    return Flow("elastic", load, doubled, sinks.memory(), **how).keep(mean="400 ms", every="500 ms")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> type[MadeUp]:
    """Stands in for executors of a cluster; a class of its own for each test."""
    stand_in = type("MadeUp", (MadeUp,), {})
    monkeypatch.setattr("tailrace.spark.run.Executors", stand_in)
    return stand_in


def test_executors_that_warm_up_cost_and_take_no_tasks() -> None:
    executors: Any = MadeUp(None)
    executors.cores, executors.running = 2, 3
    executors.ready = lambda: ("0",)
    held: list[int] = []
    assert Pool(executors, held.append).look(None).slots == 2
    assert held == [6]


@pytest.mark.spark
def test_a_flow_for_which_no_executor_ever_comes_ends_and_says_why(
    spark: SparkSession, made_up: type[MadeUp]
) -> None:
    """A query without executors cannot end its batch, so stopping must not wait for that."""
    made_up.room = 0
    nothing = even_trace(1, 1e-3)
    nothing.due_us[0] = 3_600_000_000
    run = elastic(nothing).start(spark)
    assert run.wait(30)
    with pytest.raises(EnvironmentUnfit, match=NOBODY):
        run.stop()
    assert spark.streams.active == []


@pytest.mark.spark
@pytest.mark.usefixtures("made_up")
def test_a_stream_that_falls_silent_gives_its_executors_back(spark: SparkSession) -> None:
    scaler = OnDemand()
    flow = elastic(even_trace(400, 200), scaler=scaler)
    with Running(spark, flow) as running:
        executors: Any = running.run._executors
        until(lambda: scaler._seen is not None, "an interval was measured")
        scaler.apply(scaler.preview(+2))
        until(lambda: executors.running == 3, "three executors")
        until(lambda: sum(m.records for m in running.measures) == 400, "all records")
        scaler.apply(scaler.preview(-2))
        until(lambda: executors.running == 1, "fewer, though no batch comes any more")
        assert executors.asked == [3, 1]


@pytest.mark.spark
@pytest.mark.usefixtures("made_up")
def test_a_batch_is_booked_under_the_partitions_that_it_ran_with(spark: SparkSession) -> None:
    """The plan may have changed while it ran, and the query is made anew after it, at once.

    Another batch under the plan before could be one of minutes.
    """
    scaler = OnDemand()
    with Running(spark, elastic(even_trace(20_000, 500), scaler=scaler)) as running:
        until(lambda: scaler._seen is not None, "an interval was measured")
        scaler.apply(scaler.preview(+2))
        until(lambda: running.measures[-1].plan.partitions["double"] == 3, "three partitions")
        moved = len(running.measures)
        until(lambda: len(running.measures) > moved + 3, "batches on three")
    for told, after in pairwise(running.measures):
        assert told.slots < 3 or after.plan.partitions["double"] == 3
    for measure in running.measures:
        partitions = measure.plan.partitions["double"]
        if measure.records >= 10 * partitions:  # enough for every partition to have some
            assert len(measure.steps["double"].busy_ms) == partitions
