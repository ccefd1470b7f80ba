"""Rates from CSV files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InputError
from tailrace.report.series import read_load, read_series

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_times_may_be_seconds_or_dates_and_gaps_are_gaps(tmp_path: Path) -> None:
    seconds = written(
        tmp_path / "a.csv", "time,rate", "0,100", "60,1 k/s", "180,300", "240,", "300,5"
    )
    series = read_series(seconds)
    assert series.step_ms == 60_000
    assert series.rates_per_s[:2] == (100.0, 1_000.0)
    assert [math.isnan(rate) for rate in series.rates_per_s] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    dates = written(
        tmp_path / "b.csv", "rate,time", *(f"{i},2026-01-01T00:0{i}:00" for i in range(5))
    )
    series = read_series(dates)
    assert (series.step_ms, series.start_us) == (60_000, 1_767_225_600_000_000)
    assert series.rates_per_s == (0.0, 1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["time,load", "0,1"], "no columns"),
        (["time,rate"], "no columns"),
        (["time,rate", "0,1", "60,many"], "Line 3"),
        (["time,rate", "noon,1"], "Line 2"),
        (["time,rate", "60,1", "0,2", "120,3"], "do not rise"),
        (["time,rate", "0,1", "60,2", "90,2", "200,3"], "not at equal steps"),
        (["time,rate", "0,1", "0.001,2", "1e9,3"], r"span 1,000,000,000,001 steps of 0.001 s"),
        (["time,rate", "0,1", "nan,2"], "Line 3 .* time outside of the years 10 to 5000"),
        (["time,rate", "0,1", "inf,2"], "Line 3 .* time outside"),
        (["time,rate", "0,1", "1e17,2"], "Line 3 .* time outside"),
        (["time,rate", "0001-01-01T00:00:00,2"], "Line 2 .* time outside"),
        (["time,rate", "0,1", "60,1e300"], "Line 3 .* a rate above 1e\\+12"),
        (["time,rate", "0,1", f"60,{'9' * 200_000}"], "are not CSV .*field larger"),
        (["time,rate", "0,\0"], "are not CSV|Line 2"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_series(written(tmp_path / "rates.csv", *lines))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file of rates"):
        read_series(tmp_path / "none.csv")


def test_a_file_that_is_no_text_or_too_long_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rates.csv"
    path.write_bytes(b"time,rate\n0,1\n60,\xff\n")
    with pytest.raises(InputError, match="is not UTF-8 text in line 3"):
        read_series(path)
    written(path, "time,rate", *(f"{n},1" for n in range(5)))
    monkeypatch.setattr("tailrace.report.series.MOST_ROWS", 4)
    with pytest.raises(InputError, match="have more than 4 rows"):
        read_series(path)


def test_a_byte_order_mark_and_next_to_nothing_are_read(tmp_path: Path) -> None:
    lines = ["\ufefftime,rate", "0,1e-300", "60,2", "120,3", "180,4"]
    assert read_series(written(tmp_path / "rates.csv", *lines)).rates_per_s == (0.0, 2.0, 3.0, 4.0)


def test_a_load_has_the_rates_of_a_file_and_in_a_gap_the_one_before(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time,rate", "0,100", "60,", "180,300", "240,")
    load = read_load(path)
    assert load.rates_per_s == (100.0, 100.0, 100.0, 300.0, 300.0)
    assert load.step_s == 60
    with pytest.raises(InputError, match="The first rate"):
        read_load(written(tmp_path / "b.csv", "time,rate", "0,", "60,5"))
