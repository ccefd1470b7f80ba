"""A real process that is killed while it writes, again and again."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path

from tailrace.state.store import Store


def test_a_process_that_is_killed_at_any_moment_takes_up_its_state_exactly(tmp_path: Path) -> None:
    draw = random.Random(20_260_101)
    script = Path(__file__).with_name("crashing.py")
    for life in range(12):
        command = [sys.executable, str(script), str(tmp_path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = 0
            for _ in range(draw.randrange(1, 60)):
                lines += bool(process.stdout.readline())
            spin = draw.randrange(20_000)
            while spin:  # some microseconds, so that it is not always the same place
                spin -= 1
            process.kill()
            said = process.stderr.read().decode()
            assert said == ""
            assert lines > 0
    child = runpy.run_path(str(script))
    salts = child["committed"](tmp_path / "commits")
    assert len(set(salts)) > 6
    store = Store(tmp_path / "state")
    store.open(len(salts) - 1)
    assert {key: state["n"] for key, state in store.values.items()} == child["expected"](salts)
