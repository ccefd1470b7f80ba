"""Spark's own hash of a key, and so the partition that a key goes to.

A hash exchange puts a row into partition ``pmod(hash(columns), n)``. The hash is Murmur3 (x86, 32
bits, seed 42), and may not change from one version of Spark to the next, as the state of running
queries is laid out by it. So where a key would go under any number of partitions is known without
running anything (Cooper 2020, section 4.5, has to estimate it from counted transfers).

Two things differ from the published Murmur3: the last one to three bytes of a text are mixed one
by one, each as a signed number of its own; and a null leaves the hash as it was. The columns of a
composite key are chained: the hash of one is the seed of the next.

A Python value does not say how Spark hashes it (5 may be an int or a bigint, and they differ), so
every function here takes the name of the Spark type: ``"int"``, ``"string"``, ``"decimal(9,2)"``,
or a tuple of names for a composite key, whose keys are then tuples.
"""

from __future__ import annotations

import operator
import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = str | tuple[str, ...]
"""The Spark type of a key: one name, or the names of its columns."""

Hashes = NDArray[np.int32]
_Words = NDArray[np.uint32]
_Numbers = NDArray[np.int64]

SEED: Final = 42

_FULL: Final = 0xFFFFFFFF
_FIRST: Final = 0xCC9E2D51
_SECOND: Final = 0x1B873593
_ADDED: Final = 0xE6546B64
_THIRD: Final = 0x85EBCA6B
_FOURTH: Final = 0xC2B2AE35
_NAN_64: Final = 0x7FF8 << 48
_NAN_32: Final = 0x7FC0 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_DIGITS: Final = 18
_FEW: Final = 32
"""Below so many texts that still have words to mix, plain Python is faster than numpy."""


# --- what each type is hashed as ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a type is hashed: as a number of so many bits, or, with 0 bits, as bytes.

    ``plain`` turns a value into that number or those bytes, ``read`` a text into a value, and
    ``wanted`` says what the values are in Python.
    """

    bits: int
    wanted: str
    plain: Callable[[Any], Any]
    read: Callable[[str], Any]


def _flag(value: Any) -> int:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return int(value)


def _read_flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _days(value: Any) -> int:
    if isinstance(value, datetime):
        raise TypeError
    return value.toordinal() - 719_163 if isinstance(value, date) else operator.index(value)


def _instant_us(value: Any) -> int:
    if isinstance(value, datetime):  # without a zone this raises TypeError, as it must
        return (value - _EPOCH) // timedelta(microseconds=1)
    return operator.index(value)


def _local_us(value: Any) -> int:
    if isinstance(value, datetime):
        return (value - _EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)
    return operator.index(value)


def _double_bits(value: Any) -> int:
    return int(_bits_of_doubles(np.array([_real(value)]))[0])


def _float_bits(value: Any) -> int:
    return int(_bits_of_floats(np.array([_real(value)]))[0])


def _real(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _bits_of_doubles(values: NDArray[Any]) -> _Numbers:
    """Both zeros are one key to Spark, and so are all values that are not a number."""
    doubles = values.astype(np.float64)
    bits = np.where(doubles == 0, 0.0, doubles).view(np.int64)
    return np.where(np.isnan(doubles), _NAN_64, bits)


def _bits_of_floats(values: NDArray[Any]) -> _Numbers:
    with np.errstate(over="ignore"):  # beyond a float is infinity, as in Java
        floats = values.astype(np.float32)
    bits = np.where(floats == 0, np.float32(0), floats).view(np.int32).astype(np.int64)
    return np.where(np.isnan(floats), _NAN_32, bits)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _blob(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _unreadable(text: str) -> Any:
    raise ValueError(text)


_RULES: Final[dict[str, _Rule]] = {
    "boolean": _Rule(8, "True or False", _flag, _read_flag),
    "tinyint": _Rule(8, "a whole number of 8 bits", operator.index, int),
    "smallint": _Rule(16, "a whole number of 16 bits", operator.index, int),
    "int": _Rule(32, "a whole number of 32 bits", operator.index, int),
    "bigint": _Rule(64, "a whole number of 64 bits", operator.index, int),
    "date": _Rule(32, "a date, or its days since 1970", _days, date.fromisoformat),
    "timestamp": _Rule(
        64,
        "a datetime with a time zone, or its microseconds since 1970",
        _instant_us,
        datetime.fromisoformat,
    ),
    "timestamp_ntz": _Rule(
        64,
        "a datetime without a time zone, or its microseconds since 1970",
        _local_us,
        datetime.fromisoformat,
    ),
    "float": _Rule(32, "a number", _float_bits, float),
    "double": _Rule(64, "a number", _double_bits, float),
    "string": _Rule(0, "a text of valid Unicode", _text, str),
    "binary": _Rule(0, "bytes", _blob, _unreadable),
}
_ALIASES: Final = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "timestamp_ltz": "timestamp",
    "real": "float",
    "decimal": "decimal(10,0)",
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def _rule(kind: str) -> _Rule:
    name = kind.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _RULES:
        return _RULES[name]
    if match := _DECIMAL.fullmatch(name):
        return _decimal(int(match[1]), int(match[2] or 0))
    known = ", ".join(_RULES)
    raise InputError(
        f"Where Spark sends a key of type '{kind}' is not known here: route by a column of type "
        f"{known} or decimal, in the default collation."
    )


def _decimal(precision: int, scale: int) -> _Rule:
    """A decimal is its digits without the point: a long if it fits, else the bytes of a number."""

    def unscaled(value: Any) -> int:
        sign, digits, exponent = Decimal(_exact(value)).as_tuple()
        if not isinstance(exponent, int):
            raise TypeError
        whole, point = int("".join(map(str, digits))), exponent + scale
        number, lost = divmod(whole * _power(point), _power(-point))
        if lost or number >= 10**precision:
            raise ValueError
        return -number if sign else number

    def big_endian(value: Any) -> bytes:
        number = unscaled(value)
        bits = (number if number >= 0 else ~number).bit_length()
        return number.to_bytes(bits // 8 + 1, "big", signed=True)

    wanted = f"a Decimal of {precision} digits, {scale} of them after the point"
    if precision <= _LONG_DIGITS:
        return _Rule(64, wanted, unscaled, Decimal)
    return _Rule(0, wanted, big_endian, Decimal)


def _power(digits: int) -> int:
    return int(10 ** max(0, digits))


def _exact(value: Any) -> Decimal | int:
    return value if isinstance(value, Decimal) else operator.index(value)


def _plain(value: Any, kind: str, rule: _Rule) -> Any:
    """The number or the bytes that stand for a value, or a sentence on what is wrong with it."""
    try:
        plain = rule.plain(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _misfit(value, kind, rule) from error
    if rule.bits and not -(1 << rule.bits - 1) <= plain < 1 << rule.bits - 1:
        raise _misfit(value, kind, rule)
    return plain


def _misfit(value: Any, kind: str, rule: _Rule) -> InputError:
    return InputError(f"The key {value!r} cannot be a Spark {kind}: give {rule.wanted}.")


def read_key(text: str, kind: str) -> Any:
    """The key that was written as ``str(key)``, as measurements hold keys.

    ``"None"`` is null, but for texts, of which it is one.
    """
    rule = _rule(kind)
    if text == "None" and rule is not _RULES["string"]:
        return None
    try:
        return rule.read(text)
    except (ValueError, KeyError, InvalidOperation) as error:
        raise InputError(
            f"The text {text!r} cannot be read as a key of Spark type {kind}: "
            "name the type of the column that the keys were counted in."
        ) from error


# --- one key ------------------------------------------------------------------------------------


def hash_one(value: Any, kind: str, seed: int = SEED) -> int:
    """Spark's hash of one value, as the signed number that ``hash(column)`` shows."""
    rule = _rule(kind)
    if value is None:
        return _signed(seed)
    plain = _plain(value, kind, rule)
    state = seed & _FULL
    if rule.bits == 0:
        aligned = len(plain) & ~3
        state = _absorb(state, struct.unpack(f"<{aligned // 4}I", plain[:aligned]))
        state = _absorb(state, struct.unpack(f"{len(plain) - aligned}b", plain[aligned:]))
        return _signed(_finish(state, len(plain)))
    if rule.bits <= 32:
        return _signed(_finish(_absorb(state, (plain,)), 4))
    return _signed(_finish(_absorb(state, (plain, plain >> 32)), 8))


def hash_key(key: Any, kind: Kind) -> int:
    """Spark's hash of one key; of a composite one if ``kind`` is a tuple, as the key then is."""
    if isinstance(kind, str):
        return hash_one(key, kind)
    _check_width(key, kind)
    state = SEED
    for value, name in zip(key, kind, strict=True):
        state = hash_one(value, name, state)
    return state


def _absorb(state: int, words: Sequence[int]) -> int:
    for word in words:
        mixed = word * _FIRST & _FULL
        mixed = (mixed << 15 | mixed >> 17) * _SECOND & _FULL
        state ^= mixed
        state = ((state << 13 & _FULL | state >> 19) * 5 + _ADDED) & _FULL
    return state


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * _THIRD & _FULL
    state = (state ^ state >> 13) * _FOURTH & _FULL
    return state ^ state >> 16


def _signed(state: int) -> int:
    return (state & _FULL ^ 1 << 31) - (1 << 31)


def _check_width(key: Any, kind: tuple[str, ...]) -> None:
    if not isinstance(key, tuple) or len(key) != len(kind):
        raise InputError(
            f"The key {key!r} does not have the {len(kind)} columns {', '.join(kind)}: give a "
            "tuple with a value for each of them."
        )


# --- many keys ----------------------------------------------------------------------------------


def hash_column(
    values: Sequence[Any] | NDArray[Any], kind: str, seeds: Hashes | None = None
) -> Hashes:
    """Spark's hash of every value of a column, None being null.

    ``seeds`` are the hashes of the columns before it. Arrays of numpy take no detour through
    Python; in an array of dates or times, ``NaT`` is null.
    """
    rule = _rule(kind)
    count = len(values)
    start = np.full(count, SEED, np.int32) if seeds is None else seeds
    states = start.astype(np.int32).view(np.uint32)
    if rule.bits == 0:
        nulls = np.fromiter((value is None for value in values), np.bool_, count)
        texts = [b"" if value is None else _plain(value, kind, rule) for value in values]
        hashed = _hash_bytes(texts, states)
    else:
        numbers, nulls = _numbers(values, kind, rule)
        low = numbers.astype(np.uint32)
        hashed = _mix(states, low)
        if rule.bits > 32:
            hashed = _mix(hashed, (numbers >> 32).astype(np.uint32))
        hashed = _finished(hashed, np.uint32(8 if rule.bits > 32 else 4))
    return np.where(nulls, states, hashed).view(np.int32)


def hash_keys(keys: Sequence[Any] | NDArray[Any], kind: Kind) -> Hashes:
    """Spark's hash of every key; of composite ones if ``kind`` is a tuple, as the keys then are."""
    if isinstance(kind, str):
        return hash_column(keys, kind)
    for key in keys:
        _check_width(key, kind)
    hashes = np.full(len(keys), SEED, np.int32)
    for place, name in enumerate(kind):
        hashes = hash_column([key[place] for key in keys], name, hashes)
    return hashes


def partition_of(
    keys: Sequence[Any] | NDArray[Any], partitions: int, kind: Kind
) -> NDArray[np.int64]:
    """The partition that Spark sends each key to: ``pmod(hash(key), partitions)``."""
    if partitions < 1:
        raise InputError(
            f"Keys cannot be spread over {partitions} partitions: use a whole number from 1 up."
        )
    return hash_keys(keys, kind).astype(np.int64) % partitions


def _numbers(
    values: Sequence[Any] | NDArray[Any], kind: str, rule: _Rule
) -> tuple[_Numbers, NDArray[np.bool_]]:
    """The numbers that stand for values, 0 for nulls, and which of them are null."""
    array = _numeric(values)
    none = np.zeros(len(values), np.bool_)
    if array is not None and array.dtype.kind == "f" and rule.plain in (_double_bits, _float_bits):
        bits_of = _bits_of_doubles if rule.plain is _double_bits else _bits_of_floats
        return bits_of(array), none
    if array is not None and array.dtype.kind in "iu" and rule.plain is operator.index:
        edge = 1 << rule.bits - 1
        for extreme in (array.min(initial=0), array.max(initial=0)):
            if not -edge <= int(extreme) < edge:
                raise _misfit(int(extreme), kind, rule)
        return array.astype(np.int64), none
    units = {_days: "D", _instant_us: "us", _local_us: "us"}
    if array is not None and array.dtype.kind == "M" and rule.plain in units:
        absent = np.isnat(array)
        moments = array.astype(f"datetime64[{units[rule.plain]}]").astype(np.int64)
        return np.where(absent, 0, moments), absent
    plain = [0 if value is None else _plain(value, kind, rule) for value in values]
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    return np.array(plain, np.int64), nulls


def _numeric(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any] | None:
    """The values as an array, if they are all of one numeric type."""
    if not isinstance(values, np.ndarray):
        if not len(values) or type(values[0]) not in (int, float):
            return None
        try:
            values = np.array(values)
        except (ValueError, OverflowError):
            return None
    return values if values.ndim == 1 and values.dtype.kind in "iufM" else None


def _hash_bytes(texts: Sequence[bytes], seeds: _Words) -> _Words:
    """Hash texts side by side, a word of each at a time; the long ones that remain one by one."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(lengths) - lengths
    blob = np.frombuffer(b"".join((*texts, b"\0\0\0\0")), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(blob, 4)
    words = lengths // 4
    states = seeds.copy()
    done = 0
    live = np.flatnonzero(words > 0)
    while len(live) >= _FEW:
        block = windows[starts[live] + 4 * done].view("<u4").ravel()
        states[live] = _mix(states[live], block)
        done += 1
        live = live[words[live] > done]
    for place in live.tolist():
        rest = texts[place][4 * done : 4 * int(words[place])]
        states[place] = _absorb(int(states[place]), struct.unpack(f"<{len(rest) // 4}I", rest))
    for byte in range(3):
        live = np.flatnonzero(lengths % 4 > byte)
        last = blob[starts[live] + 4 * words[live] + byte].view(np.int8)
        states[live] = _mix(states[live], last.astype(np.int32).view(np.uint32))
    return _finished(states, lengths.astype(np.uint32))


def _mix(states: _Words, words: _Words) -> _Words:
    mixed = words * np.uint32(_FIRST)
    mixed = (mixed << np.uint32(15) | mixed >> np.uint32(17)) * np.uint32(_SECOND)
    mixed ^= states
    mixed = mixed << np.uint32(13) | mixed >> np.uint32(19)
    return mixed * np.uint32(5) + np.uint32(_ADDED)


def _finished(states: _Words, lengths: _Words | np.uint32) -> _Words:
    states = states ^ lengths
    states = (states ^ states >> np.uint32(16)) * np.uint32(_THIRD)
    states = (states ^ states >> np.uint32(13)) * np.uint32(_FOURTH)
    return states ^ states >> np.uint32(16)
