"""A link of a chain: one step, and how it makes an Arrow batch of an Arrow batch.

This runs inside Python workers. It is kept light, because every worker imports it: pyarrow and
the standard library only.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import namedtuple
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa
from pyspark import TaskContext

from tailrace.spark.watch import WATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tailrace.spark.keyed import Memory
    from tailrace.spark.meter import Meter

FAILURE = "TAILRACE-STEP-FAILED "
"""Marks, in the text of a worker's exception, the facts about the record that a step failed on."""

MOST_DEAD_LETTERS = 10_000
"""Dead letters are kept until their task ends: more than so many in one is not an exception any
more but a broken step, and fails the flow."""

Row = tuple[Any, ...]

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What building an Arrow array raises when a value is not of its type."""


class RecordFailed(Exception):  # noqa: N818 - it reads as the sentence it starts
    """A step failed on a record and wants the flow to fail."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: the user's function and what it declares.

    ``kind`` is ``row`` (a record in, a record out), ``flat`` (a record in, any number out),
    ``batch`` (an Arrow batch in, an Arrow batch out) or ``keyed``, which has a ``memory``.
    ``promised`` are the columns that have no nulls. With ``redact``, an error that fails the flow
    says nothing that may be a part of a record.
    """

    name: str
    kind: str
    function: Callable[..., Any]
    schema: pa.Schema
    on_error: str
    keyed_by: tuple[str, ...] = ()
    memory: Memory | None = None
    redact: bool = False
    promised: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Note what is asked of every batch."""
        promised = tuple(kind.name for kind in self.schema if not kind.nullable)
        object.__setattr__(self, "promised", promised)


class Passed(NamedTuple):
    """What a link made of a batch, and the position of the record that each result came of.

    Without ``origins``, results and records go one by one, or it is not known which came of which.
    """

    batch: pa.RecordBatch
    origins: Sequence[int] | None = None


def pass_through(link: Link, batch: pa.RecordBatch, meter: Meter) -> Passed:
    """Let a batch pass through a link."""
    if link.kind == "batch":
        return Passed(_pass_batch(link, batch, meter))
    return _pass_rows(link, batch, meter)


def _pass_batch(link: Link, batch: pa.RecordBatch, meter: Meter) -> pa.RecordBatch:
    """Hand the batch to a columnar step; if it fails, find the record by handing them singly."""
    try:
        return _fitted(link, link.function(batch))
    except Exception as error:  # noqa: BLE001 - a user's step may raise anything
        if batch.num_rows == 1:
            failed(link, meter, _first_row(batch), error)
            return _empty(link)
    parts = [_pass_batch(link, batch.slice(i, 1), meter) for i in range(batch.num_rows)]
    return _concatenated(link, parts)


def _fitted(link: Link, result: object) -> pa.RecordBatch:
    """The result of a columnar step in the declared columns, in order, cast where that is safe."""
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"it returned {type(result).__name__}, not a pyarrow.RecordBatch")
    if not result.schema.equals(link.schema):
        names = link.schema.names
        if set(result.schema.names) != set(names):
            raise TypeError(f"it returned the columns {result.schema.names}, not {names}")
        result = result.select(names).cast(link.schema)
    return _without_forbidden_nulls(link, result)


def _without_forbidden_nulls(link: Link, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch; a null where the schema promises none would be read as a value."""
    for name in link.promised:
        if batch.column(name).null_count:
            raise TypeError(f"the column '{name}' was declared without nulls and has one")
    return batch


def _pass_rows(link: Link, batch: pa.RecordBatch, meter: Meter) -> Passed:
    """Call a row function on each record; a record that fails is dropped, kept aside or fatal."""
    rows = list(rows_of(batch))
    made = _Made([], [])
    every = meter.sample_every or len(rows) or 1
    for first in range(0, len(rows), every):
        alone = first + 1 if meter.sample_every else first
        began = time.perf_counter_ns()
        _call(link, rows, range(first, alone), made, meter)
        if meter.sample_every:
            meter.sample(time.perf_counter_ns() - began)
        _call(link, rows, range(alone, min(first + every, len(rows))), made, meter)
    passed = to_arrow(link, rows, made.results, made.origins, meter)
    one_by_one = link.kind == "row" and passed.batch.num_rows == len(rows)
    return Passed(passed.batch) if one_by_one else passed


class _Made(NamedTuple):
    """What a row step returned, and the position of the record that each came of."""

    results: list[Any]
    origins: list[int]


def _call(link: Link, rows: list[Row], positions: range, made: _Made, meter: Meter) -> None:
    """Call the step on some of the records. This is the innermost loop of all row steps."""
    function, flat = link.function, link.kind == "flat"
    results, origins = made
    WATCH.left = going = iter(positions)  # it tells how many are left, and costs nothing to ask
    for position in going:
        row = rows[position]
        try:
            if flat:
                produced = list(function(row))
                results.extend(produced)
                origins.extend([position] * len(produced))
            else:
                results.append(function(row))
                origins.append(position)
        except Exception as error:  # noqa: BLE001 - a user's step may raise anything
            failed(link, meter, row, error)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The records of a batch as named tuples: light, readable by attribute, not to be changed."""
    columns = [_values(column) for column in batch.columns]
    return map(_shape(tuple(batch.schema.names))._make, zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them: ``to_pylist``, but quick for moments.

    Arrow asks the time zone about each of them, for some microseconds; from the epoch of that zone
    on it is an addition, as long as the zone is UTC.
    """
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz != "UTC" or kind.unit != "us" or not len(column):
        values: list[Any] = column.to_pylist()
        return values
    epoch = _epoch(kind)
    since = column.view(pa.duration("us")).to_numpy(zero_copy_only=False).tolist()
    if column.null_count:
        return [None if passed is None else epoch + passed for passed in since]
    return list(map(epoch.__add__, since))


@cache
def _epoch(kind: pa.DataType) -> Any:
    """When the moments of a type begin, in the time zone object that Arrow makes for it."""
    return pa.scalar(0, kind).as_py()


@cache
def _shape(names: tuple[str, ...]) -> Any:
    """The type of the records of a schema; making it takes longer than a small batch."""
    return namedtuple("Row", names, rename=True)


def to_arrow(
    link: Link,
    rows: Sequence[Row | dict[str, Any]],
    results: list[Any],
    origins: list[int],
    meter: Meter,
) -> Passed:
    """What a row step returned, as an Arrow batch of its schema, and what each record came of."""
    if not results:
        return Passed(_empty(link), [])
    try:
        return Passed(_assembled(link, results), origins)
    except _MISFITS:
        return _assembled_by_record(link, rows, results, origins, meter)


def _assembled_by_record(
    link: Link,
    rows: Sequence[Row | dict[str, Any]],
    results: list[Any],
    origins: list[int],
    meter: Meter,
) -> Passed:
    """The same record by record, to find those whose results do not fit: all go, or none."""
    parts: list[pa.RecordBatch] = []
    kept: list[int] = []
    for origin, group in groupby(zip(origins, results, strict=True), key=itemgetter(0)):
        fitting = []
        try:
            for _, result in group:
                fitting.append(_assembled(link, [result]))
        except _MISFITS as error:
            problem = TypeError(f"it returned {result!r}, which does not fit ({error})")
            failed(link, meter, rows[origin], problem)
        else:
            parts += fitting
            kept += [origin] * len(fitting)
    return Passed(_concatenated(link, parts), kept)


def _assembled(link: Link, results: list[Any]) -> pa.RecordBatch:
    schema = link.schema
    arrays = [
        _array(list(column), kind.type)
        for column, kind in zip(_columns(schema, results), schema, strict=True)
    ]
    return _without_forbidden_nulls(link, pa.RecordBatch.from_arrays(arrays, schema=schema))


def _columns(schema: pa.Schema, results: list[Any]) -> Iterable[Iterable[Any]]:
    """Results turned from records into columns; all of them have the shape of the first."""
    names, alone = schema.names, len(schema) == 1
    nested = alone and pa.types.is_nested(schema.field(0).type)
    shapes = set(map(type, results))  # a few, whatever the number of results
    if NoneType in shapes:
        raise TypeError("expected a record; to leave one out, use flat_step")
    if not nested and all(issubclass(shape, tuple | list) for shape in shapes):
        if set(map(len, results)) != {len(names)}:
            raise TypeError(f"expected {len(names)} values")
        return zip(*results, strict=True)
    dicts = all(issubclass(shape, dict) for shape in shapes)
    if dicts and all(result.keys() == set(names) for result in results):
        return [[result[name] for result in results] for name in names]
    if alone:
        return [results]
    if dicts:
        raise TypeError(f"expected the fields {names}")
    raise TypeError(f"expected a tuple or a dict with {names}")


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values as an Arrow array. Whole numbers are checked: Arrow would cut off fractions."""
    if pa.types.is_integer(kind) and not set(map(type, values)) <= {int, NoneType}:
        inferred = pa.array(values)
        if pa.types.is_floating(inferred.type):
            return inferred.cast(kind)
    return pa.array(values, type=kind)


def _empty(link: Link) -> pa.RecordBatch:
    arrays = [pa.array([], type=kind.type) for kind in link.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=link.schema)


def _concatenated(link: Link, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches([_empty(link), *parts])


def _first_row(batch: pa.RecordBatch) -> Row:
    return next(rows_of(batch))


def failed(link: Link, meter: Meter, row: Row | dict[str, Any], error: Exception) -> None:
    """Deal with a record that a step could not process, as the step asked."""
    meter.errors += 1
    problem = f"{type(error).__name__}: {error}"
    if link.on_error == "fail":
        _give_up(link, row, _place(error) if link.redact else problem)
    if link.on_error == "dead-letter":
        if len(meter.dead) >= MOST_DEAD_LETTERS:
            last = _place(error) if link.redact else problem
            _give_up(
                link, row, f"more than {MOST_DEAD_LETTERS} dead letters in one task; last: {last}"
            )
        meter.dead.append((_shown(row), problem))


def _give_up(link: Link, row: Row | dict[str, Any], problem: str) -> NoReturn:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    facts = {"step": link.name, "batch": batch, "error": problem[:500]}
    if link.redact:
        # The step's own exception would come along in the traceback, and it may quote the record.
        raise RecordFailed(FAILURE + json.dumps(facts)) from None
    raise RecordFailed(FAILURE + json.dumps(facts | {"record": _shown(row)[:500]}))


def _place(error: Exception) -> str:
    """The class of an error and the line that raised it, without what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename == __file__:
        return f"{type(error).__name__}: its result does not fit the schema"
    last = frames[-1]
    file = last.filename.rpartition("/")[2]
    return f"{type(error).__name__} in {last.name}, line {last.lineno} of {file}"


def _shown(row: Row | dict[str, Any]) -> str:
    fields = row if isinstance(row, dict) else row._asdict()  # type: ignore[attr-defined]
    return json.dumps(fields, default=str)
