"""Converts records between Arrow and the form that row functions see.

This runs inside Python workers. It is kept light, because every worker imports it: pyarrow and
the standard library only.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row = tuple[Any, ...]

MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What building an Arrow array raises when a value is not of its type."""


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The records of a batch as named tuples: light, readable by attribute, immutable."""
    columns = [_values(column) for column in batch.columns]
    return map(_shape(tuple(batch.schema.names))._make, zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """The values of a column as Python objects: ``to_pylist``, but fast for timestamps.

    Arrow asks the time zone about each of them, which takes some microseconds; if the zone is UTC,
    adding to the epoch of that zone gives the same.
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
    """The epoch of a timestamp type, in the time zone object that Arrow makes for it."""
    return pa.scalar(0, kind).as_py()


@cache
def _shape(names: tuple[str, ...]) -> Any:
    """The type of the records of a schema; creating it takes longer than a small batch."""
    return namedtuple("Row", names, rename=True)


def assembled(schema: pa.Schema, results: list[Any]) -> pa.RecordBatch:
    """What a row function returned, as an Arrow batch of its schema.

    Raises:
        MISFITS: If a result does not fit the schema.
    """
    arrays = [
        _array(list(column), kind.type)
        for column, kind in zip(_columns(schema, results), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(schema: pa.Schema, results: list[Any]) -> Iterable[Iterable[Any]]:
    """Results turned from records into columns; all of them must have the same shape."""
    names, alone = schema.names, len(schema) == 1
    nested = alone and pa.types.is_nested(schema.field(0).type)
    shapes = set(map(type, results))  # only a few, however many results
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


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without records."""
    arrays = [pa.array([], type=kind.type) for kind in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
