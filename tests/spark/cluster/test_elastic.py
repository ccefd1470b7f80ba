from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster.elastic import wrong

pytestmark = [pytest.mark.spark, pytest.mark.apart]

MOVES = 5
"""``make elastic`` makes twenty."""


@pytest.mark.nightly
def test_moves_and_kills_of_executors_lose_nothing_and_count_nothing_twice(
    tmp_path: Path,
) -> None:
    """On a cluster of its own: executors come, go and are killed under two flows."""
    script = Path(__file__).with_name("elastic.py")
    without_settings = {k: v for k, v in os.environ.items() if k != "SPARK_CONF_DIR"}
    done = subprocess.run(
        [sys.executable, str(script), str(MOVES), "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**without_settings, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    came = json.loads(done.stdout.splitlines()[-1])
    assert min(came["records"]) > 0


FINE: dict[str, Any] = {
    "archived": True,
    "moves": [3, 1, 2],
    "sizes": [1, 3, 2, 1, 2],
    "refused": 0,
    "kills": 1,
    "seen": {"1": 500},
    "seen_all": True,
    "counted": {"1": 500},
    "counted_all": True,
    "counted_records": True,
}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, []),
        ({"sizes": [1, 3, 2]}, ["a move was not made"]),
        ({"sizes": [1, 3, 2], "refused": 1}, []),
        ({"seen": {"1": 499, "2": 1}}, ["a record was passed on twice"]),
        ({"counted_all": False}, ["a count was left out"]),
        ({"kills": 0}, ["moves or kills are missing", "no executor was killed"]),
    ],
)
def test_the_drill_says_what_went_wrong(other: dict[str, Any], said: list[str]) -> None:
    assert wrong(FINE | other, 4) == said
