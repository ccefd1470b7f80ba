from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812

from tailrace.profile.histogram import bin_of
from tailrace.spark.backends import arrivals
from tailrace.spark.backends.arrivals import ArrivalProbe, Arrived, arrived_from
from tailrace.spark.worker.meter import Meter
from tests.spark.support import PAST_US

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def ages_ms() -> NDArray[np.float64]:
    """Ages from below the smallest bin to hours, and at the edges of milliseconds."""
    rng = np.random.default_rng(11)
    drawn_us = np.exp(rng.uniform(0, np.log(4e9), 3000)).astype(np.int64)
    return np.concatenate([drawn_us, [0, 1, 9, 10, 11, 1000, 1001, 60_000_000]]) / 1e3


def arrived_at(spark: SparkSession, ages: NDArray[np.float64], partitions: int) -> DataFrame:
    times = [(int(PAST_US - round(age * 1e3)),) for age in ages]
    frame = spark.createDataFrame(times, "us bigint").repartition(partitions)
    return frame.select(F.timestamp_micros("us").alias("due"))


def counted(spark: SparkSession, frame: DataFrame, column: str | None, actions: int = 1) -> Arrived:
    counter = ArrivalProbe(spark.sparkContext, column)
    passing = counter.on(frame)
    counter.begin(PAST_US)
    for _ in range(actions):
        assert passing.count() == frame.count()
    arrived = counter.read()
    assert arrived is not None
    return arrived


def check(arrived: Arrived, ages: NDArray[np.float64]) -> None:
    bins, counts = np.unique(bin_of(ages), return_counts=True)
    assert arrived.records == len(ages)
    assert arrived.ages_ms.bins.tolist() == bins.tolist()
    assert arrived.ages_ms.counts.tolist() == counts.tolist()
    assert arrived.age_ms.count == len(ages)
    assert arrived.age_ms.mean == pytest.approx(np.mean(ages))
    assert arrived.age_ms.variance == pytest.approx(np.var(ages))


@pytest.mark.parametrize("partitions", [1, 5])
def test_ages_are_counted_as_numpy_counts_them(spark: SparkSession, partitions: int) -> None:
    ages = ages_ms()
    check(counted(spark, arrived_at(spark, ages, partitions), "due"), ages)


def test_an_action_that_runs_twice_counts_once(spark: SparkSession) -> None:
    ages = ages_ms()
    check(counted(spark, arrived_at(spark, ages, 3), "due", actions=3), ages)


def test_a_record_without_arrival_time_has_arrived_just_now(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,), (PAST_US - 5000,)], "us bigint")
    frame = frame.select(F.timestamp_micros("us").alias("due"))
    check(counted(spark, frame, "due"), np.array([0.0, 5.0]))


def test_a_record_from_the_future_has_arrived_just_now(spark: SparkSession) -> None:
    check(counted(spark, arrived_at(spark, np.array([-10.0, 2.0]), 1), "due"), np.array([0.0, 2.0]))


def test_without_a_column_records_are_only_counted(spark: SparkSession) -> None:
    arrived = counted(spark, arrived_at(spark, ages_ms(), 2), None)
    assert arrived.records == len(ages_ms())
    assert arrived.age_ms.mean == 0.0


def test_every_record_passes_unchanged_and_the_optimiser_keeps_the_counter(
    spark: SparkSession,
) -> None:
    frame = spark.range(1000).withColumn("due", F.timestamp_micros(F.lit(PAST_US) - F.col("id")))
    counter = ArrivalProbe(spark.sparkContext, "due")
    counter.begin(PAST_US)
    few = counter.on(frame).where("id < 10").select("id")
    assert [row.id for row in few.orderBy("id").collect()] == list(range(10))
    arrived = counter.read()
    assert arrived is not None
    assert arrived.records == 1000


def test_each_batch_begins_anew(spark: SparkSession) -> None:
    counter = ArrivalProbe(spark.sparkContext, "due")
    counter.begin(PAST_US)
    counter.on(arrived_at(spark, ages_ms(), 4)).count()
    counter.begin(PAST_US + 1_000_000)
    assert counter.read() is None
    counter.on(arrived_at(spark, np.array([5.0, 7.0]), 1)).count()
    arrived = counter.read()
    assert arrived is not None
    check(arrived, np.array([1005.0, 1007.0]))


def test_the_start_of_tasks_is_weighted_by_their_records() -> None:
    assert arrived_from("") is None
    arrived = arrived_from("0 1000 3 2.0 0.5 4:3\n1 2000 1 6.0 0.0 4:1\n")
    assert arrived is not None
    assert arrived.started_us == 1250
    assert (arrived.records, arrived.age_ms.mean) == (4, 3.0)
    assert arrived.ages_ms.counts.tolist() == [4]


def test_step_measures_merge_partitions_and_keep_mean_variance_and_moments() -> None:
    rng = np.random.default_rng(5)
    meters = {}
    for partition in range(2):
        meter = Meter()
        meter.passed(100, 50, PAST_US * 1000, (PAST_US + 20_000 * (partition + 1)) * 1000)
        samples = rng.exponential(0.2, 30)
        for took_ms in samples:
            meter.sample(round(took_ms * 1e6))
        meters["a", partition] = meter
        meter.keys["k"] = 10
    measure = arrivals.step_measures(meters, PAST_US)["a"]
    assert (measure.records_in, measure.records_out) == (200, 100)
    assert measure.busy_ms == pytest.approx({0: 20.0, 1: 40.0})
    assert measure.service_ms.mean == pytest.approx(0.3)
    assert measure.service_ms.variance > 0
    assert measure.entered_ms == pytest.approx(0.0, abs=1e-3)
    assert measure.left_ms == pytest.approx(30.0, abs=1e-3)
    assert measure.keys == {"k": 20}


def test_meters_of_a_task_that_ran_twice_count_once(spark: SparkSession) -> None:
    accumulator = arrivals.meters(spark.sparkContext)
    for errors in (1, 2):
        accumulator.add({("a", 0): Meter(errors=errors), ("a", errors): Meter(errors=7)})
    taken = arrivals.taken(accumulator)
    assert {key: meter.errors for key, meter in taken.items()} == {
        ("a", 0): 2,
        ("a", 1): 7,
        ("a", 2): 7,
    }
    assert arrivals.taken(accumulator) == {}
