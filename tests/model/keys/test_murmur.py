"""Spark's hash: golden values of Spark 4.3, one key against many, and what is refused.

``tests/spark/pipeline/test_routing_hash.py`` compares thousands of values of each type with Spark
itself.
"""

from __future__ import annotations

import math
from datetime import UTC, date, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.keys.murmur import (
    SEED,
    Kind,
    hash_column,
    hash_key,
    hash_keys,
    hash_one,
    partition_of,
)
from tests.model.keys.conftest import NOON, VALUES, bits_to_double

GOLDEN: list[tuple[Any, Kind, int]] = [
    (True, "boolean", -559580957),
    (False, "boolean", 933211791),
    (-7, "tinyint", -1618159745),
    (300, "smallint", -2133297984),
    (0, "int", 933211791),
    (1, "int", -559580957),
    (-1, "int", -1604776387),
    (2**31 - 1, "int", 133916647),
    (0, "bigint", -1670924195),
    (1, "bigint", -1712319331),
    (-1, "bigint", -939490007),
    (2**63 - 1, "bigint", -1604625029),
    (1.5, "float", -221251528),
    (-0.0, "float", 933211791),
    (math.nan, "float", -349261430),
    (1.5, "double", 1290763749),
    (-0.0, "double", -1670924195),
    (math.nan, "double", -1281358385),
    ("", "string", 142593372),
    ("a", "string", 1485273170),
    ("ab", "string", -97053317),
    ("abc", "string", 1322437556),
    ("abcd", "string", -396302900),
    ("Spark", "string", 228093765),
    ("naïve 漢字 🙂", "string", 786036949),
    (b"\x80\xff", "binary", 1952144757),
    (date(1970, 1, 1), "date", 933211791),
    (date(2024, 2, 29), "date", 653915859),
    (NOON.replace(tzinfo=UTC), "timestamp", -1367554535),
    (NOON, "timestamp_ntz", -1367554535),
    (Decimal("-12.34"), "decimal(9,2)", 180183791),
    (Decimal("12345678901234567890.5"), "decimal(38,1)", 832414797),
    (None, "int", 42),
    (("a", 1), ("string", "int"), 532252686),
    ((1, "a"), ("int", "string"), -936062819),
    ((None, 1, "x"), ("string", "bigint", "string"), -1438117640),
]


@pytest.mark.parametrize(("key", "kind", "expected"), GOLDEN)
def test_a_key_has_the_hash_that_spark_gives_it(key: Any, kind: Kind, expected: int) -> None:
    assert hash_key(key, kind) == expected
    assert hash_keys([key], kind).tolist() == [expected]


@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_many_keys_are_hashed_as_each_of_them_is(kind: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=30))
    assert hash_keys(keys, kind).tolist() == [hash_key(key, kind) for key in keys]
    present = [key for key in keys if key is not None]
    assert hash_keys(present, kind).tolist() == [hash_key(key, kind) for key in present]


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4),
    partitions=st.integers(1, 300),
    data=st.data(),
)
def test_composite_keys_chain_and_go_to_a_partition_that_exists(
    kinds: list[str], partitions: int, data: st.DataObject
) -> None:
    kind = tuple(kinds)
    key_of = st.tuples(*(st.one_of(st.none(), VALUES[name]) for name in kind))
    keys = data.draw(st.lists(key_of, max_size=12))
    chained = []
    for key in keys:
        state = SEED
        for value, name in zip(key, kind, strict=True):
            state = hash_one(value, name, state)
        chained.append(state)
    assert hash_keys(keys, kind).tolist() == chained
    places = partition_of(keys, partitions, kind).tolist()
    assert places == [state % partitions for state in chained]
    assert all(0 <= place < partitions for place in places)


def test_arrays_of_numpy_are_hashed_as_the_values_that_they_hold() -> None:
    rng = np.random.default_rng(3)
    wholes = rng.integers(-(2**31), 2**31, 200)
    doubles = np.array([*rng.normal(size=200), np.nan, -0.0, np.inf])
    days = np.array(["2024-02-29", "NaT", "1969-12-31"], "datetime64[D]")
    for array, kind in (
        (wholes, "int"),
        (wholes.astype(np.int32), "bigint"),
        (wholes.astype(np.uint32), "bigint"),
        (doubles, "double"),
        (doubles.astype(np.float32), "float"),
        (wholes > 0, "boolean"),
    ):
        assert hash_column(array, kind).tolist() == [hash_one(x, kind) for x in array.tolist()]
    assert hash_column(days, "date").tolist() == [hash_one(x, "date") for x in days.tolist()]
    moments = days.astype("datetime64[us]")
    instants = [x if x is None else x.replace(tzinfo=UTC) for x in moments.tolist()]
    assert hash_column(moments, "timestamp").tolist() == [
        hash_one(x, "timestamp") for x in instants
    ]


def test_long_texts_among_short_ones_are_hashed_alike() -> None:
    rng = np.random.default_rng(4)
    lengths = [*range(64), 1_000, 1_001, 1_002, 1_003, 20_000]
    texts = ["".join(map(chr, rng.integers(32, 0x2FF, n))) for n in lengths] * 2
    assert hash_column(texts, "string").tolist() == [hash_one(x, "string") for x in texts]


def test_the_sign_of_zero_and_the_kind_of_not_a_number_do_not_matter() -> None:
    odd_nan = bits_to_double(0xFFF8_0000_0000_BEEF)
    for kind in ("float", "double"):
        assert hash_one(-0.0, kind) == hash_one(0.0, kind)
        assert hash_one(odd_nan, kind) == hash_one(math.nan, kind)
    assert (
        hash_column([odd_nan, -0.0], "double").tolist()
        == hash_column([math.nan, 0.0], "double").tolist()
    )


def test_the_same_number_goes_elsewhere_as_another_type() -> None:
    assert hash_one(5, "int") != hash_one(5, "bigint")
    assert hash_one(5, "int") == hash_one(5, "smallint") == hash_one(5, "tinyint")


def test_a_time_is_an_instant_whatever_its_zone() -> None:
    there = NOON.replace(tzinfo=timezone(timedelta(hours=5)))
    assert hash_one(there, "timestamp") == hash_one(there.astimezone(UTC), "timestamp")
    assert hash_one(there, "timestamp") != hash_one(NOON.replace(tzinfo=UTC), "timestamp")


def test_no_keys_have_no_hashes() -> None:
    for kind in ("int", "string", "double", ("int", "string")):
        assert len(hash_keys([], kind)) == 0


def test_keys_and_partitions_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="does not have the 2 columns int, string"):
        hash_keys([(1,)], ("int", "string"))
    with pytest.raises(InputError, match="does not have the 2 columns"):
        hash_key("ab", ("string", "string"))
    with pytest.raises(InputError, match=r"over 10+ partitions: use a whole number"):
        partition_of(["a"], 10**30, "string")
    with pytest.raises(InputError, match="over 0 partitions"):
        partition_of([1], 0, "int")
