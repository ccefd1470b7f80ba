"""What state may hold: plain Python data, which is read back exactly as written.

Plain data is None, numbers, texts, bytes, the standard containers, dates and times, decimals and
UUIDs, in any nesting. It is written with pickle, which runs at the speed of C, but neither side
uses all of pickle. The writer refuses everything else, so that a mistake is found where it is made
and not after the next crash. The reader accepts only the instructions that the writer uses, and
calls only what is in one short table, so that a tampered file can neither run code nor ask for more
memory than its own length justifies.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
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
"""Types that pickle restores by calling them; it handles all other plain types natively."""

_FACTORIES: frozenset[type] = frozenset(
    (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
)
"""Factories that a defaultdict may have, besides the types above."""

_NAMED = _MADE_BY_CALL | _FACTORIES
_ADMITTED = {(kind.__module__, kind.__qualname__): kind for kind in _NAMED}

_UNREADABLE = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError),
    *(TypeError, ValueError, ArithmeticError, RecursionError, MemoryError),
)
"""The exceptions that pickle raises on bytes that are not a pickle."""


_COUNTED = {
    **dict.fromkeys((pickle.SHORT_BINUNICODE, pickle.SHORT_BINBYTES, pickle.LONG1), 1),
    **dict.fromkeys((pickle.BINUNICODE, pickle.BINBYTES, pickle.LONG4), 4),
    **dict.fromkeys((pickle.BINUNICODE8, pickle.BINBYTES8, pickle.BYTEARRAY8), 8),
}
"""Instructions followed by a length and that many bytes, with the width of the length."""

_FIXED = {
    0: (
        *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.MEMOIZE, pickle.MARK, pickle.POP),
        *(pickle.POP_MARK, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.TUPLE, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
        *(pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
        *(pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
    ),
    1: (pickle.PROTO, pickle.BININT1, pickle.BINGET),
    2: (pickle.BININT2,),
    4: (pickle.BININT, pickle.LONG_BINGET),
    8: (pickle.BINFLOAT, pickle.FRAME),
}
"""The other instructions that the writer uses, by the number of bytes that follow."""


def _run() -> re.Pattern[bytes]:
    """Matches all instructions whose length a pattern can state: for most values, all of them.

    Its one group is the instruction at which a value ends.
    """
    alone, *longer = (
        b"[%s]%s" % (re.escape(b"".join(ops)), b".{%d}" % width if width else b"++")
        for width, ops in _FIXED.items()
    )
    lengths = b"|".join(b"%s.{%d}" % (re.escape(bytes([n])), n) for n in range(32))
    short = b"".join(op for op, width in _COUNTED.items() if width == 1)
    texts = b"[%s](?:%s)" % (re.escape(short), lengths)
    return re.compile(b"(?:%s)*+(\\.)?" % b"|".join([alone, texts, *longer]), re.DOTALL)


_RUN = _run()


class NotPlain(ValueError):  # noqa: N818 - it names what a value is
    """A value that is not plain data, or bytes that do not hold plain data."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Let types in the table pass. Pickle asks only about types that it does not know.

        Classes in the table pass too, since instances and factories refer to them by name.
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
        """Return types from the table and nothing else."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            named = f"{module}.{name}"
            raise NotPlain(f"the bytes name {named!r:.80}, which is not plain data") from None


class Packer:
    """Packs values one after the other into a buffer, each independent of the others."""

    def __init__(self) -> None:
        """Start empty."""
        self._buffer = BytesIO()
        self._pickler = _Pickler(self._buffer, _PROTOCOL)

    def __len__(self) -> int:
        """How many bytes are in the buffer."""
        return self._buffer.tell()

    def add(self, value: Any) -> int:
        """Pack a value and return its size in bytes; one that is not plain leaves no trace."""
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
        """Return what was packed, and start again with an empty buffer."""
        packed = self._buffer.getvalue()
        self._forget_from(0)
        return packed


def unpack(packed: bytes | mmap, start: int, end: int) -> tuple[Any, int]:
    """The value packed at ``start``, and where it ends, at ``end`` at the latest.

    Each value gets a new reader: a reused one would keep numbering what it has read before.
    """
    stop = _end_of(packed, start, end)
    try:
        return _Unpickler(BytesIO(packed[start:stop])).load(), stop
    except NotPlain:
        raise
    except _UNREADABLE as error:
        raise NotPlain(f"the bytes are not plain data ({error})") from error


def _end_of(packed: bytes | mmap, start: int, end: int) -> int:
    """Where a value ends; refuses any pickle instruction that the writer never uses.

    With some of those, a few bytes can make pickle fill all memory. Since a byte within a text or a
    number may look like one of them, the instructions are walked through in order.
    """
    at = start
    while at < end and (run := _RUN.match(packed, at, end)):
        at = run.end()
        if run.lastindex:
            return at
        instruction = packed[at : at + 1]
        if at < end and instruction not in _COUNTED:
            raise NotPlain(f"no plain data has {instruction!r}")
        width = _COUNTED.get(instruction, 0)
        at += 1 + width + int.from_bytes(packed[at + 1 : at + 1 + width], "little")
    raise NotPlain("the bytes are cut off")


def dumps(value: Any) -> bytes:
    """A plain value as bytes; raises ``NotPlain`` for any other."""
    packer = Packer()
    packer.add(value)
    return packer.take()


def loads(packed: bytes) -> Any:
    """The value that ``dumps`` was given; raises ``NotPlain`` if there is none."""
    value, _ = unpack(packed, 0, len(packed))
    return value
