"""Reads what the steps and the arrival counter measured in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Column
from pyspark.sql import functions as sf

from tailrace.profile.batch import StepMeasure, service_ms
from tailrace.profile.calls import Calls
from tailrace.profile.histogram import GAMMA, SMALLEST_MS, LogHistogram
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

    from tailrace.spark.worker.meter import Meter, Meters


class _ByPartition(AccumulatorParam["Meters"]):
    """Meters by step and partition. A task that ran twice counts once: the later report wins."""

    def zero(self, value: Meters) -> Meters:  # noqa: ARG002 - PySpark's signature
        return {}

    def addInPlace(self, value1: Meters, value2: Meters) -> Meters:  # noqa: N802 - PySpark's name
        value1.update(value2)
        return value1


def meters(context: SparkContext) -> Accumulator[Meters]:
    """An accumulator for the measurements of a flow's chains."""
    return context.accumulator({}, _ByPartition())


def taken(accumulator: Accumulator[Meters]) -> Meters:
    """The measurements since the last call; resets the accumulator for the next batch."""
    value = accumulator.value
    accumulator.value = {}
    return value


def step_measures(meters: Meters, reference_us: int) -> dict[str, StepMeasure]:
    """The measurements of a batch by step, with times relative to ``reference_us``."""
    names = dict.fromkeys(name for name, _ in meters)
    return {
        name: StepMeasure.merged(
            measured(
                meter,
                partition,
                meter.entered_ms - reference_us / 1e3,
                meter.left_ms - reference_us / 1e3,
            )
            for (step, partition), meter in meters.items()
            if step == name
        )
        for name in names
    }


def measured(meter: Meter, partition: int, entered_ms: float, left_ms: float) -> StepMeasure:
    """A task's measurements of a step, with the mean times at which records entered and left."""
    busy_ms = meter.busy_ns / 1e6
    sample = meter.sampled, meter.sampled_sum_ms, meter.sampled_square_ms
    return StepMeasure(
        meter.records_in,
        meter.records_out,
        meter.errors,
        service_ms(meter.records_in, busy_ms, *sample),
        LogHistogram.from_bins(meter.residence),
        {partition: busy_ms},
        entered_ms,
        left_ms,
        dict(meter.keys),
        meter.key_type,
        meter.cpu_ns / 1e6,
        Calls(
            meter.calls,
            meter.records_in,
            busy_ms,
            meter.grown,
            meter.grown_records,
            meter.grown_ns / 1e6,
        ),
    )


@dataclass(frozen=True, slots=True)
class Arrived:
    """When the records of a batch arrived, and when their tasks began.

    Ages count back from the reference moment of the batch.
    """

    records: int
    ages_ms: LogHistogram
    age_ms: Moments
    started_us: int


def arrived_us(column: str) -> Column:
    """When records arrived, in microseconds since the epoch, from the column that says so."""
    return sf.unix_micros(sf.col(column).cast("timestamp"))


def not_known() -> Column:
    """The same if no column says so."""
    return sf.lit(None).cast("long")


def passing(frame: DataFrame, watch: Any, column: Column) -> DataFrame:
    """The same records, with a function in the JVM called on that column of each."""
    gateway: Any = frame.sparkSession.sparkContext._gateway
    columns = gateway.new_array(gateway.jvm.org.apache.spark.sql.Column, 1)
    columns[0] = column._jc
    return frame.where(Column(watch.apply(columns)))


class ArrivalProbe:
    """Counts arrivals where records enter, inside the JVM, for some 50 ns a record."""

    def __init__(self, context: SparkContext, column: str | None) -> None:
        """``column`` holds the arrival time of a record; without one, records are only counted."""
        jvm: Any = context._jvm
        self._counter = jvm.tailrace.probe.Arrivals.create(
            context._jsc.sc(), float(SMALLEST_MS), float(GAMMA)
        )
        self._filter = self._counter.asFilter()
        self._column = column
        self._context = context

    def on(self, frame: DataFrame) -> DataFrame:
        """The same records, counted as they pass."""
        column = not_known() if self._column is None else arrived_us(self._column)
        return passing(frame, self._filter, column)

    def begin(self, reference_us: int) -> None:
        """Start a batch whose ages count back from this time."""
        self._counter.begin(reference_us)

    def read(self) -> Arrived | None:
        """What the tasks of the batch counted; None if there were no records."""
        return arrived_from(self._counter.value())


def arrived_from(text: str) -> Arrived | None:
    """Read the counter's text: a line per task, with its start, count, mean, m2 and bins."""
    records, started = 0, 0
    moments = Moments()
    bins: dict[int, int] = {}
    for line in text.splitlines():
        _, start, count, mean, m2, *pairs = line.split()
        records += int(count)
        started += int(start) * int(count)
        moments += Moments(int(count), float(mean), float(m2))
        for pair in pairs:
            index, held = pair.split(":")
            bins[int(index)] = bins.get(int(index), 0) + int(held)
    if not records:
        return None
    return Arrived(records, LogHistogram.from_bins(bins), moments, round(started / records))
