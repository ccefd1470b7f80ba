"""How elastic runs are compared: on runs that were made up, and on those that are committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from bench import scale
from tailrace.spark.from_file import send_by_value

if TYPE_CHECKING:
    from collections.abc import Callable


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
    runs = scale._constants(None, done, ours, scale.STAIRS, quick=False)  # type: ignore[arg-type]
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


# --- the runs that are committed -------------------------------------------------------------

RULES = ("Th-Rule", "Lat-Rule", "SPL")
"""Not DS2, which goes by a model of its own: the rate that a unit handles when it is busy."""


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found = Path(__file__).parents[2] / "bench" / "results" / "scale.json"
    kept: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return kept


@pytest.fixture(scope="module")
def ran(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The runs by name."""
    return {one["name"]: one for one in (*result["policies"], *result["constants"])}


def test_every_policy_ran_under_the_whole_load(ran: dict[str, dict[str, Any]]) -> None:
    assert {*scale.POLICIES, scale.SPARKS_OWN, "8 executors"} <= ran.keys()
    # Of a batch that has not ended with the load nothing is known; the worst take 20 s.
    whole_s = scale.STAIRS.duration_s - scale.STAIRS.step_s
    for name, one in ran.items():
        assert one["steps"][-1]["at_s"] >= whole_s - 30.0, name


def test_the_bound_is_kept_at_four_fifths_of_what_a_constant_number_costs(
    result: dict[str, Any], ran: dict[str, dict[str, Any]]
) -> None:
    ours, best = ran["predictive"], result["best_constant"]
    assert ours["fulfilled_share"] >= 0.95
    assert best["fulfilled_share"] >= ours["fulfilled_share"]
    assert ours["core_seconds"] <= 0.8 * best["core_seconds"]


def test_after_each_step_of_the_load_few_moves_are_made_and_all_is_given_back_at_the_end(
    ran: dict[str, dict[str, Any]],
) -> None:
    """The size is right where it keeps the bound without another move: from half of a step on."""
    ours, step_s = ran["predictive"], scale.STAIRS.step_s
    assert ours["most_moves"] <= 3
    late = [step["at_s"] % step_s for step in ours["steps"] if step["latency_ms"] > scale.BOUND_MS]
    assert max(late, default=0.0) < step_s / 2
    assert max(step["size"] for step in ours["steps"]) >= 6
    assert ours["steps"][-1]["size"] <= 2
    assert ours["decision_ms"] < 50


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_misses_less_nor_moves_less(ran: dict[str, dict[str, Any]], rule: str) -> None:
    ours, theirs = ran["predictive"], ran[rule]
    assert ours["violations"] < theirs["violations"]
    assert ours["reconfigurations"] <= theirs["reconfigurations"]
