"""What predictions are checked with: five topologies of Cooper 2020, section 5.3, and PrimeTest.

Their steps wait, as if for an answer from another machine, so that a laptop can run as many of them
at once as an experiment needs; PrimeTest computes, in one task, so that the engine has a core left.
Branches that part and join again are marked on records by a column, since real-time mode reads its
source only once.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as sf

from tailrace.load.keys import Frequencies
from tailrace.spark.from_file import example, find_flow
from tailrace.spark.pipeline.step import flat_step, keyed_step, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

KEYS = Frequencies(dict(zip("ABCDEFGHIJKLMNOP", (6, 4, 3, 3, 2, 2, 2, 2, *[1] * 8), strict=True)))
"""Sixteen keys, skewed as in the original."""

WINDOW = 10
ONE = "seq long, key string"


@dataclass(frozen=True, slots=True)
class Topology:
    """A flow to predict: what it does, and which of its steps have partitions of their own.

    ``per_s`` is about the rate that keeps one task of its busiest step busy all the time, and
    ``sources`` the number of partitions that it reads.
    """

    name: str
    pipeline: Callable[[DataFrame], DataFrame]
    own: tuple[str, ...]
    per_s: float
    sources: int = 2
    keys: Any = field(default=KEYS)
    windows: Mapping[str, int] = field(default_factory=dict)


def waits(ms: float) -> Callable[[Any], tuple[int, str]]:
    """A step that waits for an answer and passes the record on."""

    def call(row: Any) -> tuple[int, str]:
        time.sleep(ms / 1e3)
        return row.seq, row.key

    return call


def each(ms: float) -> Callable[[Any, list[Any], Any], Iterator[tuple[int, str]]]:
    """The same as a keyed step, which counts the records of each key."""

    def call(_key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, str]]:
        for row in rows:
            time.sleep(ms / 1e3)
            state["seen"] = state.get("seen", 0) + 1
            yield row.seq, row.key

    return call


def multiplies(ms: float) -> Callable[[Any], Iterator[tuple[int, str]]]:
    """A step that makes about ten records from each: Normal(10, 1), rounded, at least one."""

    def call(row: Any) -> Iterator[tuple[int, str]]:
        time.sleep(ms / 1e3)
        generator = random.Random(row.seq)  # noqa: S311 - the same records in every run
        for number in range(max(1, round(generator.gauss(10, 1)))):
            yield row.seq * 100 + number, row.key

    return call


def window(ms: float, size: int) -> Callable[[Any, list[Any], Any], Iterator[tuple[int, str]]]:
    """A tumbling count window for each key: one record out of every ``size``."""

    def call(_key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, str]]:
        for row in rows:
            time.sleep(ms / 1e3)
            state["held"] = state.get("held", 0) + 1
            if state["held"] == size:
                state["held"] = 0
                yield row.seq, row.key

    return call


def fields_to_fields(records: DataFrame) -> DataFrame:
    """Two keyed steps in a row, by different keys."""
    entered = records.transform(step("enter", waits(0.3), ONE))
    first = entered.transform(keyed_step("first", each(3.0), ONE, key="key"))
    other = first.withColumn("key", sf.expr("substring('AAABBCDEFGHIJKLM', 1 + seq % 16, 1)"))
    return other.transform(keyed_step("second", each(3.0), ONE, key="key"))


def multiplier(records: DataFrame) -> DataFrame:
    """One record becomes ten, which are sent."""
    many = records.transform(flat_step("multiply", multiplies(1.5), ONE))
    return many.transform(step("send", waits(0.6), ONE, scale=(1, 8)))


def windowed(records: DataFrame) -> DataFrame:
    """One record out of every ten of a key is sent."""
    entered = records.transform(step("enter", waits(0.3), ONE))
    kept = entered.transform(keyed_step("window", window(3.0, WINDOW), ONE, key="key"))
    return kept.transform(step("send", waits(1.5), ONE))


def all_in_one(records: DataFrame) -> DataFrame:
    """Multiplied, windowed by key, counted by key."""
    many = records.transform(flat_step("multiply", multiplies(1.5), ONE))
    kept = many.transform(keyed_step("window", window(0.6, WINDOW), ONE, key="key"))
    return kept.transform(keyed_step("count", each(3.0), ONE, key="key"))


WAYS = "seq long, key string, way string"


def join_split(records: DataFrame) -> DataFrame:
    """Every record takes two branches, one of which makes ten of it; they join and fork again."""

    def along(way: str, ms: float, times: int) -> Callable[[Any], Iterator[tuple[int, str, str]]]:
        def call(row: Any) -> Iterator[tuple[int, str, str]]:
            if row.way == way:
                time.sleep(ms / 1e3)
            for number in range(times if row.way == way else 1):
                yield row.seq * 100 + number, row.key, row.way

        return call

    def join(_key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, str, str]]:
        for row in rows:
            time.sleep(6e-4)
            state["held"] = state.get("held", 0) + 1
            if state["held"] == 2 * WINDOW:
                state["held"] = 0
                yield row.seq, row.key, "one"
                yield row.seq, row.key, "two"

    def both(row: Any) -> Iterator[tuple[int, str, str]]:
        for way in "ab":
            yield row.seq, row.key, way

    parted = records.transform(flat_step("part", both, WAYS))
    apart = parted.transform(flat_step("a", along("a", 1.5, 1), WAYS)).transform(
        flat_step("b", along("b", 1.5, 10), WAYS)
    )
    joined = apart.transform(keyed_step("join", join, WAYS, key="key"))
    return joined.transform(flat_step("one", along("one", 1.5, 1), WAYS)).transform(
        flat_step("two", along("two", 1.5, 1), WAYS)
    )


def primes(records: DataFrame) -> DataFrame:
    """PrimeTest of Lohrmann 2016, section 5.1.2, which computes."""
    made = find_flow(f"{example('primes.py')}:flow").pipeline(records)
    return cast("DataFrame", made)


def nothing(records: DataFrame) -> DataFrame:
    """Steps that take no time, so that only the engine takes any."""
    one = records.transform(step("one", lambda row: (row.seq, row.key), ONE))
    return one.transform(keyed_step("two", each(0.0), ONE, key="key"))


TRIVIAL = Topology("trivial", nothing, ("two",), 10_000.0)

TOPOLOGIES = (
    Topology("fields-to-fields", fields_to_fields, ("first", "second"), 300.0),
    Topology("multiplier", multiplier, ("send",), 120.0),
    Topology("windowed", windowed, ("window",), 300.0, windows={"window": WINDOW}),
    Topology("all-in-one", all_in_one, ("window", "count"), 120.0, windows={"window": WINDOW}),
    Topology("join-split", join_split, ("join",), 120.0, windows={"join": 2 * WINDOW}),
    Topology("primes", primes, (), 7_000.0, sources=1),
)
