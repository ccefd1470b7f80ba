"""The file given to ``tailrace run``: one sentence says what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import GOOD, USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


# --- the file and the flow in it -----------------------------------------------------------


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("target", ["job.py", "job.py:", ":flow", "", "flow"])
def test_a_target_without_file_or_flow_shows_how_to_write_one(
    tailrace: Callable[..., Said], target: str
) -> None:
    said = tailrace("run", target).sentence(USER)
    assert said == f"'{target}' does not name a flow: write FILE:FLOW, as in job.py:flow."


@pytest.mark.usefixtures("nothing_runs")
def test_a_missing_file_and_a_directory_are_named(
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        assert f"There is no file {path}:" in tailrace("run", f"{path}:flow").sentence(USER)


@pytest.mark.usefixtures("nothing_runs")
def test_a_file_that_is_not_python_is_refused(
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "job.txt").write_text(GOOD)
    said = tailrace("run", f"{tmp_path / 'job.txt'}:flow").sentence(USER)
    assert "is not a Python file" in said


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "name", "declared"),
    [(GOOD, "other", "flow"), (GOOD, "load", "flow"), ("", "f", "none")],
)
def test_a_flow_that_a_file_does_not_have_is_named_beside_those_that_it_has(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, name: str, declared: str
) -> None:
    path = job(text)
    said = tailrace("run", f"{path}:{name}").sentence(USER)
    assert said == f"{path} declares no flow '{name}': it declares {declared}."


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("x = 1\ny = = 2\n", 2, "SyntaxError: invalid syntax"),
        ("def f():\n  return 1\n   return 2\n", 3, "IndentationError: unexpected indent"),
        ("x = 1\n\nprint(undefined)\n", 3, "NameError: name 'undefined' is not defined"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: Expecting property name"),
        ("import no_such_package\n", 1, "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise ValueError('first\\nsecond')\n", 1, "ValueError: first."),
        ("raise ValueError\n", 1, "ValueError."),
        ("def flow():\n    return 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import tailrace as tr\nflow = tr.Flow('a')\n", 2, "TypeError: Flow.__init__() missing"),
    ],
)
def test_a_file_that_fails_is_named_with_its_own_line(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, line: int, why: str
) -> None:
    path = job(text)
    said = tailrace("run", f"{path}:flow").sentence(USER)
    assert said.startswith(f"{path}, line {line}, fails with {why}")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(3)\n", "job.py, line 2, fails with SystemExit: 3."),
        ("def __getattr__(name):\n    raise RuntimeError(name)\n", "line 2, fails with RuntimeErr"),
        ("x = '\0'\n", "job.py fails with SyntaxError: source code string cannot contain null"),
        ("x = 1\n" * 200_000, "job.py is too long for a Python file: name the one with the flow."),
    ],
)
def test_a_file_that_is_no_declaration_is_one_sentence(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, said: str
) -> None:
    assert said in tailrace("run", f"{job(text)}:flow").sentence(USER)


@pytest.mark.usefixtures("nothing_runs")
def test_a_name_that_no_file_can_have_is_one_sentence(tailrace: Callable[..., Said]) -> None:
    for name in ("a" * 5_000, "\x1b[31m", "a\nb"):
        assert "There is no file" in tailrace("run", f"{name}:flow").sentence(USER)


@pytest.mark.usefixtures("nothing_runs")
def test_a_function_that_wants_arguments_is_no_flow(
    tailrace: Callable[..., Said], job: Callable[[str], Path]
) -> None:
    path = job("def flow(load):\n    return load\n")
    said = tailrace("run", f"{path}:flow").sentence(USER)
    assert said.startswith(f"{path} fails with TypeError: flow() missing 1 required")


@pytest.mark.usefixtures("nothing_runs")
def test_no_output_directory_is_left_by_a_flow_that_is_not_there(
    tailrace: Callable[..., Said], job: Callable[[str], Path], tmp_path: Path
) -> None:
    tailrace("run", f"{job(GOOD)}:other", "--out", tmp_path / "out").sentence(USER)
    assert not (tmp_path / "out").exists()


# --- what a file declares ------------------------------------------------------------------

NONE = "is negative or not finite"
ZERO = "must be above zero"


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("flow.keep(mean='soon')", "the bound on the mean: 'soon' is not a duration: write"),
        ("flow.keep(mean='400 parsecs')", "'400 parsecs' is not a duration: write"),
        ("flow.keep(mean=None)", "None is not a duration: write"),
        ("flow.keep(mean='0 ms')", ZERO),
        ("flow.keep(p99=0)", ZERO),
        ("flow.keep(p99='-1 s')", NONE),
        ("flow.keep(mean=float('nan'))", NONE),
        ("flow.keep(mean='1 s', every='0 s')", ZERO),
        ("flow.keep(mean='1 s', every=-5)", NONE),
        ("flow.keep(p100='1 s')", "'p100' is not a statistic of latency"),
        ("flow.keep(p0='1 s')", "'p0' is not a statistic of latency"),
        ("flow.keep()", "Nothing to keep"),
        ("flow.keep(mean='1 s', path='parse')", "is not a tuple of step names"),
        ("tr.load.Constant('0 /s', '5 s')", ZERO),
        ("tr.load.Constant('-3 k/s', '5 s')", NONE),
        ("tr.load.Constant('3 k', '5 s')", "'3 k' is not a rate: write"),
        ("tr.load.Constant('3 k/s', '0 s')", ZERO),
        ("tr.load.Staircase('1 /s', '2 /s', steps=-1, step_s='1 s')", "not a whole number above"),
        ("tr.replay(load, partitions=0)", "cannot have 0 partitions: give it 1 or more"),
        ("tr.replay(load, partitions=-2)", "cannot have -2 partitions"),
        ("tr.replay(load, most_records=0)", "cannot hold at most 0 records"),
        ("tr.step('a', str, 'a string', scale=(0, 4))", "The scale (0, 4) of step 'a'"),
        ("tr.step('a', str, 'a string', scale=(-1, 4))", "The scale (-1, 4) of step 'a'"),
        ("tr.step('a', str, 'a string', scale=(4, 1))", "The scale (4, 1) of step 'a'"),
        ("tr.step('a', str, 'a string', on_error='ignore')", "on_error='ignore'"),
        ("tr.step('a', 'str', 'a string')", "Step 'a' was given a value of type str, which cannot"),
        ("tr.step('sink', str, 'a string')", "A step cannot be called 'sink'"),
        ("tr.Flow('f', load, str, sink=7)", "A value of type int is not a sink"),
        ("tr.Flow('f', load, str, tr.sinks.memory(), mode='force')", "mode='force' is not known"),
        ("tr.Flow('f', load, str, tr.sinks.memory(), interval='0 s')", ZERO),
        ("tr.Flow('f', load, str, tr.sinks.memory(), warm_up='-1 s')", NONE),
        (
            "tr.Flow('f', load, str, tr.sinks.memory(), executors=(4, 2))",
            "From 4 to 2 executors is not a range: give (least, most)",
        ),
        ("tr.Flow('f', load, str, tr.sinks.memory(), executors=(0, 2))", "is not a range"),
        (
            "tr.Flow('f', load, str, tr.sinks.memory(), executors=(1, 2), scaler='best')",
            "There is no scaler 'best': choose predictive, reactive",
        ),
    ],
)
def test_a_declaration_that_cannot_mean_anything_is_refused_with_its_reason(
    tailrace: Callable[..., Said], job: Callable[[str], Path], declared: str, why: str
) -> None:
    path = job(f"{GOOD}{declared}\n")
    assert why in tailrace("run", f"{path}:flow").sentence(USER)
