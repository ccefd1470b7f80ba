"""How elastic runs are compared: on runs that were made up, and on those that are committed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from tailrace.bench import scale
from tailrace.spark.running import send_by_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run(name: str, kept: float, core_seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "fulfilled_share": kept,
        "reconfigurations": 3,
        "core_seconds": core_seconds,
        "settling_s": 4.0,
        "overshoot": None,
    }


@pytest.mark.parametrize(
    ("share", "best"),
    [(0.95, "6 executors"), (0.98, "7 executors"), (1.0, "8 executors")],
)
def test_the_best_constant_number_is_the_cheapest_that_keeps_as_much(
    share: float, best: str
) -> None:
    constants = [
        run("8 executors", 0.99, 800),
        run("7 executors", 0.98, 700),
        run("6 executors", 0.96, 600),
        run("5 executors", 0.7, 500),
    ]
    assert scale._best(constants, share)["name"] == best


@pytest.mark.parametrize(
    ("enough", "tried"), [(5, (8, 6, 5, 4)), (6, (8, 6, 5)), (7, (8, 7, 6)), (9, (8, 7, 6))]
)
def test_the_fewest_constant_executors_are_found_from_what_the_model_says(
    monkeypatch: pytest.MonkeyPatch, enough: int, tried: tuple[int, ...]
) -> None:
    def found(_: object, name: str, make: Any, *__: object) -> dict[str, Any]:
        size = make().size
        return run(name, 0.97 if size >= enough else 0.1 * size, 100.0 * size)

    def done(_: str, made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return made()

    monkeypatch.setattr(scale, "_run", found)
    ours = run("predictive", 0.96, 400) | {"steps": [{"least": 2}, {"least": 6}, {"least": None}]}
    runs = scale._constants(None, done, ours, 60.0, quick=False)  # type: ignore[arg-type]
    assert [one["name"] for one in runs] == [f"{size} executors" for size in tried]
    assert scale._best(runs, 0.96)["name"] == f"{min(enough, 8)} executors"


def test_the_table_has_a_row_for_every_run() -> None:
    named = {"predictive": (1, 2, 2), "Th-Rule": (1, 2, 1), "8 executors": (8, 8, 8)}
    runs = [run(name, 0.9, 4_321) | {"steps": stepped(*sizes)} for name, sizes in named.items()]
    result = {"bound_ms": 1_000.0, "policies": runs[:2], "constants": runs[2:]}
    shown = scale.table(result)
    assert shown.row_count == 3
    cells = {str(column.header): list(column.cells) for column in shown.columns}
    assert cells["policy"] == list(named)
    assert cells["moves"] == ["1", "2", "0"]
    assert cells["core s"] == ["4,321"] * 3


def test_what_spark_is_told_lets_it_have_as_many_as_every_other() -> None:
    assert scale.OWN["spark.dynamicAllocation.maxExecutors"] == str(scale.MOST)
    assert scale.OWN["spark.cores.max"] == str(scale.MOST)


def stepped(*sizes: int) -> list[dict[str, Any]]:
    """Control steps of 5 s on these numbers of executors."""
    return [
        {"at_s": 5.0 * number, "rate_per_s": 100.0, "size": size, "least": 1, "latency_ms": 900.0}
        for number, size in enumerate(sizes)
    ]


def test_moves_are_counted_by_steps_of_the_load() -> None:
    assert scale._most_moves(stepped(1, 1, 1, 1), 10.0) == 0
    assert scale._most_moves(stepped(1, 2, 3, 3, 4, 4), 10.0) == 1
    assert scale._most_moves(stepped(1, 1, 2, 3, 4, 4), 10.0) == 2


def test_runs_are_drawn_beside_the_best_constant_number(tmp_path: Path) -> None:
    ours, constant = run("predictive", 0.97, 400), run("2 executors", 0.99, 800)
    ours["steps"], constant["steps"] = stepped(1, 2, 2), stepped(2, 2, 2)
    result = {"bound_ms": 1_000.0, "policies": [ours], "best_constant": constant}
    assert scale.draw(result, tmp_path / "scale.svg").read_text("utf-8").count("2 executors") == 1


def test_the_step_brings_nothing_of_the_benchmark_to_a_worker() -> None:
    """An executor that starts would have to import it, which takes seconds."""
    send_by_value(scale)
    code = """
import pickle, sys
pickle.load(sys.stdin.buffer)
print([name for name in sys.modules if name.startswith("tailrace")])
"""
    step = cloudpickle.dumps(scale.answer)  # type: ignore[no-untyped-call]
    told = subprocess.run([sys.executable, "-c", code], input=step, capture_output=True, check=True)
    assert told.stdout == b"[]\n"
