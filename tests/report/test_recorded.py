"""The load of an earlier run, from the file of its report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.errors import InputError
from tailrace.report.recorded import read_recorded

if TYPE_CHECKING:
    from pathlib import Path

START_US = 1_790_000_000_000_000


def written(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), "utf-8")
    return path


def intervals(*pairs: tuple[float, int]) -> dict[str, Any]:
    """A report with records by the second at which their interval began."""
    found = [{"start_us": START_US + round(at_s * 1e6), "records": n} for at_s, n in pairs]
    return {"interval_ms": 5_000.0, "intervals": found}


def test_rates_are_records_over_the_length_of_intervals_and_0_where_there_is_none(
    tmp_path: Path,
) -> None:
    load = read_recorded(written(tmp_path / "r.json", intervals((0, 500), (5, 100), (15, 50))))
    assert load.duration_s == 20
    assert load.rates_per_s == (100, 20, 0, 10)
    assert load.expected(np.array([20.0])).tolist() == [650]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "is no report of a run"),
        ({"interval_ms": 5_000}, "is no report of a run"),
        ({"interval_ms": 5_000, "intervals": []}, "is no report of a run"),
        ({"intervals": [{"start_us": 0, "records": 1}]}, "has null as 'interval_ms'"),
        ({**intervals((0, 1)), "interval_ms": 0}, "has 0 as 'interval_ms'"),
        ({**intervals((0, 1)), "interval_ms": True}, "has true as 'interval_ms'"),
        ({"interval_ms": 5_000, "intervals": [{"records": 1}]}, "has null as 'start_us'"),
        ({"interval_ms": 5_000, "intervals": [7]}, "has null as 'start_us'"),
        (intervals((0, -1)), "has -1 as 'records'"),
        (intervals((5, 1), (0, 1)), "do not follow one another"),
        (intervals((0, 1), (5e9, 1)), "do not follow one another"),
    ],
)
def test_what_is_no_report_is_one_sentence(tmp_path: Path, data: Any, said: str) -> None:
    path = written(tmp_path / "r.json", data)
    with pytest.raises(InputError, match=said) as refused:
        read_recorded(path)
    assert str(refused.value).endswith(".")
