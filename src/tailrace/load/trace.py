"""A load, record by record: when each is due, its key, and its payload or payload size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import LoadError
from tailrace.load import columns, layout
from tailrace.load.texts import Texts

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A load as a table, sorted by due time; the replay source replays it record by record.

    Attributes:
        due_us: When each record is due, in microseconds since the start of the replay.
        key: The index of each record's key in `key_names`.
        size: The size of each payload in bytes.
        key_names: The keys.
        payloads: The payloads, or None to replay filler of the given sizes.
    """

    due_us: NDArray[np.int64]
    key: NDArray[np.int32]
    size: NDArray[np.int32]
    key_names: tuple[str, ...]
    payloads: Texts | None = None

    def __post_init__(self) -> None:
        """Check that the table can be replayed."""
        if self.payloads is not None and not len(self.payloads.blob):
            object.__setattr__(self, "payloads", None)  # empty payloads are filler of size 0
        for problem in self._problems():
            raise LoadError(f"The trace cannot be replayed: {problem}.")

    def _problems(self) -> Iterator[str]:
        """What is wrong with the table; each check relies on those before it."""
        kinds = ((self.due_us, np.int64), (self.key, np.int32), (self.size, np.int32))
        if any(column.dtype != kind or column.ndim != 1 for column, kind in kinds):
            yield "its columns must be flat arrays of int64, int32 and int32"
        if len({len(column) for column, _ in kinds}) != 1:
            yield "its columns must have one entry for each record"
        if not len(self) or not self.key_names:
            yield "it must have at least one record and one key"
        if self.due_us[0] < 0:
            yield "its due times must not be negative"
        if bool(np.any(self.due_us[1:] < self.due_us[:-1])):
            yield "its due times must be sorted"
        if self.key.min() < 0 or self.key.max() >= len(self.key_names):
            yield f"its key indices must be from 0 to {len(self.key_names) - 1}"
        if self.size.min() < 0:
            yield "its sizes must not be negative"
        if self.payloads is not None and not np.array_equal(self.payloads.sizes(), self.size):
            yield "its sizes must be those of its payloads"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Map a trace file into memory; it is checked here, and later read only where it is used.

        Raises:
            LoadError: If the file cannot be read, is not a trace file, or is damaged.
        """
        try:
            return cls._of(layout.read(Path(path)))
        except LoadError as error:
            if str(path) in str(error):
                raise
            raise LoadError(f"{path}: {error}") from None

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        time: str = "time",
        key: str = "key",
        payload: str | None = None,
        unit: columns.TimeUnit = "s",
    ) -> Trace:
        """Turn a log in a CSV file with a header into a trace whose first record is due at 0.

        Records are sorted by time; those with the same time keep their order.

        Args:
            path: The file; a name that ends in .gz or .bz2 is decompressed.
            time: The column of the times.
            key: The column of the keys.
            payload: The column of the payloads; None for records without one.
            unit: What the times are: numbers of "s", "ms" or "us", or "iso" dates and times.

        Raises:
            LoadError: If the file cannot be read, lacks a column or has an invalid time.
        """
        return cls._of(columns.read(Path(path), time, key, payload, unit))

    @classmethod
    def _of(cls, sections: layout.Sections) -> Trace:
        return cls(
            sections.due_us,
            sections.key,
            sections.size,
            tuple(sections.keys.arrow().to_pylist()),
            sections.payloads,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace file; a reader sees either all of it or the previous file.

        Raises:
            LoadError: If the file cannot be written.
        """
        keys = Texts.of(self.key_names)
        layout.write(
            Path(path), layout.Sections(self.due_us, self.key, self.size, keys, self.payloads)
        )

    def speed(self, factor: float) -> Trace:
        """The same records, due `factor` times as fast.

        Raises:
            LoadError: If the factor is not a number above zero, or so small that times overflow.
        """
        if not 0 < factor < math.inf:
            raise LoadError(f"A trace cannot be replayed {factor!r} times as fast: use 2 or 0.5.")
        if float(self.due_us[-1]) / factor >= 2.0**63:
            raise LoadError(f"A trace replayed {factor!r} times as fast never ends: use more.")
        return replace(self, due_us=(self.due_us / factor).astype(np.int64))

    @property
    def duration_s(self) -> float:
        """The time from the start of the replay to the last record."""
        return float(self.due_us[-1]) / 1e6

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.due_us)

    def __eq__(self, other: object) -> bool:
        """Whether both replay the same."""
        if not isinstance(other, Trace):
            return NotImplemented
        return (
            self.key_names == other.key_names
            and np.array_equal(self.due_us, other.due_us)
            and np.array_equal(self.key, other.key)
            and np.array_equal(self.size, other.size)
            and self.payloads == other.payloads
        )

    __hash__ = None  # type: ignore[assignment]  # it holds arrays, which have no hash
