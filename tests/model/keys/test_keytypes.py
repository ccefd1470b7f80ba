"""Types of keys: which values they take, and keys read back from texts."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.keys.keytypes import read_key
from tailrace.model.keys.murmur import hash_column, hash_one
from tests.model.keys.conftest import NOON, VALUES


def test_other_names_of_a_type_mean_the_same() -> None:
    for name, other in (("long", "bigint"), ("INTEGER", "int"), (" Short ", "smallint")):
        assert hash_one(77, name) == hash_one(77, other)
    assert hash_one(Decimal(3), "decimal(9)") == hash_one(Decimal("3.0"), "decimal( 9, 0 )")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (2**31, "int"),
        (-(2**63) - 1, "bigint"),
        (200, "tinyint"),
        (1.0, "bigint"),
        ("1", "int"),
        (1, "string"),
        (b"x", "string"),
        ("x", "binary"),
        ("\ud800", "string"),
        ("1.5", "double"),
        (1, "boolean"),
        (NOON, "date"),
        (NOON, "timestamp"),
        (NOON.replace(tzinfo=UTC), "timestamp_ntz"),
        (Decimal("1.234"), "decimal(9,2)"),
        (Decimal(10**9), "decimal(9,0)"),
        (Decimal("NaN"), "decimal(9,0)"),
        (1.5, "decimal(9,2)"),
    ],
)
def test_a_value_that_is_not_of_the_type_is_refused_with_what_to_give(key: Any, kind: str) -> None:
    with pytest.raises(InputError, match=r"cannot be a Spark .*: give "):
        hash_one(key, kind)
    with pytest.raises(InputError, match=r"cannot be a Spark .*: give "):
        hash_column([None, key], kind)
    with pytest.raises(InputError, match=r"cannot be a Spark .*: give "):
        hash_column([key], kind)


def test_an_array_with_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="The key 2147483648 cannot be a Spark int"):
        hash_column(np.array([1, 2**31]), "int")
    with pytest.raises(InputError, match="The key 9223372036854775808 cannot be a Spark bigint"):
        hash_column(np.array([2**63], np.uint64), "bigint")
    with pytest.raises(InputError, match="cannot be a Spark int"):
        hash_column(np.array([1.0, 2.0]), "int")


@pytest.mark.parametrize("kind", ["map<string,int>", "array<int>", "string collate UTF8_LCASE", ""])
def test_a_type_whose_hash_is_not_known_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="route by a column of type"):
        hash_one("x", kind)


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"binary"}))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_key_that_was_written_as_text_is_read_back_to_the_same_place(
    kind: str, data: st.DataObject
) -> None:
    key = data.draw(VALUES[kind])
    assert hash_one(read_key(str(key), kind), kind) == hash_one(key, kind)


def test_a_null_is_read_back_as_null_but_for_texts() -> None:
    assert read_key("None", "int") is None
    assert read_key("None", "string") == "None"


def test_a_text_that_is_no_key_of_the_type_is_refused() -> None:
    for text, kind in (("x", "int"), ("yes", "boolean"), ("b'x'", "binary"), ("x", "decimal(9,2)")):
        with pytest.raises(InputError, match="cannot be read as a key of Spark type"):
            read_key(text, kind)
