"""The types that a key may have, and what Spark hashes for their values: a number or bytes."""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    _Numbers = NDArray[np.int64]

REDACTED: Final = "redacted"
"""The type of keys that are pseudonyms (``tailrace.model.keys.pseudonyms``)."""

_NAN_64: Final = 0x7FF8 << 48
_NAN_32: Final = 0x7FC0 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class Rule:
    """How a type is hashed: as a number of ``bits`` bits, or, if that is 0, as bytes.

    ``plain`` turns a value into that number or those bytes, ``read`` a text into a value, and
    ``wanted`` says what the values are in Python.
    """

    bits: int
    wanted: str
    plain: Callable[[Any], Any]
    read: Callable[[str], Any]


# --- from a value to what is hashed -----------------------------------------------------------


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
    """To Spark both zeros are one key, and so are all NaNs."""
    doubles = values.astype(np.float64)
    bits = np.where(doubles == 0, 0.0, doubles).view(np.int64)
    return np.where(np.isnan(doubles), _NAN_64, bits)


def _bits_of_floats(values: NDArray[Any]) -> _Numbers:
    with np.errstate(over="ignore"):  # too large for a float is infinity, as in Java
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


# --- the types --------------------------------------------------------------------------------


_RULES: Final[dict[str, Rule]] = {
    "boolean": Rule(8, "True or False", _flag, _read_flag),
    "tinyint": Rule(8, "a whole number of 8 bits", operator.index, int),
    "smallint": Rule(16, "a whole number of 16 bits", operator.index, int),
    "int": Rule(32, "a whole number of 32 bits", operator.index, int),
    "bigint": Rule(64, "a whole number of 64 bits", operator.index, int),
    "date": Rule(32, "a date, or its days since 1970", _days, date.fromisoformat),
    "timestamp": Rule(
        64,
        "a datetime with a time zone, or its microseconds since 1970",
        _instant_us,
        datetime.fromisoformat,
    ),
    "timestamp_ntz": Rule(
        64,
        "a datetime without a time zone, or its microseconds since 1970",
        _local_us,
        datetime.fromisoformat,
    ),
    "float": Rule(32, "a number", _float_bits, float),
    "double": Rule(64, "a number", _double_bits, float),
    "string": Rule(0, "a text of valid Unicode", _text, str),
    "binary": Rule(0, "bytes", _blob, _unreadable),
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
_ARROW: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    REDACTED: REDACTED,
}
"""Spark's names for the Arrow types of keys other than texts, and the type of pseudonyms."""

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def from_arrow(kinds: str) -> str:
    """The Spark types of a key's columns from their Arrow types, separated by semicolons."""
    return ";".join(_ARROW.get(kind, "string") for kind in kinds.split(";"))


def rule_of(kind: str) -> Rule:
    """How the type with this name is hashed; a few types have several names."""
    name = kind.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _RULES:
        return _RULES[name]
    if match := _DECIMAL.fullmatch(name):
        return _decimal(int(match[1]), int(match[2] or 0))
    known = ", ".join(_RULES)
    raise InputError(
        f"It is not known where Spark sends a key of type '{kind}': route by a column of type "
        f"{known} or decimal, in the default collation."
    )


def _decimal(precision: int, scale: int) -> Rule:
    """A decimal is hashed as its unscaled number: a long if it fits, else big-endian bytes."""

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
        return Rule(64, wanted, unscaled, Decimal)
    return Rule(0, wanted, big_endian, Decimal)


def _power(digits: int) -> int:
    return int(10 ** max(0, digits))


def _exact(value: Any) -> Decimal | int:
    return value if isinstance(value, Decimal) else operator.index(value)


# --- values of a type -------------------------------------------------------------------------


def read_key(text: str, kind: str | tuple[str, ...]) -> Any:
    """The key that was written as ``str(key)``, as measurements hold keys.

    ``"None"`` is null, except for a text column, where it is that text. If ``kind`` is a tuple, the
    key has several columns and is written as a JSON list of their texts.
    """
    if not isinstance(kind, str):
        return tuple(read_key(*pair) for pair in zip(_texts(text, len(kind)), kind, strict=True))
    if kind == REDACTED:
        return text
    rule = rule_of(kind)
    if text == "None" and rule is not _RULES["string"]:
        return None
    try:
        return rule.read(text)
    except (ValueError, KeyError, InvalidOperation) as error:
        raise InputError(
            f"The text {text!r} cannot be read as a key of Spark type {kind}: "
            "name the type of the column that the keys were counted in."
        ) from error


def _texts(text: str, columns: int) -> list[str]:
    """The texts of a key with this number of columns."""
    try:
        texts = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or len(texts) != columns:
        raise InputError(
            f"The text {text!r} is not a key of {columns} columns: give a JSON list of texts."
        )
    return [str(part) for part in texts]


def plain_of(value: Any, kind: str, rule: Rule) -> Any:
    """The number or bytes to hash for a value; an ``InputError`` if it does not fit its type."""
    try:
        plain = rule.plain(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _misfit(value, kind, rule) from error
    if rule.bits and not -(1 << rule.bits - 1) <= plain < 1 << rule.bits - 1:
        raise _misfit(value, kind, rule)
    return plain


def _misfit(value: Any, kind: str, rule: Rule) -> InputError:
    return InputError(f"The key {value!r} cannot be a Spark {kind}: give {rule.wanted}.")


def numbers_of(
    values: Sequence[Any] | NDArray[Any], kind: str, rule: Rule
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
    plain = [0 if value is None else plain_of(value, kind, rule) for value in values]
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
