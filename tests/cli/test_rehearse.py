"""``tailrace rehearse``: loads and scalers of every kind, one of them or several side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import tailrace as tr
from tailrace.load import Constant, First, Staircase
from tailrace.profile.file import load as load_profile
from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

CAREFUL = """
from tailrace.policy.scaling.sizing import Move

class Careful:
    name = "careful"

    def decide(self, load):
        return Move(3, f"Three are enough for {load.rate_per_s:.0f} /s.")

def made():
    return Careful()

there = Careful()
nothing = 7

class Broken(Careful):
    def decide(self, load):
        return 1 / 0
"""


@pytest.fixture
def primes(tmp_path: Path) -> Path:
    """A step that waits, on one core of an executor."""
    path = tmp_path / "primes.json"
    steps = [{"name": "test", "service_ms": 5.0, "cv": 0.05, "cpu_share": 0.1}]
    path.write_text(
        json.dumps({"name": "primes", "rate_per_s": 100, "cores": 1, "steps": steps}), "utf-8"
    )
    return path


@pytest.fixture
def careful(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CAREFUL, "utf-8")
    return path


def test_a_rehearsal_is_the_report_of_a_run(
    asked: Callable[..., Any], primes: Path, tmp_path: Path
) -> None:
    load = ("--load", "staircase:100/s,300/s,2,10s", "--mean", "1 s", "--executors", "1:4")
    found = asked("rehearse", primes, *load, "--scaler", "reactive", "--out", tmp_path / "out")
    same = tr.rehearse(
        load_profile(primes),
        Staircase(100, 300, 2, 10),
        mean="1 s",
        scaler="reactive",
        executors=(1, 4),
    )
    assert found["intervals"] == same.data["intervals"]
    assert json.loads((tmp_path / "out" / "report.json").read_text("utf-8")) == found
    assert (tmp_path / "out" / "report.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("constant:100/s,15s", 100),
        ("burst:100/s,200/s,5s,5s,15s", 133),
        ("sine:100/s,50/s,15s,15s", 100),
    ],
)
def test_a_load_in_words_has_its_records(
    asked: Callable[..., Any], primes: Path, text: str, per_s: float
) -> None:
    found = asked("rehearse", primes, "--load", text, "--mean", "1 s")
    assert found["records"] == pytest.approx(15 * per_s, rel=0.1)


def test_rates_of_a_file_are_rehearsed_and_gaps_have_the_rate_before(
    asked: Callable[..., Any], primes: Path, tmp_path: Path
) -> None:
    rates = tmp_path / "week.csv"
    rates.write_text("time,rate\n0,50\n10,100\n20,\n30,20\n")
    found = asked("rehearse", primes, "--load", rates, "--mean", "1 s", "--warm-up", "0 s")
    seen = [interval["rate_per_s"] for interval in found["intervals"]]
    assert seen == pytest.approx([50, 50, 100, 100, 100, 100, 20, 20], rel=0.25)


def test_the_recorded_run_itself_is_rehearsed_with_as_many_records(
    asked: Callable[..., Any], primes: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.json"
    first = asked("rehearse", primes, "--load", "staircase:50/s,150/s,2,10s", "--mean", "1 s")
    run.write_text(json.dumps(first))
    again = asked("rehearse", primes, "--load", run, "--mean", "1 s", "--seed", "2")
    assert len(again["intervals"]) == len(first["intervals"])
    assert again["records"] == pytest.approx(first["records"], rel=0.05)


def test_only_the_beginning_of_a_load_is_rehearsed_if_that_is_asked_for(
    asked: Callable[..., Any], primes: Path
) -> None:
    load = ("--load", "constant:100/s,10h", "--seconds", "20")
    found = asked("rehearse", primes, *load, "--mean", "1 s")
    same = tr.rehearse(load_profile(primes), First(Constant(100, "10 h"), 20), mean="1 s")
    assert found["intervals"] == same.data["intervals"]
    assert found["records"] == pytest.approx(2_000, rel=0.1)


def test_the_rows_of_a_comparison_are_those_of_single_rehearsals(
    asked: Callable[..., Any], primes: Path, tmp_path: Path
) -> None:
    common = ("rehearse", primes, "--load", "staircase:100/s,400/s,2,15s", "--mean", "1 s")
    elastic = (*common, "--executors", "1:6")
    out = tmp_path / "out"
    both = asked(*elastic, "--compare", "predictive,reactive,5", "--out", out)
    alone = [
        asked(*elastic, "--scaler", "predictive"),
        asked(*elastic, "--scaler", "reactive"),
        asked(*common, "--executors", "5"),
    ]
    assert [run["name"] for run in both["runs"]] == ["predictive", "reactive", "5 executors"]
    clocked = {"decision_ms"}
    for number, (row, report) in enumerate(zip(both["runs"], alone, strict=True), start=1):
        figures = {"fulfilled_share": report["fulfilled_share"], **report["scaling"]}
        assert {k: v for k, v in row.items() if k in figures and k not in clocked} == {
            k: v for k, v in figures.items() if k not in clocked
        }
        assert row["mean_ms"] == report["latency_ms"]["mean_ms"]
        kept = json.loads((out / f"report-{number}.json").read_text("utf-8"))
        assert kept["intervals"] == report["intervals"]
    assert (out / "comparison.png").stat().st_size > 10_000


def test_a_comparison_is_a_table_that_fits_on_a_screen(
    tailrace: Callable[..., Said], primes: Path
) -> None:
    common = ("--load", "constant:200/s,20s", "--mean", "1 s", "--executors", "1:4")
    said = tailrace("rehearse", primes, *common, "--compare", "predictive,4")
    assert said.code == 0, said.err
    assert "mean <= 1 s" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    four = next(line for line in said.out.splitlines() if "4 executors" in line)
    assert [cell.strip() for cell in four.split("│")[2:5]] == ["0", "0", "0.0%"]


@pytest.mark.parametrize("name", ["Careful", "made", "there"])
def test_a_scaler_of_the_user_s_own_decides(
    asked: Callable[..., Any], primes: Path, careful: Path, name: str
) -> None:
    load = ("--load", "constant:100/s,30s", "--mean", "1 s", "--executors", "1:4")
    found = asked("rehearse", primes, *load, "--scaler", f"{careful}:{name}", "--coming", "1 s")
    assert found["intervals"][-1]["executors"] == 3
    assert any("Three are enough" in decision["reason"] for decision in found["decisions"])


def test_a_scaler_is_found_in_an_installed_module(asked: Callable[..., Any], primes: Path) -> None:
    load = ("--load", "constant:100/s,20s", "--mean", "1 s", "--executors", "1:4")
    module = "tailrace.policy.scaling.reactive:Reactive"
    assert asked("rehearse", primes, *load, "--compare", f"{module},2")["runs"][0]["name"] == module


@pytest.mark.parametrize(
    ("scaler", "said"),
    [
        ("fastest", "There is no scaler 'fastest'"),
        ("nowhere.py:Careful", "There is no file nowhere.py"),
        ("no.such.module:Careful", "Python cannot find the module no.such.module"),
        (":Careful", "':Careful' does not name a scaler"),
        ("{careful}:nothing", "has no scaler 'nothing'"),
        ("{careful}:absent", "has no scaler 'absent'"),
        ("{careful}:Broken", "line 18, fails with ZeroDivisionError: division by zero"),
    ],
)
def test_a_scaler_that_cannot_decide_is_one_sentence(
    tailrace: Callable[..., Said], primes: Path, careful: Path, scaler: str, said: str
) -> None:
    load = ("--load", "constant:100/s,20s", "--mean", "1 s", "--executors", "1:4")
    named = scaler.format(careful=careful)
    assert said in tailrace("rehearse", primes, *load, "--scaler", named).sentence(USER)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("waves", "'waves' is not a load: name a CSV file of rates (.csv)"),
        ("none.csv", "There is no file of rates none.csv"),
        ("none.json", "There is no report none.json"),
        (
            "constant:100/s",
            "A load 'constant' has 2 parts, and this one has 1: write constant:RATE,DURATION",
        ),
        ("constant:many,10s", "the rate: 'many' is not a rate"),
        ("staircase:1/s,2/s,two,10s", "A staircase cannot have 'two' steps"),
        ("staircase:2/s,1/s,2,10s", "does not go up"),
        ("constant:1 M/s,1h", "is too long for a rehearsal"),
        ("constant:1/s,500h", "is too long for a rehearsal"),
    ],
)
def test_a_load_that_is_none_is_one_sentence(
    tailrace: Callable[..., Said], primes: Path, load: str, said: str
) -> None:
    assert said in tailrace("rehearse", primes, "--load", load, "--mean", "1 s").sentence(USER)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "There is no bound to keep"),
        (("--mean", "1 s", "--p99", "2 s"), "Only one bound"),
        (("--mean", "1 s", "--scaler", "reactive"), "A scaler decides on executors"),
        (("--mean", "1 s", "--executors", "few"), "--executors few is not a number of executors"),
        (("--mean", "1 s", "--executors", "0:4"), "--executors 0 is out of range"),
        (("--mean", "1 s", "--executors", "4:1"), "is not a range"),
        (("--mean", "1 s", "--seconds", "0"), "A run cannot take 0 seconds"),
        (("--mean", "1 s", "--compare", "reactive"), "'reactive' has no executors to decide on"),
        (("--mean", "1 s", "--compare", ","), "--compare , is not a valid list"),
        (("--mean", "1 s", "--compare", "4,4"), "--compare 4,4 is not a valid list"),
        (("--mean", "1 s", "--compare", "4", "--scaler", "reactive"), "leave out one of them"),
        (("--mean", "1 s", "--compare", "4", "--warm-up", "1h"), "No interval is left to compare"),
        (("--mean", "1 s", "--seed", "-1"), "-1 is not a seed"),
    ],
)
def test_options_that_do_not_fit_together_are_one_sentence(
    tailrace: Callable[..., Said], primes: Path, options: tuple[str, ...], said: str
) -> None:
    load = ("--load", "constant:100/s,15s")
    assert said in tailrace("rehearse", primes, *load, *options).sentence(USER)


def test_a_profile_of_real_time_mode_is_refused(
    tailrace: Callable[..., Said], primes: Path
) -> None:
    live = json.loads(primes.read_text("utf-8"))
    live["plan"] = {"backend": "realtime", "interval_ms": 60_000.0}
    primes.write_text(json.dumps(live), "utf-8")
    said = tailrace("rehearse", primes, "--load", "constant:100/s,15s", "--mean", "1 s")
    assert "only micro-batches can be rehearsed" in said.sentence(USER)
