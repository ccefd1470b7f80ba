"""The operators of a chain: one class for each kind of step, and how it processes an Arrow batch.

This runs inside Python workers. It is kept light, because every worker imports it: pyarrow and
the standard library only.
"""

from __future__ import annotations

import json
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol

import pyarrow as pa
from pyspark import TaskContext

from tailrace.spark.worker import records
from tailrace.spark.worker.records import MISFITS, assembled, empty, rows_of
from tailrace.spark.worker.watch import WATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.spark.worker.meter import Meter
    from tailrace.spark.worker.records import Row

FAILURE = "TAILRACE-STEP-FAILED "
"""Marks, in the text of a worker's exception, the facts about the record that a step failed on."""

MOST_DEAD_LETTERS = 10_000
"""Dead letters are kept until their task ends. More than this many in one task mean that the step
is broken, and fail the flow."""


class RecordFailed(Exception):  # noqa: N818 - it reads as the sentence it starts
    """A step failed on a record and wants the flow to fail."""


class Passed(NamedTuple):
    """What an operator made of a batch, and the position of the record that each result came from.

    Without ``origins``, results match records one to one, or it is not known which came from
    which.
    """

    batch: pa.RecordBatch
    origins: Sequence[int] | None = None


class Running(Protocol):
    """An operator at work in one task."""

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Process a batch."""

    def finish(self, meter: Meter) -> Passed | None:
        """End the task; returns what is left to pass on, None if it never holds anything."""


@dataclass(frozen=True, slots=True)
class Operator(ABC):
    """One step of a chain: the user's function and what it declares.

    ``promised`` are the columns that have no nulls. With ``redact``, an error that fails the flow
    contains nothing that may be part of a record.
    """

    kind: ClassVar[str]
    """The kind's name in checkpoints."""

    name: str
    function: Callable[..., Any]
    schema: pa.Schema
    on_error: str
    keyed_by: tuple[str, ...] = ()
    redact: bool = False
    promised: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Note which columns must not have nulls."""
        promised = tuple(kind.name for kind in self.schema if not kind.nullable)
        object.__setattr__(self, "promised", promised)

    def open(self) -> Running:
        """Start a task; an operator without state runs as it is."""
        return self

    @abstractmethod
    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Process a batch."""

    def finish(self, meter: Meter) -> Passed | None:  # noqa: ARG002 - for those that hold something
        """Return nothing: an operator without state holds nothing."""
        return None


@dataclass(frozen=True, slots=True)
class BatchOperator(Operator):
    """An Arrow batch in, an Arrow batch out."""

    kind = "batch"

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Pass the batch to the function."""
        return Passed(self._run(batch, meter))

    def _run(self, batch: pa.RecordBatch, meter: Meter) -> pa.RecordBatch:
        """The same; if it fails, find the record by passing them one by one."""
        try:
            return self._fitted(self.function(batch))
        except Exception as error:  # noqa: BLE001 - a user's step may raise anything
            if batch.num_rows == 1:
                failed(self, meter, next(rows_of(batch)), error)
                return empty(self.schema)
        parts = [self._run(batch.slice(i, 1), meter) for i in range(batch.num_rows)]
        return pa.concat_batches([empty(self.schema), *parts])

    def _fitted(self, result: object) -> pa.RecordBatch:
        """The result with the declared columns in order, cast if that is safe."""
        if not isinstance(result, pa.RecordBatch):
            raise TypeError(f"it returned {type(result).__name__}, not a pyarrow.RecordBatch")
        if not result.schema.equals(self.schema):
            names = self.schema.names
            if set(result.schema.names) != set(names):
                raise TypeError(f"it returned the columns {result.schema.names}, not {names}")
            result = result.select(names).cast(self.schema)
        return _without_forbidden_nulls(self, result)


class _Made(NamedTuple):
    """What a row function returned, and the position of the record that each result came from."""

    results: list[Any]
    origins: list[int]


@dataclass(frozen=True, slots=True)
class RowOperator(Operator):
    """A record in, a record out."""

    kind = "row"

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Call the function on each record; one that fails is dropped, kept aside or fatal."""
        passed = _run_rows(self, self._call, batch, meter)
        return Passed(passed.batch) if passed.batch.num_rows == batch.num_rows else passed

    def _call(self, rows: list[Row], positions: range, made: _Made, meter: Meter) -> None:
        """Call it on some of the records. This is the innermost loop of row steps."""
        function, (results, origins) = self.function, made
        WATCH.left = going = iter(positions)  # it knows how many are left, at no cost
        for position in going:
            row = rows[position]
            try:
                results.append(function(row))
                origins.append(position)
            except Exception as error:  # noqa: BLE001 - a user's step may raise anything
                failed(self, meter, row, error)


@dataclass(frozen=True, slots=True)
class FlatOperator(Operator):
    """A record in, any number out."""

    kind = "flat"

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Call the function on each record; one that fails is dropped, kept aside or fatal."""
        return _run_rows(self, self._call, batch, meter)

    def _call(self, rows: list[Row], positions: range, made: _Made, meter: Meter) -> None:
        """Call it on some of the records."""
        function, (results, origins) = self.function, made
        WATCH.left = going = iter(positions)
        for position in going:
            row = rows[position]
            try:
                produced = list(function(row))
                results.extend(produced)
                origins.extend([position] * len(produced))
            except Exception as error:  # noqa: BLE001 - a user's step may raise anything
                failed(self, meter, row, error)


def _run_rows(
    operator: Operator,
    call: Callable[[list[Row], range, _Made, Meter], None],
    batch: pa.RecordBatch,
    meter: Meter,
) -> Passed:
    """Call a row function on the records of a batch, and time a sample of them."""
    rows = list(rows_of(batch))
    made = _Made([], [])
    every = meter.sample_every or len(rows) or 1
    for first in range(0, len(rows), every):
        alone = first + 1 if meter.sample_every else first
        began = time.perf_counter_ns()
        call(rows, range(first, alone), made, meter)
        if meter.sample_every:
            meter.sample(time.perf_counter_ns() - began)
        call(rows, range(alone, min(first + every, len(rows))), made, meter)
    return to_arrow(operator, rows, made.results, made.origins, meter)


def to_arrow(
    operator: Operator,
    rows: Sequence[Row | dict[str, Any]],
    results: list[Any],
    origins: list[int],
    meter: Meter,
) -> Passed:
    """What a row function returned, as an Arrow batch, and what each record came from."""
    if not results:
        return Passed(empty(operator.schema), [])
    try:
        return Passed(_assembled(operator, results), origins)
    except MISFITS:
        return _assembled_by_record(operator, rows, results, origins, meter)


def _assembled_by_record(
    operator: Operator,
    rows: Sequence[Row | dict[str, Any]],
    results: list[Any],
    origins: list[int],
    meter: Meter,
) -> Passed:
    """The same record by record, to find results that do not fit and drop all of that record."""
    parts: list[pa.RecordBatch] = []
    kept: list[int] = []
    for origin, group in groupby(zip(origins, results, strict=True), key=itemgetter(0)):
        fitting = []
        try:
            for _, result in group:
                fitting.append(_assembled(operator, [result]))
        except MISFITS as error:
            problem = TypeError(f"it returned {result!r}, which does not fit ({error})")
            failed(operator, meter, rows[origin], problem)
        else:
            parts += fitting
            kept += [origin] * len(fitting)
    return Passed(pa.concat_batches([empty(operator.schema), *parts]), kept)


def _assembled(operator: Operator, results: list[Any]) -> pa.RecordBatch:
    return _without_forbidden_nulls(operator, assembled(operator.schema, results))


def _without_forbidden_nulls(operator: Operator, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Refuse nulls where the schema promises none: they would be read as values."""
    for name in operator.promised:
        if batch.column(name).null_count:
            raise TypeError(f"the column '{name}' was declared without nulls and has one")
    return batch


# --- records that fail ----------------------------------------------------------------------------


def failed(operator: Operator, meter: Meter, row: Row | dict[str, Any], error: Exception) -> None:
    """Handle a record that a step could not process, as the step asked."""
    meter.errors += 1
    problem = f"{type(error).__name__}: {error}"
    if operator.on_error == "fail":
        _give_up(operator, row, _place(error) if operator.redact else problem)
    if operator.on_error == "dead-letter":
        if len(meter.dead) >= MOST_DEAD_LETTERS:
            last = _place(error) if operator.redact else problem
            _give_up(
                operator,
                row,
                f"more than {MOST_DEAD_LETTERS} dead letters in one task; last: {last}",
            )
        meter.dead.append((_shown(row), problem))


def _give_up(operator: Operator, row: Row | dict[str, Any], problem: str) -> NoReturn:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    facts = {"step": operator.name, "batch": batch, "error": problem[:500]}
    if operator.redact:
        # The step's own exception would appear in the traceback, and it may quote the record.
        raise RecordFailed(FAILURE + json.dumps(facts)) from None
    raise RecordFailed(FAILURE + json.dumps(facts | {"record": _shown(row)[:500]}))


def _place(error: Exception) -> str:
    """The class of an error and the line that raised it, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename in (__file__, records.__file__):
        return f"{type(error).__name__}: its result does not fit the schema"
    last = frames[-1]
    file = last.filename.rpartition("/")[2]
    return f"{type(error).__name__} in {last.name}, line {last.lineno} of {file}"


def _shown(row: Row | dict[str, Any]) -> str:
    fields = row if isinstance(row, dict) else row._asdict()  # type: ignore[attr-defined]
    return json.dumps(fields, default=str)
