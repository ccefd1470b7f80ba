"""A chain: steps that run one after the other in one hand-over to Python.

This is the code that runs inside Python workers. It is kept light, because every worker imports
it: pyarrow, numpy and the standard library only. Between two steps records stay in Arrow, also
where both are row functions, so that each step sees the types that its predecessor declared and
the result is the same however the steps are chained.
"""

from __future__ import annotations

import json
import time
from collections import Counter, namedtuple
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa
from pyspark import TaskContext

from tailrace.profile.histogram import bin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.accumulators import Accumulator

FAILURE = "TAILRACE-STEP-FAILED "
"""Marks, in the text of a worker's exception, the facts about the record that a step failed on."""

SAMPLE_EVERY = 127
"""One record in so many is timed on its own, for the variance of the service time. Odd, so that
data with a short period does not always offer the same record."""

MOST_KEYS = 16
MOST_DEAD_LETTERS = 10_000
"""Dead letters travel to the driver with the measurements: more than so many in one task is not
an exception any more but a broken step, and fails the flow."""

Row = tuple[Any, ...]

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What building an Arrow array raises when a value is not of its type."""


class RecordFailed(Exception):  # noqa: N818 - it reads as the sentence it starts
    """A step failed on a record and wants the flow to fail."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: the user's function and what it declares.

    ``kind`` is ``row`` (a record in, a record out), ``flat`` (a record in, any number out) or
    ``batch`` (an Arrow batch in, an Arrow batch out).
    """

    name: str
    kind: str
    function: Callable[..., Any]
    schema: pa.Schema
    on_error: str
    keyed_by: tuple[str, ...] = ()


@dataclass(slots=True)
class Meter:
    """What one task saw of one step. Plain attributes: it is added to for every Arrow batch."""

    sample_every: int = SAMPLE_EVERY
    records_in: int = 0
    records_out: int = 0
    errors: int = 0
    busy_ns: int = 0
    sampled: int = 0
    sampled_sum_ms: float = 0.0
    sampled_square_ms: float = 0.0
    entered_ms: float = 0.0
    left_ms: float = 0.0
    residence: Counter[int] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    dead: list[tuple[str, str]] = field(default_factory=list)

    def passed(self, records: int, out: int, began_ns: int, ended_ns: int) -> None:
        """Count an Arrow batch that went through. Means of moments, in ms since the epoch."""
        self.records_in += records
        self.records_out += out
        self.busy_ns += ended_ns - began_ns
        share = records / self.records_in if self.records_in else 0.0
        self.entered_ms += (began_ns / 1e6 - self.entered_ms) * share
        self.left_ms += (ended_ns / 1e6 - self.left_ms) * share
        if records:
            self.residence[int(bin_of((ended_ns - began_ns) / 1e6))] += records

    def sample(self, took_ns: int) -> None:
        """Count the time of one record."""
        took_ms = took_ns / 1e6
        self.sampled += 1
        self.sampled_sum_ms += took_ms
        self.sampled_square_ms += took_ms * took_ms


Meters = dict[tuple[str, int], Meter]


class Chain:
    """Runs links over the Arrow batches of one task and reports what it measured at the end."""

    def __init__(self, links: tuple[Link, ...], meters: Accumulator[Meters] | None) -> None:
        """``meters`` is None when nothing but errors is to be measured."""
        self._links = links
        self._meters = meters

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps."""
        return tuple(link.name for link in self._links)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass every batch through every link."""
        sample_every = 0 if self._meters is None else SAMPLE_EVERY
        meters = [Meter(sample_every) for _ in self._links]
        for batch in batches:
            for link, meter in zip(self._links, meters, strict=True):
                batch = self._pass(link, batch, meter)  # noqa: PLW2901 - it is the same records
            yield batch
        if self._meters is not None:
            context = TaskContext.get()
            partition = context.partitionId() if context else 0
            self._meters.add({(n, partition): m for n, m in zip(self.names, meters, strict=True)})

    def _pass(self, link: Link, batch: pa.RecordBatch, meter: Meter) -> pa.RecordBatch:
        if self._meters is None:
            return _PASS[link.kind](link, batch, meter)
        began = time.time_ns()
        result = _PASS[link.kind](link, batch, meter)
        meter.passed(batch.num_rows, result.num_rows, began, time.time_ns())
        if link.keyed_by:
            _count_keys(link, batch, meter)
        return result


def _count_keys(link: Link, batch: pa.RecordBatch, meter: Meter) -> None:
    """Count the keys of a batch, keeping the most frequent ones."""
    column = batch.column(link.keyed_by[0]) if link.keyed_by[0] in batch.schema.names else None
    if column is None:
        return
    for entry in column.value_counts():
        meter.keys[str(entry["values"].as_py())] += entry["counts"].as_py()
    if len(meter.keys) > 4 * MOST_KEYS:
        meter.keys = Counter(dict(meter.keys.most_common(MOST_KEYS)))


def _pass_batch(link: Link, batch: pa.RecordBatch, meter: Meter) -> pa.RecordBatch:
    """Hand the batch to a columnar step; if it fails, find the record by handing them singly."""
    try:
        return _fitted(link, link.function(batch))
    except Exception as error:  # noqa: BLE001 - a user's step may raise anything
        if batch.num_rows == 1:
            _failed(link, meter, _first_row(batch), error)
            return _empty(link)
    parts = [_pass_batch(link, batch.slice(i, 1), meter) for i in range(batch.num_rows)]
    return _concatenated(link, parts)


def _fitted(link: Link, result: object) -> pa.RecordBatch:
    """The result of a columnar step in the declared columns, in order, cast where that is safe."""
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"it returned {type(result).__name__}, not a pyarrow.RecordBatch")
    names = link.schema.names
    if set(result.schema.names) != set(names):
        raise TypeError(f"it returned the columns {result.schema.names}, not {names}")
    return _without_forbidden_nulls(result.select(names).cast(link.schema))


def _without_forbidden_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch; a null where the schema promises none would be read as a value."""
    for kind, column in zip(batch.schema, batch.columns, strict=True):
        if not kind.nullable and column.null_count:
            raise TypeError(f"the column '{kind.name}' was declared without nulls and has one")
    return batch


def _pass_rows(link: Link, batch: pa.RecordBatch, meter: Meter) -> pa.RecordBatch:
    """Call a row function on each record; a record that fails is dropped, kept aside or fatal."""
    made = _Made([], [])
    rows = _rows(batch)
    if meter.sample_every:
        while sample := list(islice(rows, 1)):
            began = time.perf_counter_ns()
            _call(link, sample, made, meter)
            meter.sample(time.perf_counter_ns() - began)
            _call(link, islice(rows, meter.sample_every - 1), made, meter)
    else:
        _call(link, rows, made, meter)
    return _to_arrow(link, made.results, made.origins, meter)


class _Made(NamedTuple):
    """What a row step returned, and the record that each came of."""

    results: list[Any]
    origins: list[Row]


def _call(link: Link, rows: Iterable[Row], made: _Made, meter: Meter) -> None:
    """Call the step on every record. This is the innermost loop of all row steps."""
    function, flat = link.function, link.kind == "flat"
    results, origins = made
    for row in rows:
        try:
            if flat:
                produced = list(function(row))
                results.extend(produced)
                origins.extend([row] * len(produced))
            else:
                results.append(function(row))
                origins.append(row)
        except Exception as error:  # noqa: BLE001 - a user's step may raise anything
            _failed(link, meter, row, error)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The records of a batch as named tuples: light, readable by attribute, not to be changed."""
    columns = [column.to_pylist() for column in batch.columns]
    return map(_shape(tuple(batch.schema.names))._make, zip(*columns, strict=True))


@cache
def _shape(names: tuple[str, ...]) -> Any:
    """The type of the records of a schema; making it takes longer than a small batch."""
    return namedtuple("Row", names, rename=True)


def _to_arrow(link: Link, results: list[Any], origins: list[Row], meter: Meter) -> pa.RecordBatch:
    """What a row step returned, as an Arrow batch of its schema."""
    if not results:
        return _empty(link)
    try:
        return _assembled(link, results)
    except _MISFITS:
        return _assembled_by_record(link, results, origins, meter)


def _assembled_by_record(
    link: Link, results: list[Any], origins: list[Row], meter: Meter
) -> pa.RecordBatch:
    """The same record by record, to find those whose results do not fit: all go, or none."""
    parts = []
    for _, group in groupby(zip(origins, results, strict=True), key=lambda pair: id(pair[0])):
        pairs = list(group)
        fitting = []
        try:
            for _, result in pairs:
                fitting.append(_assembled(link, [result]))
        except _MISFITS as error:
            problem = TypeError(f"it returned {result!r}, which does not fit ({error})")
            _failed(link, meter, pairs[0][0], problem)
        else:
            parts += fitting
    return _concatenated(link, parts)


def _assembled(link: Link, results: list[Any]) -> pa.RecordBatch:
    schema = link.schema
    arrays = [
        _array(list(column), kind.type)
        for column, kind in zip(_columns(schema, results), schema, strict=True)
    ]
    return _without_forbidden_nulls(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _columns(schema: pa.Schema, results: list[Any]) -> Iterable[Iterable[Any]]:
    """Results turned from records into columns; all of them have the shape of the first."""
    names, alone = schema.names, len(schema) == 1
    nested = alone and pa.types.is_nested(schema.field(0).type)
    if any(result is None for result in results):
        raise TypeError("expected a record; to leave one out, use flat_step")
    if all(isinstance(result, dict) and result.keys() == set(names) for result in results):
        return [[result[name] for result in results] for name in names]
    if not nested and all(isinstance(result, tuple | list) for result in results):
        if any(len(result) != len(names) for result in results):
            raise TypeError(f"expected {len(names)} values")
        return zip(*results, strict=True)
    if alone:
        return [results]
    if all(isinstance(result, dict) for result in results):
        raise TypeError(f"expected the fields {names}")
    raise TypeError(f"expected a tuple or a dict with {names}")


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values as an Arrow array. Whole numbers are checked: Arrow would cut off fractions."""
    if pa.types.is_integer(kind):
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
    return next(_rows(batch))


def _failed(link: Link, meter: Meter, row: Row, error: Exception) -> None:
    """Deal with a record that a step could not process, as the step asked."""
    meter.errors += 1
    problem = f"{type(error).__name__}: {error}"
    if link.on_error == "fail":
        _give_up(link, row, problem)
    if link.on_error == "dead-letter":
        if len(meter.dead) >= MOST_DEAD_LETTERS:
            _give_up(
                link,
                row,
                f"more than {MOST_DEAD_LETTERS} dead letters in one task; last: {problem}",
            )
        meter.dead.append((_shown(row), problem))


def _give_up(link: Link, row: Row, problem: str) -> NoReturn:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    facts = {"step": link.name, "batch": batch, "record": _shown(row)[:500], "error": problem[:500]}
    raise RecordFailed(FAILURE + json.dumps(facts))


def _shown(row: Row) -> str:
    return json.dumps(row._asdict(), default=str)  # type: ignore[attr-defined]


_PASS: dict[str, Callable[[Link, pa.RecordBatch, Meter], pa.RecordBatch]] = {
    "row": _pass_rows,
    "flat": _pass_rows,
    "batch": _pass_batch,
}
