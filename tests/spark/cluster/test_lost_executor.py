from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

DRILL = Path(__file__).with_name("lost_executor.py")


def test_a_real_time_flow_goes_on_when_an_executor_is_lost_and_a_start_waits_for_slots(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, str(DRILL), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    came = json.loads(done.stdout)
    assert came["exact"], came
    assert came["rows"] > 0
    assert any("Executors were lost and their batches repeated" in said for said in came["notes"])
