"""The hash and the partitions of keys, against those of Spark itself."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tailrace.model.keys.murmur import hash_key, hash_keys, partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 2_000
PARTITIONS = (1, 2, 7, 64, 200)
ALPHABET = "ab01 -_éüßλж漢字🙂\x00\u200d"
ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_BEEF))[0]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.choice((0, 1, 2, 3, 4, 5, 9, 14, 40, 300))))


def whole(bits: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randrange(-(1 << bits - 1), 1 << bits - 1)


def decimal(digits: int, scale: int) -> Callable[[random.Random], Decimal]:
    def draw(rng: random.Random) -> Decimal:
        unscaled = rng.randrange(10 ** rng.randint(1, digits))
        return Decimal(f"{rng.choice(('', '-'))}{unscaled}e-{scale}")

    return draw


SPECIAL = [0.0, -0.0, float("nan"), ODD_NAN, float("inf"), -float("inf"), 5e-324, 1.5e308, 1e-40]
START = datetime(1970, 1, 1, tzinfo=UTC)

TYPES: dict[str, tuple[Callable[[random.Random], Any], list[Any]]] = {
    "boolean": (lambda rng: rng.random() < 0.5, []),
    "tinyint": (whole(8), [-128, 127]),
    "smallint": (whole(16), [-(2**15), 2**15 - 1]),
    "int": (whole(32), [0, -1, -(2**31), 2**31 - 1]),
    "bigint": (whole(64), [0, -1, 2**31, -(2**63), 2**63 - 1]),
    "float": (lambda rng: rng.gauss(0, 1e3), [x for x in SPECIAL if x != 1.5e308]),
    "double": (lambda rng: rng.gauss(0, 1e9), SPECIAL),
    "string": (text, ["", "\x00", "🙂"]),
    "binary": (lambda rng: rng.randbytes(rng.randrange(40)), [b"", b"\x80", b"\xff" * 7]),
    "date": (
        lambda rng: date.fromordinal(rng.randrange(1, date.max.toordinal())),
        [date.min, date(1969, 12, 31), date(1970, 1, 1), date.max],
    ),
    "timestamp": (
        lambda rng: START + timedelta(microseconds=rng.randrange(-(10**16), 10**17)),
        [START, START - timedelta(microseconds=1)],
    ),
    "timestamp_ntz": (
        lambda rng: datetime(1970, 1, 1) + timedelta(microseconds=rng.randrange(10**17)),
        [datetime(1900, 1, 1, 0, 0, 0, 1)],
    ),
    "decimal(9,2)": (decimal(9, 2), [Decimal("0.00"), Decimal("-9999999.99")]),
    "decimal(18,0)": (decimal(18, 0), [Decimal(10**18 - 1), Decimal(1 - 10**18)]),
    "decimal(38,10)": (decimal(38, 10), [Decimal(0), Decimal(-128), Decimal(10**28 - 1)]),
}


def values(kind: str, seed: int) -> list[Any]:
    draw, special = TYPES[kind]
    rng = random.Random(seed)
    drawn = [None if rng.random() < 0.02 else draw(rng) for _ in range(COUNT)]
    return [*special, None, *drawn]


def frame(spark: SparkSession, kinds: Sequence[str], columns: Sequence[list[Any]]) -> DataFrame:
    schema = ", ".join(["at int", *(f"k{i} {kind}" for i, kind in enumerate(kinds))])
    rows = list(zip(range(len(columns[0])), *columns, strict=False))
    return spark.createDataFrame(rows, schema)


def of_spark(rows: DataFrame, width: int) -> tuple[list[int], dict[int, list[int]]]:
    names = [f"k{i}" for i in range(width)]
    hashed = F.hash(*names)
    spread = [F.pmod(hashed, F.lit(n)).alias(f"n{n}") for n in PARTITIONS]
    found = sorted(rows.select("at", hashed.alias("hash"), *spread).collect())
    return [row["hash"] for row in found], {n: [row[f"n{n}"] for row in found] for n in PARTITIONS}


@pytest.mark.parametrize("kind", TYPES)
def test_keys_of_every_type_are_hashed_and_spread_as_by_spark(
    spark: SparkSession, kind: str
) -> None:
    keys = values(kind, seed=1)
    hashes, spread = of_spark(frame(spark, [kind], [keys]), 1)
    assert len(set(hashes)) > min(100, len(set(keys)) // 2)
    assert hash_keys(keys, kind).tolist() == hashes
    assert [hash_key(key, kind) for key in keys] == hashes
    for n in PARTITIONS:
        assert partition_of(keys, n, kind).tolist() == spread[n]


@pytest.mark.parametrize(
    "kinds",
    [
        ("string", "bigint"),
        ("int", "int", "int"),
        ("double", "boolean", "string", "date"),
        ("decimal(38,10)", "timestamp", "binary"),
    ],
)
def test_composite_keys_are_chained_as_by_spark(
    spark: SparkSession, kinds: tuple[str, ...]
) -> None:
    columns = [values(kind, seed=place) for place, kind in enumerate(kinds)]
    keys = list(zip(*columns, strict=False))
    hashes, spread = of_spark(frame(spark, kinds, columns), len(kinds))
    hashes, spread = hashes[: len(keys)], {n: spread[n][: len(keys)] for n in PARTITIONS}
    assert hash_keys(keys, kinds).tolist() == hashes
    assert [hash_key(key, kinds) for key in keys] == hashes
    for n in PARTITIONS:
        assert partition_of(keys, n, kinds).tolist() == spread[n]


@pytest.mark.parametrize("kinds", [("string",), ("bigint",), ("double",), ("string", "int")])
def test_a_repartition_puts_every_row_where_the_model_says(
    spark: SparkSession, kinds: tuple[str, ...]
) -> None:
    columns = [values(kind, seed=7 + place)[:800] for place, kind in enumerate(kinds)]
    keys: list[Any] = list(zip(*columns, strict=True))
    rows = frame(spark, kinds, columns)
    for partitions in (3, 8):
        moved = rows.repartition(partitions, *(f"k{i}" for i in range(len(kinds))))
        found = sorted(moved.select("at", F.spark_partition_id().alias("in")).collect())
        expected = partition_of(keys, partitions, kinds)
        assert [row["in"] for row in found] == expected.tolist()
        assert len(set(expected.tolist())) == partitions
