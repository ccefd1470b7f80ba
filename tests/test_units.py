from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import units
from tailrace.errors import UnitError

Read = Callable[[Any], float]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("400 ms", 400.0),
        ("5 s", 5_000.0),
        ("2 min", 120_000.0),
        ("1 h", 3_600_000.0),
        ("250us", 0.25),
        ("250 \u00b5s", 0.25),
        ("250 \u03bcs", 0.25),
        (" .5s ", 500.0),
        ("1e3 ms", 1_000.0),
        ("12", 12.0),
        (12, 12.0),
        (0.0, 0.0),
        (timedelta(seconds=1, microseconds=5), 1000.005),
    ],
)
def test_a_duration_is_read_in_milliseconds(text: str | float | timedelta, ms: float) -> None:
    assert units.duration_ms(text) == pytest.approx(ms, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("2 k/s", 2e3),
        ("2K/s", 2e3),
        ("1.5 M/s", 1.5e6),
        ("1 G/s", 1e9),
        ("600 /min", 10.0),
        ("36 k/h", 10.0),
        ("850 /s", 850.0),
        (2000, 2e3),
        ("2000", 2e3),
        (0, 0.0),
    ],
)
def test_a_rate_is_read_in_records_per_second(text: str | float, per_s: float) -> None:
    assert units.rate_per_s(text) == pytest.approx(per_s, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1 GiB", 2**30),
        ("10 kB", 10_000),
        ("1.5 KiB", 1536),
        ("1.46 GiB", round(1.46 * 2**30)),
        ("2TB", 2 * 10**12),
        ("512 B", 512),
        (512, 512),
        (512.0, 512),
        (2**70 + 1, 2**70 + 1),
    ],
)
def test_a_size_is_read_in_whole_bytes(text: str | float, size: int) -> None:
    assert units.size_bytes(text) == size
    assert isinstance(units.size_bytes(text), int)


@pytest.mark.parametrize(
    "nonsense",
    [
        *("fast", "", "ms", "-1", "1 2", "1e999", "1 furlong", "--3", "1..2", "0x10", "\u0663"),
        *(None, True, False, -1, -0.5, math.nan, math.inf, -(10**400), [1], b"5 s", 1j),
    ],
)
@pytest.mark.parametrize("read", [units.duration_ms, units.rate_per_s, units.size_bytes])
def test_nonsense_is_refused_in_one_sentence(read: Read, nonsense: object) -> None:
    with pytest.raises(UnitError) as caught:
        read(nonsense)
    message = str(caught.value)
    assert message.startswith(repr(nonsense))
    assert message.endswith(".")
    assert "\n" not in message


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(UnitError) as caught:
        units.duration_ms("fast")
    assert str(caught.value) == (
        '\'fast\' is not a duration: write a number and a unit, as in "400 ms" or "5 s".'
    )


@pytest.mark.parametrize(
    ("read", "foreign"),
    [
        (units.duration_ms, "5 B"),
        (units.duration_ms, "5 /s"),
        (units.duration_ms, "5 m"),
        (units.duration_ms, "5 S"),
        (units.rate_per_s, "5 s"),
        (units.rate_per_s, "5 k"),
        (units.rate_per_s, "5 m/s"),
        (units.size_bytes, "5 s"),
        (units.size_bytes, "5 kb"),
        (units.size_bytes, "0.5 B"),
        (units.size_bytes, 0.5),
    ],
)
def test_a_unit_of_another_kind_or_an_ambiguous_one_is_refused(read: Read, foreign: object) -> None:
    with pytest.raises(UnitError, match="is not"):
        read(foreign)


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(UnitError, match="negative"):
        units.duration_ms(timedelta(seconds=-1))


@pytest.mark.parametrize("bad", [0, "0 s", timedelta(0), "fast", -1])
def test_a_duration_that_must_be_positive_names_what_it_is_for(
    bad: str | float | timedelta,
) -> None:
    with pytest.raises(UnitError, match=r"^the bound: .*\.$"):
        units.positive_duration_ms(bad, "the bound")


def test_a_positive_duration_is_read_as_any_other() -> None:
    assert units.positive_duration_ms("5 s", "the bound") == 5000.0


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (412.0, "412 ms"),
        (1500.0, "1.5 s"),
        (120_000.0, "2 min"),
        (0.8, "0.8 ms"),
        (0.05, "50 us"),
        (0.0, "0 ms"),
        (999.7, "1 s"),
        (59_990.0, "1 min"),
        (3.6e9, "1000 h"),
        (-1500.0, "-1.5 s"),
        (math.inf, "inf"),
    ],
)
def test_a_duration_is_shown_in_the_unit_that_reads_best(ms: float, shown: str) -> None:
    assert units.show_duration(ms) == shown


@pytest.mark.parametrize(
    ("per_s", "shown"),
    [(2000.0, "2 k/s"), (850.0, "850 /s"), (1.5e6, "1.5 M/s"), (0.0, "0 /s"), (0.001, "0.001 /s")],
)
def test_a_rate_is_shown_in_the_unit_that_reads_best(per_s: float, shown: str) -> None:
    assert units.show_rate(per_s) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**30, "1 GiB")],
)
def test_a_size_is_shown_in_binary_units(size: int, shown: str) -> None:
    assert units.show_size(size) == shown


HALF_A_PRINTED_DIGIT = 0.5e-2  # of three significant digits, at worst 1.00


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_what_is_shown_of_a_duration_reads_back_to_the_printed_precision(ms: float) -> None:
    read = units.duration_ms(units.show_duration(ms))
    assert read == pytest.approx(ms, rel=HALF_A_PRINTED_DIGIT * 1.001)


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_what_is_shown_of_a_rate_reads_back_to_the_printed_precision(per_s: float) -> None:
    read = units.rate_per_s(units.show_rate(per_s))
    assert read == pytest.approx(per_s, rel=HALF_A_PRINTED_DIGIT * 1.001)


@given(st.integers(min_value=0, max_value=2**62))
def test_what_is_shown_of_a_size_reads_back_to_the_printed_precision(size: int) -> None:
    read = units.size_bytes(units.show_size(size))
    assert read == pytest.approx(size, rel=HALF_A_PRINTED_DIGIT * 1.001, abs=0.5)


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_showing_twice_shows_the_same(ms: float) -> None:
    shown = units.show_duration(ms)
    assert units.show_duration(units.duration_ms(shown)) == shown


@given(st.text(max_size=12))
def test_any_text_is_either_a_duration_or_refused(text: str) -> None:
    try:
        read = units.duration_ms(text)
    except UnitError:
        return
    assert 0 <= read < math.inf
