"""Ways to spoil input: values of JSON, cells of CSV, bytes of any file, options of a command."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Container = dict[str, Any] | list[Any]

TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "x" * 3_000,
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "[bold]b[/bold]",
    "[/]",
    "[link=http://x]x[/link]",
    "a\nb\r\tc",
    "\x00",
    "\x7f\x08",
    "\u202egnp.exe",
    "\u2028",
    "\ud800",
    "\ufeff",
    ":boom:",
    "source",
    "sink",
    "sink:late",
    "a+b",
    "é漢😀",
    "{}",
    "%s%n",
    "../../x",
    "decimal(99,99)",
    "bigint",
    "timestamp",
    "realtime",
    "1e999",
)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    0.5,
    1.5,
    -0.0,
    2**31,
    2**63,
    2**64,
    10**18,
    10**30,
    10**400,
    -(10**30),
    1e-12,
    1e-300,
    5e-324,
    1e9,
    1e12,
    1e15,
    1e18,
    1e300,
    1.7976931348623157e308,
    math.nan,
    math.inf,
    -math.inf,
    3,
    100,
    100_000,
    1_000_000,
)
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"a": 1}, [1, 2, 3])
CELLS = (
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-5",
    "1e308",
    "1e-320",
    "1e300",
    "12,5",
    "1_000",
    "0x10",
    "1 k/s",
    "5 G/h",
    "2026-01-01T00:00:00",
    "2026-13-01",
    "9999-12-31T23:59:59.999999",
    "0001-01-01T00:00:00+14:00",
    "253402300800",
    "1e17",
    "-62135596801",
    "٣",
    '"',
    '"a',
    "\x00",
    "\x1b[2J",
    "[red]",
    "x" * 200_000,
)
OPTION_VALUES = (
    *("", " ", "0", "1", "2", "-1", "1.5", "1e3", "nan", "inf", "-inf", "1e999", "1e308", "1e-320"),
    *("10 ms", "1 s", "5 min", "1 h", "1e30 h", "0 ms", "0.0001 us", "100/s", "2 k/s", "1e12 G/s"),
    *("999999999999999999999", "1000000", "100000", "10000", "٣", "²", "½", "0x10", "1_000", "ms"),
    *("\x1b[31m", "[red]x[/]", "a\nb", "x" * 5_000, "é", "\u202e", "None", "null", "--", "-", "="),
    *("step=8", "score=8", "score=0", "score=-1", "score=1000000000", "score=²", "=8", "score="),
    *("score=99999999999999999999", "parse=3", "microbatch", "realtime", "storm", "REALTIME"),
    *("rate=1/s..2/s", "rate=..", "rate=1..2..3", "rate=1e300/s..1e301/s", "rate=nan..inf", ".."),
    *(
        "rate=1/s..1000000000/s",
        "rate=0.0001/s..1 G/s",
        "/dev/null",
        ".",
        "/",
        "none.json",
        "a" * 300,
    ),
)


def number(rng: random.Random) -> Any:
    """A number at or beyond the edge of what is sensible, or anywhere."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice((1, -1)) * 10 ** rng.uniform(-20, 20)
    if kind < 0.5:
        return 10 ** rng.uniform(-9, 12)
    return rng.randrange(1, 10_001) if kind < 0.6 else rng.choice(NUMBERS)


def anything(rng: random.Random) -> Any:
    """A value of any type of JSON, deep ones among them."""
    kind = rng.random()
    if kind < 0.45:
        return number(rng)
    if kind < 0.8:
        return rng.choice(TEXTS)
    if kind < 0.97:
        return copy.deepcopy(rng.choice(ODD))
    return nested(rng.choice((5, 50, 500)))


def nested(depth: int) -> Any:
    """Lists and objects in one another."""
    found: Any = 1
    for level in range(depth):
        found = [found] if level % 2 else {"a": found}
    return found


def places(data: Any) -> list[tuple[Container, Any]]:
    """Every container of the data with every key or index of it."""
    found: list[tuple[Container, Any]] = []
    waiting = [data]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict | list):
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            found += [(here, key) for key in keys]
            waiting += [here[key] for key in keys]
    return found


def same_numbers(data: Any, value: Any) -> Any:
    """The data with one number in the place of all, but for those that stand for whole ones."""
    for where, key in places(data):
        if isinstance(where[key], float):
            where[key] = value
    return data


def spoil_value(rng: random.Random, data: Any) -> Any:
    """The data with one value replaced, removed, added, doubled or renamed."""
    spots = places(data)
    if not spots or rng.random() < 0.02:
        return anything(rng)
    if rng.random() < 0.05:
        return same_numbers(data, number(rng))
    where, key = rng.choice(spots)
    kind = rng.random()
    if kind < 0.6:
        old = where[key]
        numeric = isinstance(old, int | float) and not isinstance(old, bool)
        where[key] = number(rng) if numeric and rng.random() < 0.6 else anything(rng)
    elif kind < 0.7:
        del where[key]
    elif isinstance(where, dict):
        name = rng.choice((*TEXTS, *where))
        where[name] = anything(rng) if kind < 0.85 else where.pop(key)
    else:
        where.insert(key, where[key] if kind < 0.85 else anything(rng))
    return data


def text_of(rng: random.Random, data: Any) -> str:
    """The data as JSON, laid out in one of several ways."""
    indent = rng.choice((None, None, 2))
    return json.dumps(data, indent=indent, ensure_ascii=rng.random() < 0.5)


def spoil_text(rng: random.Random, text: str) -> str:
    """The text with a piece doubled, cut out, replaced or put elsewhere."""
    if not text:
        return rng.choice(TEXTS)
    start = rng.randrange(len(text))
    end = min(len(text), start + rng.choice((1, 2, 5, 30, 200)))
    piece = text[start:end]
    odd = rng.choice((*TEXTS, *CELLS, "NaN", "Infinity", "1e400", "{", "}", "[", '"', ",", ":"))
    made: tuple[Callable[[], str], ...] = (
        lambda: text[:start] + text[end:],
        lambda: text[:end] + piece + text[end:],
        lambda: text[:start] + odd + text[end:],
        lambda: text[:start],
        lambda: text.replace("\n", "\r\n"),
        lambda: "\ufeff" + text,
        lambda: "[" * rng.choice((30, 3_000, 100_000)) + text,
        lambda: '{"a":' * rng.choice((30, 3_000, 50_000)) + text,
        lambda: text + text,
        lambda: "",
    )
    return rng.choice(made)()


def spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some flipped, removed or put in; invalid UTF-8 more often than not."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(found) + 1)
        kind = rng.random()
        if kind < 0.5 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind < 0.7:
            del found[at : at + rng.choice((1, 10, 100))]
        else:
            found[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 50))))
    return bytes(found)


def encoded(rng: random.Random, text: str) -> bytes:
    """The text as bytes: UTF-8 nearly always, where halves of pairs become their escapes."""
    if rng.random() < 0.02:
        return text.encode("utf-16", "surrogatepass")
    return text.encode("utf-8", "backslashreplace")
