"""The documents: every command, path, link and figure in them is true."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from bench import NAMES, benchmark, floor, kafka, scale
from bench import __main__ as laboratory
from docs import figures
from tailrace import outside
from tailrace.cli import profile as profile_command
from tailrace.cli.app import app
from tailrace.control import learning, scaling
from tailrace.model import size
from tailrace.model.forecasting import forecast
from tailrace.policy import batching, chaining, feasibility
from tailrace.policy.scaling.calibration import Priorities
from tailrace.policy.scaling.choice import DEFAULT, EXECUTORS, scalers
from tailrace.profile import histogram
from tailrace.spark.backends import realtime
from tailrace.spark.backends.microbatch import MicroBatch
from tailrace.spark.backends.realtime import RealTime
from tailrace.spark.cluster import executors
from tailrace.spark.jvm import java
from tailrace.spark.worker import meter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
HOMES = (ROOT, ROOT / "src" / "tailrace", ROOT / "jvm" / "src" / "tailrace")
"""Where a path in a document may start."""

MADE_BY_RUNS = ("out", ".venv", "tailrace.json", "_batch.json")
SUFFIXES = {".json", ".java", ".md", ".png", ".py", ".toml", ".txt"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")

of_each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def blocks(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return [code for name, code in FENCE.findall(text) if name == language]


def inline(document: Path) -> list[str]:
    return INLINE.findall(FENCE.sub("", document.read_text(encoding="utf-8")))


def commands(document: Path, program: str) -> Iterator[list[str]]:
    """What follows the name of a program, wherever a document tells to run it."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    for line in (*lines, *inline(document)):
        words = shlex.split(line, comments=True) if line.count('"') % 2 == 0 else line.split()
        if words and words[0] in (program, f".venv/bin/{program}"):
            yield words[1:]


# --- code and commands -----------------------------------------------------------------------


@of_each_document
def test_every_python_block_compiles(document: Path) -> None:
    for number, code in enumerate(blocks(document, "python"), start=1):
        compile(code, f"{document.name}, block {number}", "exec")


def test_the_readme_has_an_example_that_is_run() -> None:
    assert "<!-- run -->\n```python\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@of_each_document
def test_every_target_of_make_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for words in commands(document, "make"):
        assert set(words) <= targets


@of_each_document
def test_every_command_and_option_of_tailrace_exists(document: Path) -> None:
    known: Any = typer.main.get_command(app)
    for name, *words in commands(document, "tailrace"):
        assert name in known.commands
        command = known.commands[name]
        if words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words[0]]
        options = {opt for param in command.params for opt in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


@of_each_document
def test_every_benchmark_and_its_options_exist(document: Path) -> None:
    known: Any = typer.main.get_command(laboratory.app)
    options = {opt for param in known.params for opt in param.opts}
    for words in commands(document, "python"):
        if words[:2] == ["-m", "bench"]:
            assert words[2] in {*NAMES, "NAME"}
            assert {word for word in words[3:] if word.startswith("--")} <= options


@pytest.mark.parametrize("document", ["README.md", "docs/flows.md"])
def test_the_options_that_a_document_names_alone_are_those_of_run(document: str) -> None:
    known: Any = typer.main.get_command(app)
    options = {opt for param in known.commands["run"].params for opt in param.opts}
    named = {code for code in inline(ROOT / document) if code.startswith("--")}
    assert named
    assert named <= options


@of_each_document
def test_every_flow_that_is_run_is_declared_in_its_file(document: Path) -> None:
    for words in commands(document, "tailrace"):
        for target in (word for word in words if ".py:" in word):
            path, name = target.split(":")
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assigned = {
                target.id
                for node in tree.body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            assert name in assigned | made


# --- links and paths -------------------------------------------------------------------------


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@of_each_document
def test_every_link_and_picture_leads_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, part = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), f"{document.name} links to {link}"
        if part:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert part in map(anchor, headings)


def is_path(code: str) -> bool:
    """Whether a piece of code in a document is meant as a file or a directory of the project."""
    first, slash, _ = code.partition("/")
    if not PATH.fullmatch(code) or first in MADE_BY_RUNS:
        return False
    inside = bool(slash) and (ROOT / first).is_dir()
    return inside or Path(code).suffix in SUFFIXES


@of_each_document
def test_every_path_exists(document: Path) -> None:
    for code in filter(is_path, inline(document)):
        assert any((home / code).exists() for home in HOMES), f"{document.name} names {code}"


def test_a_path_is_told_from_other_code() -> None:
    assert is_path("spark/probe.py")
    assert is_path("pacing/Pacer.java")
    assert is_path("bench/results")
    assert not is_path("out/demo")
    assert not is_path("tr.step")
    assert not is_path("D(n) = a + c*n")


def test_the_index_leads_to_every_guide() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {link.partition("#")[0] for link in LINK.findall(index.read_text(encoding="utf-8"))}
    guides = {path.name for path in (ROOT / "docs").glob("*.md") if path != index}
    assert guides <= linked


def test_the_changelog_has_what_is_to_come_and_a_section_for_each_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    first, *releases = re.findall(r"^## \[(.+?)\](.*)$", text, re.MULTILINE)
    assert first == ("Unreleased", "")
    assert released["project"]["version"] == releases[0][0]
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in releases)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


# --- figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("document", figures.DOCUMENTS, ids=lambda path: path.name)
def test_the_figures_of_the_documents_are_those_of_the_results(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert figures.asked_for(text)
    assert text == figures.updated(text, figures.tables(figures.RESULTS)), (
        "run: .venv/bin/python -m docs.figures"
    )


def test_the_readme_has_six_figures_and_the_benchmarks_have_all() -> None:
    readme, benchmarks = (path.read_text(encoding="utf-8") for path in figures.DOCUMENTS)
    found = figures.tables(figures.RESULTS)
    assert figures.asked_for(readme) == [figures.HIGHLIGHTS]
    assert len(found[figures.HIGHLIGHTS].splitlines()) == 2 + 6
    assert sorted([*figures.asked_for(benchmarks), figures.HIGHLIGHTS]) == sorted(found)


MACHINE = {
    "cores": 3,
    "memory_gib": 5,
    "system": "Linux",
    "architecture": "x86_64",
    "python": "3.11.0",
    "pyspark": "4.3.0",
}


def results() -> dict[str, dict[str, Any]]:
    """One result of each kind, with figures that are easy to find again."""

    def side(p50: float) -> dict[str, float]:
        return {"p50_ms": p50, "p95_ms": 2 * p50, "p99_ms": 3 * p50, "records": 9}

    def row(bound: float | None, cpu: float) -> dict[str, float | None]:
        row = {"bound_ms": bound, "mean_ms": 222.0, "batches_per_s": 4.0, "cpu_s_per_million": cpu}
        return {**row, "share_in_band": 0.5, "share_fulfilled": 0.97}

    def demo(share: float | None) -> dict[str, Any]:
        constraint = {"text": "mean <= 500 ms in every 5 s", "fulfilled_share": share}
        return {"constraints": [constraint], "latency_ms": {"p99_ms": 333.0}, "cpu_seconds": 44.4}

    floor = {"stock": side(100.0), "tailrace": side(20.0), "ratio_p50": 5.0, "rate_per_s": 1234}
    batching = {"rate_per_s": 1234, "bounds": [row(300.0, 7.0), row(2000.0, 3.0)]}
    batching |= {"back_to_back": row(None, 11.0), "cpu_ratio_at_longest": 3.7}
    rates = {"measured": 98_000, "unmeasured": 100_000}
    at_rate = {**side(0.7), "rate_per_s": 2_000}
    peer = {"name": "other", "p50_ms": 9.0, "p99_ms": 25.0, "max_rate_per_s": 31_000}
    realtime = {"rates": [at_rate], "row_steps": at_rate, "compared_at_per_s": 2_000}
    realtime |= {"max_rate_per_s": 450_000, "max_rate_row_steps_per_s": 150_000}
    realtime |= {"peers": [peer, {"name": "absent", "missing": "no wheel"}]}
    chained = {"chained_p50_ms": 0.7, "unchained_p50_ms": 2.1, "ratio_p50": 3.0}
    bound = {"bound_ms": 20.0, "mean_ms": 18.0, "share_kept": 1.0, "cpu_s_per_million": 55.0}
    realtime |= {"chaining": chained, "bounds": [bound]}
    batch = {**side(4.0), "batch_s": 60, "without_gaps": side(3.0)}
    run = {"bound_ms": 10.0, "asked": "auto", "ran": "realtime", "fulfilled_share": 1.0}
    run |= {"mean_ms": 8.0, "cpu_seconds": 49.0}
    names = ("driver_mib", "jvm_mib", "workers_mib", "p50_ms")
    quarters = {name: {"first": 700.0, "last": 701.0, "ratio": 1.0} for name in names}
    soak = {"quarters": quarters, "seconds": 3600.0, "rate_per_s": 5_000, "machine": MACHINE}
    speeds = {"single_queue": 20_000_000, "three_stages": 10_000_000, "simpy": 90_000}
    speeds |= {"ciw": 40_000, "simpy_three_stages": 41_000, "ciw_three_stages": 17_000}
    answers = {"predict_microbatch_ms": 1.2, "predict_realtime_ms": 3.4}
    off = {"median_abs_error": 0.06, "p90_abs_error": 0.15, "max_abs_error": 0.77}
    validation = {"mean": off, "p99": off, "saturation": {**off, "max_abs_error": 0.08}}
    validation["arrivals"] = {**off, "max_abs_error": 0.01}
    said = "one: microbatch 0 ms x1 at 0.35 -> microbatch 9 ms x2 at 0.53: mean {}"
    said += ", p99 9 ms of 9 ms (+90%)"
    means = ("8 ms of 10 ms (-20%)", "never of 10 ms (+100%)", "9 ms of 10 ms (-10%)")
    counted = {"predictions": 500, "configurations": 48, "made": [said.format(m) for m in means]}
    mean = {"exact": 2.0, "tailrace": 2.01, "simpy": 2.1, "ciw": 1.9}
    policy = {"name": "ours", "fulfilled_share": 0.97, "reconfigurations": 12, "settling_s": 9.0}
    both = {"fulfilled_share": 0.9, "core_seconds": 3_600.0, "reconfigurations": 11}
    beside = {"name": "predictive", "real": both, "rehearsed": both, "share_points": 0.0}
    beside |= {"core_seconds_share": 0.0, "within": True}
    rehearsed = {"scalers": [beside], "on_the_profile_of_another": [beside | {"profile_of": "x"}]}
    step = {"at_s": 0.0, "rate_per_s": 100.0, "size": 1, "least": 1, "latency_ms": 900.0}
    policy |= {"core_seconds": 3_840.0, "overshoot": 0.5, "steps": [step]}
    rival = {**policy, "name": "theirs", "fulfilled_share": 0.4, "reconfigurations": 31}
    constant = {**policy, "name": "6 executors", "core_seconds": 5_400.0}
    scale = {"bound_ms": 1_000.0, "policies": [policy, rival], "constants": [constant]}
    grown = {"before_per_s": 100.0, "after_per_s": 165.0, "gain": 0.65, "convergence_s": 13.0}
    grown |= {"downtime_s": 0.0}
    shrunk = {"etp": grown, "choices": 70, "median": grown}
    ways = {"etp": grown, "other": {**grown, "gain": 0.02}}
    stela = {"scale_out": {"Star": ways}, "scale_in": {"PageLoad": shrunk}, "machine": MACHINE}
    return {
        "scale": {**scale, "best_constant": constant, "machine": MACHINE},
        "rehearse": rehearsed,
        "stela": stela,
        "realtime": {**realtime, "machine": MACHINE},
        "kafka": {"batches": [batch], "machine": MACHINE},
        "staircase": {"sides": [run], "machine": MACHINE},
        "soak": soak,
        "floor": {**floor, "machine": MACHINE},
        "batching": {**batching, "machine": MACHINE},
        "overhead": {"records_per_s": rates, "overhead_share": 0.02, "machine": MACHINE},
        "replay": {"records_per_s": {"all columns": 7_654_321}, "machine": MACHINE},
        "starts": {"cold_s": 9.0, "warm_s": 1.25, "together_s": 8.5, "flows": 16},
        "predict": {**answers, "size": {"micro-batch": {"plans": 1_026, "ms": 800.0}}},
        "simulator": {**speeds, "mean_ms": {"single_queue": mean}, "machine": MACHINE},
        "validate": {**validation, **counted, "machine": MACHINE},
        "demo": {**demo(0.95), "baseline": demo(None)},
    }


def test_the_results_used_here_have_the_shape_that_the_benchmarks_give() -> None:
    for name in NAMES:
        assert benchmark(name).table(results()[name]).row_count


def test_every_result_has_its_rows(tmp_path: Path) -> None:
    for name, result in results().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    found = figures.tables(tmp_path)
    counts = {name: text.count("\n|") - 1 for name, text in found.items() if name != "machines"}
    assert counts == {
        "floor": 2,
        "batching": 2 + 1,
        "realtime": 1 + 1 + 1 + 1,
        "kafka": 1,
        "staircase": 1,
        "scale": 2 + 1,
        "stela": 1,
        "soak": 4,
        "overhead": 1,
        "replay": 1,
        "starts": 2,
        "simulator": 2,
        "predict": 2 + 1,
        "validate": 2 + 1 + 2,
        "demo": 3,
        "highlights": 6,
    }
    assert {
        line.count("|") for text in found.values() for line in text.splitlines() if line[0] == "|"
    } == {4}
    assert "| ours | 97% of intervals with 12 moves | 3,840 |" in found["scale"]
    assert "| theirs | 40% of intervals with 31 moves | 3,840 |" in found["scale"]
    assert "| 6 executors | 97% of intervals with 12 moves | 5,400 |" in found["scale"]
    assert "| Star | +65% | +2% |" in found["stela"]
    assert "| JVM | 700 MiB | 701 MiB |" in found["soak"]
    assert (
        "p50 and p99 at 2,000 records/s | 0.7 ms and 2.1 ms | 9 ms and 25 ms on other |"
        in (found["realtime"])
    )
    rates = "450,000 records/s in Arrow steps, 150,000 in row steps | 31,000 on other |"
    assert rates in found["realtime"]
    kept = "18 ms, kept in 100% of intervals, 55 CPU seconds per million records"
    assert kept in found["realtime"]
    assert "| 60 s | 4 ms and 12 ms | 3 ms and 9 ms |" in found["kafka"]
    chosen = "| 10 ms on realtime (chosen) | 8 ms, kept in 100% of intervals | 49.0 |"
    assert chosen in found["staircase"]
    assert "| p50 latency | 20 ms | 100 ms |" in found["floor"]
    assert "| p99 latency | 60 ms | 300 ms |" in found["floor"]
    assert "| 300 ms | 222 ms, kept in 97% of intervals | 7 |" in found["batching"]
    assert (
        "98,000 records/s | 100,000 records/s without: measuring takes 2.0% |"
        in (found["overhead"])
    )
    assert "7,654,321 records/s" in found["replay"]
    warm = "| from start to first result | 1.25 s | 9 s for the first of a session |"
    assert warm in found["starts"]
    assert "16 flows started at once, until the last | 8.5 s | - |" in found["starts"]
    assert (
        "mean latency, 500 predictions of 48 runs | 6.0% | 15.0% and 77.0% |" in found["validate"]
    )
    assert "mean latency, one | 20.0% | 100.0% and 100.0% |" in found["validate"]
    assert "rate at which a plan saturates | 6.0% | 15.0% and 8.0% |" in found["validate"]
    assert "mean <= 500 ms in every 5 s | 95% | none judged on plain Spark |" in found["demo"]
    assert found["machines"] == (
        "The benchmarks ran on 3 cores with 5 GiB, Linux on x86_64, Python 3.11.0, PySpark 4.3.0."
    )


def test_the_figures_of_the_readme_are_those_of_their_benchmarks(tmp_path: Path) -> None:
    for name, result in results().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    table = figures.tables(tmp_path)[figures.HIGHLIGHTS]
    assert "p50 | 20 ms | 100 ms on stock PySpark |" in table
    assert "p50 and p99 | 0.7 ms and 2.1 ms | 9 ms and 25 ms on other |" in table
    assert "p50 and p99 | 4 ms and 12 ms | 3 ms and 9 ms without the gaps" in table
    assert "222 ms, kept in 97% of intervals, 3 CPU seconds per million records | 11 CPU" in table
    assert "97% of intervals, 3,840 core-seconds | 5,400 core-seconds on 6 executors" in table
    predicted = "Mean latency of 1 known topologies, 500 predictions | 6.0% off in the median"
    assert f"{predicted}, 9 in 10 within 15.0% |" in table


def test_without_results_the_readme_has_a_header_and_nothing_else(tmp_path: Path) -> None:
    found = figures.tables(tmp_path)
    assert set(found) == {figures.HIGHLIGHTS}
    assert len(found[figures.HIGHLIGHTS].splitlines()) == 2


def test_a_table_that_was_not_made_stays_as_it_was() -> None:
    text = "<!-- figures: floor -->\n| old |\n<!-- figures end -->\n"
    assert figures.updated(text, {}) == text
    assert figures.updated(text, {"floor": "| new |"}) == text.replace("old", "new")


def test_a_demo_without_a_baseline_has_nothing_beside_it(tmp_path: Path) -> None:
    alone = {key: value for key, value in results()["demo"].items() if key != "baseline"}
    (tmp_path / "demo.json").write_text(json.dumps(alone), encoding="utf-8")
    rows = figures.tables(tmp_path)["demo"].splitlines()[2:]
    assert rows
    assert all(row.endswith("| - |") for row in rows)


# --- what the documents say of the code ------------------------------------------------------


def default_of(command: str, option: str) -> Any:
    known: Any = typer.main.get_command(app)
    return next(p.default for p in known.commands[command].params if p.name == option)


STATED = (
    ("README.md", f"a JDK {java.OLDEST} or later"),
    ("README.md", f"each side for {default_of('demo', 'seconds'):g} seconds"),
    ("README.md", f"in `{default_of('demo', 'out')}`"),
    ("docs/benchmarks.md", f"steps that do nothing, at {floor.RATE_PER_S:,} records/s"),
    ("docs/benchmarks.md", f"a keyed count at {kafka.RATE_PER_S:,} records/s"),
    ("docs/benchmarks.md", f"waits {scale.WAIT_MS:g} ms for each record"),
    ("docs/benchmarks.md", f"on 1 to {scale.MOST} executors"),
    ("docs/benchmarks.md", f"a mean within {scale.BOUND_MS / 1e3:g} s"),
    ("docs/measuring.md", f"one record in {meter.SAMPLE_EVERY} of each Arrow batch"),
    ("docs/measuring.md", f"{4 * meter.MOST_KEYS} goes on with the {meter.MOST_KEYS} most"),
    (
        "docs/flows.md",
        f"({MicroBatch.STOP_WITHIN_S:g} s, in real-time mode {RealTime.STOP_WITHIN_S:g} s)",
    ),
    ("docs/measuring.md", f"nothing was heard for {realtime.SILENCE_S:g} seconds"),
    ("docs/measuring.md", f"more than {meter.LONGEST_KEY} characters"),
    ("docs/measuring.md", f"off by at most {histogram.ACCURACY * 100:g} %"),
    ("docs/measuring.md", f"up to {histogram.SMALLEST_MS:g} ms is one bin"),
    ("docs/policies.md", f"more than {chaining.SPLIT_ABOVE * 100:g} % busy is **split**"),
    ("docs/policies.md", f"at most {chaining.JOIN_UP_TO * 100:g} % busy"),
    ("docs/policies.md", f"for {chaining.DWELL_INTERVALS} whole intervals"),
    ("docs/policies.md", f"on at least {learning.LEAST_POINTS} batches"),
    ("docs/policies.md", f"measured more than {feasibility.FAR:g} times the bound"),
    ("docs/policies.md", "the bound less 8 to 20 %"),
    ("docs/policies.md", "the gain is above 8 %"),
    ("docs/policies.md", "it is the bound less 6 %"),
    ("docs/policies.md", "two fifths of the bound are kept free"),
    ("docs/predicting.md", f"UTF-8 text of up to {outside.MOST_BYTES // outside.MIB} MiB"),
    ("docs/predicting.md", f"(progress logs {profile_command.MOST_LOG_BYTES // outside.MIB} MiB)"),
    ("docs/predicting.md", f"rates of up to {outside.MOST_RATE_PER_S:g} /s"),
    ("docs/predicting.md", f"at most {outside.MOST_TASKS:,} cores or partitions"),
    ("docs/predicting.md", f"`size` looks at up to {size.MOST_CORES:,} cores"),
    ("docs/predicting.md", f"`forecast` up to {forecast.MOST_AHEAD:,} steps ahead"),
    ("docs/scaling.md", f"come within {executors.PATIENCE_S:g} seconds is reported"),
    ("docs/scaling.md", f"are there after {executors.PATIENCE_S:g} s:"),
    ("docs/scaling.md", f"during the next {scaling.CONTENT} intervals"),
    ("docs/scaling.md", f"nor for {scaling.SETTLING_US / 1e6:g} seconds after"),
    ("docs/scaling.md", f"the default, `{DEFAULT}`, looks ahead"),
    ("docs/scaling.md", f"which is {Priorities().resource:g} by default"),
)


@pytest.mark.parametrize(("document", "sentence"), STATED)
def test_constants_are_stated_as_the_code_has_them(document: str, sentence: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert sentence in " ".join(text.split())


def test_the_margins_that_the_documents_state_are_those_of_the_policy() -> None:
    assert (batching._LEAST_MARGIN, batching._MOST_MARGIN) == (0.08, 0.20)
    assert (batching._WORST_MARGIN, batching._UNSETTLED_MARGIN) == (0.06, 0.4)
    assert batching._WORTH_RAISING == 1.08
    assert (batching._LEAST_RATIO, batching._MOST_RATIO) == (0.8, 2.0)
    assert learning.RATIOS == 5


def test_the_scalers_that_the_documents_name_are_those_that_there_are() -> None:
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = text.partition("## Who decides")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in INLINE.findall(row)} == set(scalers())
    assert isinstance(EXECUTORS.weights, Priorities)
    assert EXECUTORS.weights.resource == Priorities().resource


def test_the_rooms_are_the_layers_that_the_linter_enforces() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = text.partition("## The rooms")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", rooms, re.MULTILINE) == layers
