from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.errors import LoadError
from tailrace.load import Trace

Log = Callable[[str], Path]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    def write(text: str) -> Path:
        path = tmp_path / "log.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def keys_of(trace: Trace) -> list[str]:
    return [trace.key_names[index] for index in trace.key]


def test_records_are_sorted_by_time_and_ties_keep_their_order(log: Log) -> None:
    trace = Trace.from_csv(log("time,key\n3,late\n1,first\n2,b\n1,second\n2,a\n"))
    assert keys_of(trace) == ["first", "second", "b", "a", "late"]
    assert trace.due_us.tolist() == [0, 0, 1_000_000, 1_000_000, 2_000_000]
    assert trace.payloads is None
    assert trace.size.tolist() == [0] * 5


@pytest.mark.parametrize(
    ("unit", "first", "second", "gap_us"),
    [
        ("s", "1409529600.123456", "1409529601.123457", 1_000_001),
        ("ms", "1409529600123.5", "1409529600124.25", 750),
        ("us", "1409529600123456", "1409529600123459", 3),
        ("us", " 5", "1e3 ", 995),
        ("iso", "2014-08-01T12:00:00.5Z", "2014-08-01T14:00:00.600001+02:00", 100_001),
        ("iso", "2014-08-01 12:00:00", "2014-08-01 12:00:01.25", 1_250_000),
        ("iso", "2014-08-01", "2014-08-02", 86_400_000_000),
        (
            "iso",
            "1700-01-01",
            "2262-01-01",
            (date(2262, 1, 1) - date(1700, 1, 1)).days * 86_400_000_000,
        ),
    ],
)
def test_times_are_read_to_the_microsecond(
    log: Log, unit: Any, first: str, second: str, gap_us: int
) -> None:
    trace = Trace.from_csv(log(f"time,key\n{first},a\n{second},b\n"), unit=unit)
    assert trace.due_us.tolist() == [0, gap_us]


def test_columns_may_have_other_names_and_payloads_any_text(log: Log) -> None:
    text = '\ufeffwhen,noise,who,what\n2,?,7,"two\nlines, é"\n1,?,07,\n3,?,7,plain\n'
    trace = Trace.from_csv(log(text), time="when", key="who", payload="what", unit="ms")
    assert keys_of(trace) == ["07", "7", "7"]
    assert list(trace.payloads or ()) == ["", "two\nlines, é", "plain"]
    assert trace.size.tolist() == [0, 13, 5]


def test_a_long_log_is_read_whole_and_its_many_ties_keep_their_order(log: Log) -> None:
    times = np.random.default_rng(3).integers(0, 5000, 50_000).tolist()
    rows = [(time, f"k{time % 97}", f"p{at}") for at, time in enumerate(times)]
    text = "time,key,text\n" + "".join(f"{time},{key},{text}\n" for time, key, text in rows)
    trace = Trace.from_csv(log(text), payload="text", unit="us")
    rows.sort(key=lambda row: row[0])
    assert trace.due_us.tolist() == [time - rows[0][0] for time, _, _ in rows]
    assert keys_of(trace) == [key for _, key, _ in rows]
    assert list(trace.payloads or ()) == [text for _, _, text in rows]


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"time,key\n1,a\n2,b\n"))
    assert len(Trace.from_csv(path)) == 2


def test_a_log_becomes_a_trace_file_and_comes_back(log: Log, tmp_path: Path) -> None:
    trace = Trace.from_csv(log("time,key,text\n1,a,x\n2,b,yy\n"), payload="text")
    trace.save(tmp_path / "a.trace")
    assert Trace.load(tmp_path / "a.trace") == trace


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("", {}, "cannot be read as CSV"),
        ("time,key\n", {}, "has no records"),
        ("t,key\n1,a\n", {}, r"one column 'time'; its columns are 't', 'key'"),
        ("time,key\n1,a\n", {"payload": "text"}, "one column 'text'"),
        ("time,time,key\n1,2,a\n", {}, "one column 'time'"),
        ("time,key\n1,a\nsoon,b\n", {}, "Record 2 .* the time 'soon'"),
        ("time,key\n,a\n", {}, "Record 1 .* the time ''"),
        ("time,key\n1,a\n2,b\nnan,c\n", {}, "Record 3 .* the time 'nan'"),
        ("time,key\n2014-08-01,a\n", {}, '"iso" for dates'),
        ("time,key\n1,a\n", {"unit": "iso"}, "dates and times"),
        ("time,key\n2014-08-01,a\n2014-08-01T00:00Z,b\n", {"unit": "iso"}, "of one form"),
        ("time,key\n0,a\n1e300,b\n", {}, "too far apart"),
        ("time,key\n1,a,extra\n", {}, "cannot be read as CSV"),
        ("time,key\n1,a\n", {"unit": "h"}, "is not a unit of time"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_in_one_sentence(
    log: Log, text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        Trace.from_csv(log(text), **options)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"time,key\n1,\xff\xfe\n")
    names = tmp_path / "names.csv"
    names.write_bytes(b"time,key,\xff\xfe\n1,a,b\n")
    for bad in (path, names, tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(LoadError, match="cannot be read"):
            Trace.from_csv(bad)
