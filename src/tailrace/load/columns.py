"""A log in a CSV file, read as the columns of a load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tailrace.errors import LoadError
from tailrace.load.layout import Sections
from tailrace.load.texts import Texts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TimeUnit = Literal["s", "ms", "us", "iso"]
_US: Final = {"s": 1e6, "ms": 1e3, "us": 1.0}


def read(path: Path, time: str, key: str, payload: str | None, unit: TimeUnit) -> Sections:
    """Read a CSV file with a header into the columns of a trace, sorted by time.

    Records with the same time keep their order. The first record is due at 0.

    Raises:
        LoadError: If the file cannot be read, lacks a column or has an invalid time.
    """
    if unit not in (*_US, "iso"):
        raise LoadError(f'{unit!r} is not a unit of time: use "s", "ms", "us" or "iso".')
    wanted = list(dict.fromkeys([time, key] if payload is None else [time, key, payload]))
    table = _table(path, wanted)
    if not table.num_rows:
        raise LoadError(f"The file {path} has no records: it needs at least one below its header.")
    due = _due_us(table[time].combine_chunks(), unit, f"column {time!r} of {path}")
    order = np.argsort(due, kind="stable")
    encoded = pc.dictionary_encode(table[key].combine_chunks())
    texts = None if payload is None else Texts.of(table[payload].combine_chunks().take(order))
    size = np.zeros(len(due), np.int64) if texts is None else texts.sizes()
    return Sections(
        due_us=due[order],
        key=encoded.indices.to_numpy().astype(np.int32)[order],
        size=size.astype(np.int32),
        keys=Texts.of(encoded.dictionary),
        payloads=texts,
    )


def _table(path: Path, wanted: list[str]) -> pa.Table:
    """Read the wanted columns as texts."""
    lines = csv.ParseOptions(newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=lines) as header:
            names = header.schema.names
        for name in wanted:
            if names.count(name) != 1:
                raise LoadError(
                    f"The file {path} must have one column {name!r}; "
                    f"its columns are {', '.join(map(repr, names))}."
                )
        return csv.read_csv(
            path,
            parse_options=lines,
            convert_options=csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pa.large_string())
            ),
        )
    except OSError as error:
        reason = error.strerror or str(error).rstrip(".")
        raise LoadError(f"The file {path} cannot be read: {reason}.") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:  # a column name may not be valid text
        reason = str(error).splitlines()[0].rstrip(".")
        raise LoadError(f"The file {path} cannot be read as CSV with a header: {reason}.") from None


def _due_us(texts: pa.Array, unit: TimeUnit, where: str) -> NDArray[np.int64]:
    """The times as microseconds after the earliest."""
    if unit == "iso":
        moments: NDArray[np.int64] = _iso(texts, where).cast(pa.int64()).to_numpy() // 1000
        return moments - int(moments.min())
    times: NDArray[np.float64]
    try:
        times = pc.cast(pc.utf8_trim_whitespace(texts), pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        times = np.fromiter((_number(text) for text in texts.to_pylist()), np.float64, len(texts))
    if not bool(np.all(np.isfinite(times))):
        at = int(np.argmin(np.isfinite(times)))
        raise LoadError(
            f"Record {at + 1} in {where} has the time {texts[at].as_py()!r}, which is not a "
            f'number: correct it, or say which unit the times are in ("iso" for dates).'
        )
    with np.errstate(over="ignore"):  # infinity is refused below
        due = np.rint((times - float(times.min())) * _US[unit])
    if float(due.max()) >= 2.0**63:
        raise LoadError(f"The times in {where} are too far apart: check their unit.")
    return due.astype(np.int64)


def _iso(texts: pa.Array, where: str) -> pa.Array:
    """Dates and times, either all with a zone or all without one (then read as UTC)."""
    for kind in (pa.timestamp("ns", "UTC"), pa.timestamp("ns")):
        try:
            return pc.cast(pc.utf8_trim_whitespace(texts), kind)
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0].rstrip(".")
    raise LoadError(
        f"Not all times in {where} are dates and times of one form, "
        f"such as 2014-08-01T12:00:00.5Z ({reason}): correct them."
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
