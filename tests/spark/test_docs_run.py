"""The examples in the documents run as they stand."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.spark.flow import Flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.report.data import Report

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 2.0
"""However long an example says that it runs."""

LONGEST_S = 60.0
"""A busy machine may need longer for the first batch."""

EXAMPLES = [
    pytest.param(code, id=f"{document.name}-{number}")
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, code in enumerate(MARKED.findall(document.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_and_a_flow_in_it_is_judged(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    reports: list[Report] = []

    def briefly(flow: Flow, seconds: float | None = None) -> Report:
        run = flow.start(spark)
        began_s = time.monotonic()
        for _ in run.looks(LONGEST_S, threading.Event()):
            lasted_s = time.monotonic() - began_s
            if run.controller.log.batches and lasted_s >= min(SECONDS, seconds or SECONDS):
                break
        reports.append(run.stop())
        return reports[-1]

    monkeypatch.setattr(Flow, "run", briefly)
    monkeypatch.chdir(tmp_path)
    # As a script would be: its functions travel to the workers by value.
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert len(reports) == code.count(".run(")
    for report in reports:
        assert report.data["records"] > 0
        assert {c["text"] for c in report.data["constraints"]} == {
            verdict["constraint"]
            for interval in report.intervals
            for verdict in interval["verdicts"]
        }
