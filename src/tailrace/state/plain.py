"""What state may hold: plain Python data, written and read back exactly.

Plain data is None, numbers, texts, bytes, the standard containers, dates and times, decimals and
UUIDs, in any nesting. It is written by pickle, which does this at the speed of C, but neither
side is pickle at large: the writer refuses everything else, so that a mistake is found where it
is made and not after the next crash; the reader calls nothing that is not in one short table, so
that a file which somebody tampered with cannot run code.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import UUID

if TYPE_CHECKING:
    from mmap import mmap

_PROTOCOL = 5

_MADE_BY_CALL: frozenset[type] = frozenset(
    (
        *(complex, datetime, date, time, timedelta, timezone, Decimal, UUID),
        *(Counter, OrderedDict, deque, defaultdict),
    )
)
"""Types that pickle restores by calling them; all other plain types it knows by itself."""

_FACTORIES: frozenset[type] = frozenset(
    (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
)
"""What a defaultdict may make its values with, beside the types above."""

_NAMED = _MADE_BY_CALL | _FACTORIES
_ADMITTED = {(kind.__module__, kind.__qualname__): kind for kind in _NAMED}

_UNREADABLE = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError),
    *(TypeError, ValueError, ArithmeticError, RecursionError, MemoryError),
)
"""What pickle raises on bytes that are not a pickle."""


class NotPlain(ValueError):  # noqa: N818 - it names what a value is
    """A value that is not plain data, or bytes that do not hold any."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Let pass what is in the table. Pickle asks only for what it does not know by itself.

        Classes pass if they are in the table, as they are how instances and factories are named.
        """
        kind = type(value)
        if kind in _MADE_BY_CALL or (kind is type and value in _NAMED):
            return NotImplemented
        if isinstance(value, type):
            raise NotPlain(f"the class {value.__qualname__} is not plain data")
        name = kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)
        raise NotPlain(f"a value of type {name} is not plain data")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Give out the types of the table and nothing else."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise NotPlain(f"the bytes name {module}.{name}, which is not plain data") from None


class Packer:
    """Packs values one after the other into one buffer, each independent of the others."""

    def __init__(self) -> None:
        """Start empty."""
        self._buffer = BytesIO()
        self._pickler = _Pickler(self._buffer, _PROTOCOL)

    def __len__(self) -> int:
        """How many bytes are in the buffer."""
        return self._buffer.tell()

    def add(self, value: Any) -> int:
        """Pack a value; how many bytes it takes. One that is not plain leaves no trace."""
        before = self._buffer.tell()
        self._pickler.clear_memo()
        try:
            self._pickler.dump(value)
        except RecursionError:
            self._forget_from(before)
            raise NotPlain("a value that is nested too deeply is not plain data") from None
        except BaseException:
            self._forget_from(before)
            raise
        return self._buffer.tell() - before

    def _forget_from(self, position: int) -> None:
        self._buffer.seek(position)
        self._buffer.truncate()

    def take(self) -> bytes:
        """What was packed, and start anew."""
        packed = self._buffer.getvalue()
        self._forget_from(0)
        return packed


def unpack(source: BinaryIO | mmap) -> Any:
    """The next of the values packed in a binary file.

    Each by a reader of its own: one that goes on would also go on numbering what it has read.
    """
    try:
        return _Unpickler(source).load()
    except NotPlain:
        raise
    except _UNREADABLE as error:
        raise NotPlain(f"the bytes are not plain data ({error})") from error


def dumps(value: Any) -> bytes:
    """A plain value as bytes, or ``NotPlain``."""
    packer = Packer()
    packer.add(value)
    return packer.take()


def loads(packed: bytes) -> Any:
    """The value that ``dumps`` was given, or ``NotPlain``."""
    return unpack(BytesIO(packed))
