"""Many texts in two arrays, so that a trace with millions of payloads is a few blocks of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts in one UTF-8 blob: text i is blob[start[i]:start[i + 1]]."""

    start: NDArray[np.int64]
    blob: NDArray[np.uint8]

    @classmethod
    def of(cls, texts: Sequence[str] | pa.Array) -> Texts:
        """Pack texts, or an Arrow array of strings.

        Raises:
            LoadError: If one of them is missing or is not a text.
        """
        try:
            array = (
                texts.cast(pa.large_string())
                if isinstance(texts, pa.Array)
                else pa.array(texts, pa.large_string())
            )
        except (pa.ArrowException, TypeError, UnicodeError) as error:
            raise LoadError(f"A text cannot be stored as UTF-8: {error}.") from None
        if array.null_count:
            raise LoadError("A text is missing: give every record one, even if it is empty.")
        count = len(array)
        _, offsets, data = array.buffers()
        if count == 0:
            return cls(np.zeros(1, np.int64), np.zeros(0, np.uint8))
        window = np.frombuffer(offsets, np.int64, count + 1, array.offset * 8)
        blob = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return cls(window - window[0], blob[window[0] : window[-1]])

    def check(self, what: str) -> None:
        """Check that the offsets fit the blob and that every text is UTF-8.

        Raises:
            LoadError: If not; the message starts with `what`.
        """
        start, blob = self.start, self.blob
        if start[0] != 0 or start[-1] != len(blob) or bool(np.any(start[1:] < start[:-1])):
            raise LoadError(f"{what} has text offsets that do not fit its texts: make it again.")
        try:
            self.arrow().validate(full=True)
        except pa.ArrowException:
            raise LoadError(f"{what} has a text that is not UTF-8: make it again.") from None

    def arrow(self) -> pa.LargeStringArray:
        """The texts as an Arrow array over the same memory."""
        return pa.LargeStringArray.from_buffers(
            len(self), pa.py_buffer(self.start), pa.py_buffer(self.blob)
        )

    def sizes(self) -> NDArray[np.int64]:
        """The length of each text in bytes."""
        return np.diff(self.start)

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.start) - 1

    def __getitem__(self, index: int) -> str:
        """One text."""
        at = range(len(self))[index]
        return self.blob[self.start[at] : self.start[at + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """The texts, one after the other."""
        return iter(self.arrow().to_pylist())

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same texts in the same order."""
        if not isinstance(other, Texts):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.blob, other.blob)

    __hash__ = None  # type: ignore[assignment]  # it holds arrays, which have no hash
