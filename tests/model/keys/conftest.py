"""Values of every type that a key may have."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

NOON = datetime(2024, 2, 29, 12, 34, 56, 789_012)


def bits_to_double(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "double": st.integers(0, 2**64 - 1).map(bits_to_double),
    "string": st.text(max_size=40),
    "binary": st.binary(max_size=40),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(12,3)": st.integers(1 - 10**12, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    "decimal(30,0)": st.integers(-(10**27), 10**27).map(Decimal),
}
