from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

MOVES = 5
"""``make elastic`` makes twenty."""


def test_moves_and_kills_of_executors_lose_nothing_and_count_nothing_twice(
    tmp_path: Path,
) -> None:
    """On a cluster of its own: executors come, go and are killed under two flows."""
    script = Path(__file__).with_name("elastic.py")
    done = subprocess.run(
        [sys.executable, str(script), str(MOVES), "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    came = json.loads(done.stdout.splitlines()[-1])
    assert came["archived"], "an executor did not start from the archive of classes"
    assert len(came["moves"]) + came["kills"] == MOVES
    assert came["kills"] == MOVES // 4
    assert came["seen"].keys() == {"1"}, "a record was passed on twice"
    assert came["seen_all"], "a record is missing"
    assert came["counted"].keys() == {"1"}, "a count was reached twice"
    assert came["counted_all"], "a count was left out"
    assert came["counted_records"], "a record was not counted"
