"""A report as people hold it: attributes, a frame, a notebook, a file."""

from __future__ import annotations

import json
import math
import re
import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.report.data import KEPT, Report

if TYPE_CHECKING:
    from pathlib import Path


def test_what_people_look_for_first_is_an_attribute(controlled: Report) -> None:
    data = controlled.data
    assert controlled.records == sum(interval["records"] for interval in controlled.intervals)
    assert controlled.latency is not None
    assert {
        "mean_ms": controlled.latency.mean_ms,
        "p50_ms": controlled.latency.p50_ms,
        "p95_ms": controlled.latency.p95_ms,
        "p99_ms": controlled.latency.p99_ms,
        "max_ms": controlled.latency.max_ms,
    } == data["latency_ms"]
    assert [c["text"] for c in controlled.constraints] == [c["text"] for c in data["constraints"]]
    assert controlled.decisions == data["decisions"]
    assert controlled.notes == data["notes"]
    assert controlled.failure is None


def test_all_is_kept_if_every_constraint_held_often_enough(controlled: Report) -> None:
    def with_shares(*shares: float | None) -> Report:
        return Report({"constraints": [{"fulfilled_share": share} for share in shares]})

    assert with_shares(KEPT, 1.0).kept
    assert with_shares(KEPT, None).kept
    assert with_shares(1.0, KEPT - 0.01).kept is False
    assert with_shares(None).kept is None
    assert with_shares().kept is None
    shares = [constraint["fulfilled_share"] for constraint in controlled.constraints]
    assert controlled.kept == all(share >= KEPT for share in shares)


def test_a_run_that_measured_nothing_has_no_latency_and_nothing_kept(empty: Report) -> None:
    assert empty.latency is None
    assert empty.kept is None
    assert math.isnan(empty.fulfilled_share)
    assert len(empty.to_pandas()) == 0


def test_the_frame_has_a_row_for_every_interval_by_the_time_it_began(controlled: Report) -> None:
    frame = controlled.to_pandas()
    assert frame.index.is_monotonic_increasing
    assert str(frame.index.tz) == "UTC"
    assert [int(start.timestamp() * 1e6) for start in frame.index] == [
        interval["start_us"] for interval in controlled.intervals
    ]
    assert frame["records"].sum() == controlled.records
    last = controlled.intervals[-1]
    assert frame["mean_ms"].iloc[-1] == last["mean_ms"]
    assert frame["plan.interval_ms"].iloc[-1] == last["plan"]["interval_ms"]
    assert frame["breakdown_ms.batching"].iloc[-1] == last["breakdown_ms"]["batching"]


def test_a_report_is_one_line_and_says_that_it_failed(controlled: Report, empty: Report) -> None:
    said = repr(controlled)
    assert "\n" not in said
    assert f"{controlled.records:,} records" in said
    assert f"{controlled.fulfilled_share:.1%} kept" in said
    assert "failed" not in said
    assert repr(empty) == "<Report of 'sentiments': 0 records, mean -, - kept>"
    assert repr(Report()) == "Report()"
    assert repr(replace(empty, data={**empty.data, "failure": "No."})).endswith(", failed>")


def test_the_summary_is_shown_on_standard_output(
    controlled: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    controlled.show()
    out = capsys.readouterr().out
    assert out.startswith("sentiments")
    assert f"{controlled.records:,} records" in out


def test_a_notebook_gets_small_html_in_which_every_name_is_text(controlled: Report) -> None:
    hostile = "<script>alert('x')</script>&[bold]"
    named = Report({**controlled.data, "flow": hostile, "notes": [hostile]})
    made = named._repr_html_()
    assert re.findall(r"</?(\w+)", made).count("script") == 0
    assert made.count("&lt;script&gt;") == 2
    assert "&amp;[bold]" in made
    assert set(re.findall(r"<(\w+)", made)) <= {"pre", "span"}
    assert not re.search(r"https?:|src=|href=|@import", made)
    assert len(made) < 50_000


def test_a_report_is_saved_as_a_whole_or_not_at_all(controlled: Report, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    controlled.save(path)
    assert json.loads(path.read_text()) == controlled.data
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(EnvironmentUnfit, match=r"report\.json cannot be written .* free some"):
            replace(controlled, data={"flow": "x" * 10_000}).save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads(path.read_text()) == controlled.data
    assert [place.name for place in path.parent.iterdir()] == ["report.json"]


def test_a_link_and_a_device_stay_what_they_are(controlled: Report, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("")
    (tmp_path / "link.json").symlink_to("real.json")
    controlled.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == controlled.data
    with pytest.raises(EnvironmentUnfit, match="No space left on device"):
        controlled.save("/dev/full")
    with pytest.raises(InputError, match="Is a directory"):
        controlled.save(tmp_path)
