"""A chain: steps that run one after the other in one hand-over to Python.

This code runs inside Python workers. Between two steps records stay in Arrow, even if both are row
functions, so that each step sees the types that its predecessor declared and the result is the same
however the steps are chained.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tailrace.plan import chain_name
from tailrace.spark.worker import task
from tailrace.spark.worker.keyed import BORN_NOW
from tailrace.spark.worker.meter import SAMPLE_EVERY, Meter
from tailrace.spark.worker.telemetry import Handed
from tailrace.spark.worker.watch import WATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.accumulators import Accumulator

    from tailrace.spark.worker.meter import Meters
    from tailrace.spark.worker.operator import Operator, Passed, Running
    from tailrace.spark.worker.telemetry import TelemetryClient

RESERVED = "_tailrace_"
"""Prefix of the columns that Tailrace adds; a pipeline's own may not start with it."""

LAST = "(each)"
"""The name of the step that stands for a sink of one function."""

TAG = "_tailrace_us"
"""The column that carries the arrival time of a record through a flow in real-time mode."""

READ = "_tailrace_read"
"""The column, last of a chain's input, that says when a record entered the open batch."""


class Chain:
    """Runs operators over the Arrow batches of one task and reports what it measured.

    In micro-batches it reports at the end of the task, through an accumulator; in real-time mode
    while it runs, through telemetry. With neither, only errors are counted.
    """

    def __init__(
        self,
        operators: tuple[Operator, ...],
        meters: Accumulator[Meters] | None = None,
        telemetry: TelemetryClient | None = None,
        *,
        tagged: bool = False,
        redaction: bytes | None = None,
        watched: TelemetryClient | None = None,
    ) -> None:
        """One of the two ways to report, or none; whether records carry their arrival time.

        With ``redaction``, a secret, keys are reported by pseudonyms. ``watched`` is where to
        report that a step hangs.
        """
        self._redaction = redaction
        self._operators = operators
        self._watched = watched
        self._tagged = tagged
        self._running: tuple[Running, ...] = ()
        self._meters = meters
        self._telemetry = telemetry
        self._sample_every = 0 if meters is None and telemetry is None else SAMPLE_EVERY

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps."""
        return tuple(operator.name for operator in self._operators)

    @property
    def name(self) -> str:
        """What plans and reports call it, without a sink's step at its end."""
        named = tuple(operator.name for operator in self._operators if operator.name != LAST)
        return chain_name(named or self.names)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass every batch through every operator, one batch out for each batch in.

        A chain that begins with a keyed step may add one at the end, for timers.
        """
        if self._watched is None:
            yield from self._run(batches)
        else:
            with WATCH.over(self._watched):
                yield from self._run(batches)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._running = tuple(map(_opened, self._operators))
        return self._live(batches, self._telemetry) if self._telemetry else self._by_batch(batches)

    def _by_batch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        meters = self._new_meters()
        for batch in batches:
            yield self._passed(batch, meters)
        for place, left in self._finished(meters):
            yield self._passed(left.batch, meters, start=place + 1)
        if self._meters is not None:
            partition, shown = task.partition(), self._shown(meters)
            self._meters.add({(n, partition): m for n, m in zip(self.names, shown, strict=True)})

    def _passed(self, batch: pa.RecordBatch, meters: list[Meter], start: int = 0) -> pa.RecordBatch:
        for place in range(start, len(meters)):
            batch = self._pass(place, batch, meters[place]).batch
        return batch

    def _finished(self, meters: list[Meter]) -> Iterator[tuple[int, Passed]]:
        """What operators still hold at the end of the task, each with its place in the chain."""
        for place, running in enumerate(self._running):
            with _in_step(self._operators[place]):
                left = running.finish(meters[place])
            if left is not None:
                yield place, left

    def _new_meters(self, before: Sequence[Meter] = ()) -> list[Meter]:
        """Meters at zero; dead letters stay until the task ends."""
        letters = [meter.dead for meter in before] or [[] for _ in self._operators]
        return [Meter(self._sample_every, dead=dead) for dead in letters]

    def _shown(self, meters: list[Meter]) -> list[Meter]:
        """The measurements, redacted if necessary before they leave the worker."""
        if self._redaction is not None:
            for meter in meters:
                meter.hide_keys(self._redaction)
        return meters

    def _pass(self, place: int, batch: pa.RecordBatch, meter: Meter) -> Passed:
        operator = self._operators[place]
        began, computed = time.time_ns(), time.thread_time_ns()
        WATCH.calls += 1
        WATCH.step = operator.name
        passed = self._running[place].run(batch, meter)
        WATCH.step = None
        if self._sample_every:
            meter.passed(batch.num_rows, passed.batch.num_rows, began, time.time_ns())
            meter.cpu_ns += time.thread_time_ns() - computed
            if operator.keyed_by and set(operator.keyed_by).issubset(batch.schema.names):
                meter.count_keys([batch.column(name) for name in operator.keyed_by])
        return passed

    def _live(
        self, batches: Iterable[pa.RecordBatch], telemetry: TelemetryClient
    ) -> Iterator[pa.RecordBatch]:
        """The same on records that carry their arrival time, with regular reports."""
        if gc.get_freeze_count() == 0:
            gc.freeze()  # what a worker has loaded stays: collecting it would take 10 ms
        meters, handed = self._new_meters(), Handed()
        speaker = telemetry.speaker(self.name, self.names)
        for batch in batches:
            entered_us = time.time_ns() // 1_000
            tags, records = _taken_off(batch, handed, entered_us)
            for place, meter in enumerate(meters):
                tags, records = self._pass_tagged(place, tags, records, meter)
            yield _put_on(tags, records)
            if speaker.is_due(entered_us):
                speaker.speak(handed, self._shown(meters))
                meters, handed = self._new_meters(meters), Handed()
        for place, left in self._finished(meters):
            yield self._passed_tagged(place, left, meters)
        speaker.put_aside(
            [(n, *letter) for n, m in zip(self.names, meters, strict=True) for letter in m.dead]
        )
        speaker.speak(handed, self._shown(meters))

    def _passed_tagged(self, place: int, left: Passed, meters: list[Meter]) -> pa.RecordBatch:
        """What an operator still held, passed through the operators after it."""
        records = left.batch
        tags = _Tags.of(pa.nulls(0, pa.int64())).after(left) if self._tagged else None
        for later in range(place + 1, len(meters)):
            tags, records = self._pass_tagged(later, tags, records, meters[later])
        return _put_on(tags, records)

    def _pass_tagged(
        self, place: int, tags: _Tags | None, batch: pa.RecordBatch, meter: Meter
    ) -> tuple[_Tags | None, pa.RecordBatch]:
        began_us = time.time_ns() // 1_000
        passed = self._pass(place, batch, meter)
        if tags is None:
            return None, passed.batch
        after = tags.after(passed)
        meter.age_in_us += tags.ages_us(began_us)
        meter.age_out_us += after.ages_us(time.time_ns() // 1_000)
        return after, passed.batch


def _opened(operator: Operator) -> Running:
    with _in_step(operator):
        return operator.open()


@contextmanager
def _in_step(operator: Operator) -> Iterator[None]:
    """What a step does outside its hand-overs: open its state, write it, run its timers."""
    WATCH.calls += 1
    WATCH.step = operator.name
    yield
    WATCH.step = None


class _Tags(NamedTuple):
    """The arrival times of the records of a batch, and their sum, which every step needs."""

    moments: pa.Array
    sum_us: int

    @classmethod
    def of(cls, moments: pa.Array) -> _Tags:
        return cls(moments, _sum(moments))

    def ages_us(self, now_us: int) -> int:
        """The sum of the ages of all records."""
        return now_us * len(self.moments) - self.sum_us

    def after(self, passed: Passed) -> _Tags:
        """The tag of every result: that of the record that it came from.

        A columnar step does not say which came from which: if it returned as many records as it
        got, they are assumed to be the same; else each gets the mean of the batch, which spans
        little time.
        """
        records, held = passed.batch.num_rows, len(self.moments)
        if passed.origins is not None:
            now_us = time.time_ns() // 1_000
            known = self.moments.to_pylist()
            moments = [now_us if i == BORN_NOW else known[i] for i in passed.origins]
            return _Tags(pa.array(moments, pa.int64()), sum(moments))
        if records == held:
            return self
        mean = self.sum_us // held if held else time.time_ns() // 1_000
        return _Tags(pa.array([mean] * records, type=self.moments.type), mean * records)


def _taken_off(
    batch: pa.RecordBatch, handed: Handed, entered_us: int
) -> tuple[_Tags | None, pa.RecordBatch]:
    """Split a batch into tags and bare records, and count how long they took to get here."""
    names = batch.schema.names
    tags = _Tags.of(batch.column(TAG)) if TAG in names else None
    read_us = _sum(batch.column(READ))
    handed.add(batch.num_rows, read_us, read_us if tags is None else tags.sum_us, entered_us)
    return tags, batch.select([name for name in names if name not in (TAG, READ)])


def _put_on(tags: _Tags | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if tags is None else batch.append_column(TAG, tags.moments)


def _sum(array: pa.Array) -> int:
    return int(array.to_numpy().sum())
