"""Peers without the peers: the search, what scripts say, and what happens if one fails."""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import sys
import tempfile
from dataclasses import asdict, replace
from subprocess import CompletedProcess
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import peers
from bench.peers import Peer, Result, environment, highest_rate, install, parse, run
from tailrace.errors import EnvironmentUnfit, FlowFailed, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = Result(1_000, 1.0, 2.0, 3.0, 0.0, 1_000, 1_000)
LATE = replace(GOOD, p99_ms=150.0)
LOST = replace(GOOD, p50_ms=500.0, p99_ms=900.0, received=500)


# --- the search -------------------------------------------------------------------------------


@given(st.floats(200, 1e8), st.floats(100, 1e7))
def test_the_search_ends_within_a_tenth_below_the_capacity(capacity: float, start: float) -> None:
    probes: list[float] = []

    def held(rate: float) -> bool:
        probes.append(rate)
        return rate <= capacity

    found = highest_rate(held, start)
    assert found <= capacity < found * 1.1 * (1 + 1e-9)
    assert found in probes
    assert len(probes) <= abs(math.log2(capacity / start)) + 6


def test_an_engine_that_holds_nothing_has_no_rate() -> None:
    assert highest_rate(lambda _rate: False, 10_000) == 0


def test_a_rate_is_held_if_records_come_in_time_and_not_ever_later() -> None:
    assert GOOD.held()
    assert replace(GOOD, received=990).held()
    assert not replace(GOOD, received=989).held()
    assert not replace(GOOD, p99_ms=100.0).held()
    assert replace(GOOD, p99_ms=100.0).held(bound_ms=101)
    assert not replace(GOOD, p99_ms=90.0, drift_ms=60.0).held()


def scripted(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[float, int], Result]
) -> list[float]:
    """Let every peer answer from a function of the rate and of how often it was asked that."""
    asked: list[float] = []

    def measure(_self: Peer, rate_per_s: float, _seconds: float) -> Result:
        asked.append(rate_per_s)
        return answer(rate_per_s, asked.count(rate_per_s))

    monkeypatch.setattr(Peer, "measure", measure)
    return asked


def test_a_pause_of_the_machine_is_not_taken_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(rate: float, time: int) -> Result:
        if rate > 70_000:
            return LOST
        return LATE if time == 1 else GOOD

    asked = scripted(monkeypatch, answer)
    found = peers.peers()[0].highest_rate(3.0, start=16_000)
    assert found <= 70_000 < found * 1.1
    assert all(asked.count(rate) == (1 if rate > 70_000 else 2) for rate in asked)


def test_the_search_of_a_peer_starts_at_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scripted(monkeypatch, lambda rate, _time: GOOD if rate <= 1e6 else LOST)
    for peer in peers.peers():
        asked.clear()
        peer.highest_rate(3.0)
        assert asked[0] == peer.start_per_s


# --- what a script says -----------------------------------------------------------------------


def line_of(result: Result) -> str:
    text = ", ".join(f'"{name}": {value}' for name, value in asdict(result).items())
    return f"{{{text}}}"


def test_the_result_is_the_last_line_that_holds_one() -> None:
    output = f"starting\n{line_of(LATE)}\n{line_of(GOOD)}\nstopping {{}}\n[1]\n"
    assert parse("x", output) == GOOD


@given(st.text() | st.just('{"records": 1}') | st.just("[1, 2]") | st.just("null"))
def test_output_without_a_result_is_said_in_a_sentence(output: str) -> None:
    with pytest.raises(FlowFailed, match="The peer x ended without a result"):
        parse("x", output)


def test_a_script_runs_in_the_environment_of_its_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    def pretend(_name: str, command: list[str], _library: Path, _deadline_s: float) -> str:
        seen.append(command)
        return line_of(GOOD)

    monkeypatch.setattr(peers, "install", lambda name: tmp_path / name)
    monkeypatch.setattr(peers, "run", pretend)
    for peer in peers.peers():
        assert peer.measure(2_000, 5.0) == GOOD
    process, thread, bytewax = seen
    assert process[0] == thread[0] == str(tmp_path / "pyflink" / "bin" / "python")
    assert process[2:4] == ["--mode", "process"]
    assert thread[2:4] == ["--mode", "thread"]
    assert bytewax[2:] == ["--rate", "2000", "--seconds", "5.0", "--warm-up", "1.0"]


@pytest.mark.parametrize("peer", peers.peers(), ids=lambda peer: peer.name)
def test_the_script_of_a_peer_needs_nothing_of_ours(peer: Peer) -> None:
    tree = ast.parse((environment.HERE / peer.script).read_text())
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported
    assert not {name for name in imported if name.split(".")[0] in {"tailrace", "numpy"}}
    assert "==" in peer.version


# --- a process that fails or hangs ------------------------------------------------------------


def test_a_peer_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = 'exec 3>"$0"; echo up >&3; sleep 600 & wait'
    try:
        with pytest.raises(FlowFailed, match="The peer x did not end within 1 s and was stopped"):
            run("x", ["sh", "-c", script, str(fifo)], tmp_path, 1.0)
        os.set_blocking(reader, True)
        assert os.read(reader, 10) == b"up\n"
        assert os.read(reader, 10) == b""  # the end comes once nobody is left who could write
    finally:
        os.close(reader)


def test_a_peer_that_fails_is_quoted_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(FlowFailed, match=r"The peer x failed: java\.lang\.Error: no memory\."):
        run(
            "x",
            ["sh", "-c", "touch here; echo java.lang.Error: no memory >&2; exit 3"],
            tmp_path,
            9,
        )
    assert not list(tmp_path.iterdir())


def test_a_peer_finds_its_packages_and_writes_into_a_directory_that_goes(tmp_path: Path) -> None:
    printed = run("x", ["sh", "-c", 'echo "$PYTHONPATH"; pwd; echo "$TMPDIR"'], tmp_path, 9)
    library, directory, temporary = printed.splitlines()
    assert library == str(tmp_path)
    assert directory == temporary
    assert not os.path.exists(directory)  # noqa: PTH110 - it is a text that a shell printed


# --- installation -----------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Commands are noted instead of run; ``pip`` fails for a package that is named so."""
    noted: list[list[str]] = []

    def pretend(command: list[str], **_options: Any) -> CompletedProcess[str]:
        noted.append(command)
        if "venv" in command:
            (tmp_path / "bytewax").mkdir(exist_ok=True)
            (tmp_path / "pyflink").mkdir(exist_ok=True)
        if "absent==1" in command:
            said = "Looking in indexes\nERROR: No matching distribution found for absent==1\n"
            return CompletedProcess(command, 1, "", said)
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", pretend)
    return noted


def test_an_environment_is_made_once(commands: list[list[str]], tmp_path: Path) -> None:
    assert install("bytewax", tmp_path) == tmp_path / "bytewax"
    assert [command[2] for command in commands] == ["venv", "pip"]
    assert commands[1][-1].startswith("bytewax==")
    commands.clear()
    assert install("bytewax", tmp_path) == tmp_path / "bytewax"
    assert not commands


def test_an_environment_of_another_version_is_made_anew(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("bytewax", tmp_path)
    commands.clear()
    monkeypatch.setitem(environment.RECIPES, "bytewax", environment.Recipe(("bytewax==0.1",)))
    install("bytewax", tmp_path)
    assert "--clear" in commands[0]
    assert commands[1][-1] == "bytewax==0.1"


def test_a_peer_that_does_not_install_says_why_and_leaves_nothing(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(environment.RECIPES, "bytewax", environment.Recipe(("absent==1",)))
    with pytest.raises(EnvironmentUnfit) as caught:
        install("bytewax", tmp_path)
    assert str(caught.value) == (
        "The peer bytewax is left out, as it cannot be installed on this machine:"
        " ERROR: No matching distribution found for absent==1."
    )
    assert commands
    assert not (tmp_path / "bytewax").exists()


def test_without_a_java_compiler_flink_is_left_out(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_given, **_named: None)
    with pytest.raises(EnvironmentUnfit, match="there is no javac; install a JDK 11 or later"):
        install("pyflink", tmp_path)
    assert commands
    assert not (tmp_path / "pyflink").exists()


def test_an_environment_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no environment named 'storm'; give pyflink or bytewax\."
    ):
        install("storm", tmp_path)


# --- the load of Bytewax ----------------------------------------------------------------------


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script of Bytewax, with nothing behind the names that it imports."""
    names = {
        "bytewax": (),
        "bytewax.operators": (),
        "bytewax.dataflow": ("Dataflow",),
        "bytewax.inputs": ("DynamicSource", "StatelessSourcePartition"),
        "bytewax.outputs": ("DynamicSink", "StatelessSinkPartition"),
        "bytewax.run": ("cli_main",),
    }
    for name, members in names.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member, type(member, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["bytewax"].operators = sys.modules["bytewax.operators"]  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("flow", environment.HERE / "bytewax_flow.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "flow", script)
    spec.loader.exec_module(script)
    return script


def test_a_record_is_emitted_when_due_and_a_late_one_keeps_its_due_time(
    flow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000_000]
    monkeypatch.setattr(flow, "now_us", lambda: clock[0])
    load = flow.Load([(i, i * 1_000, "key") for i in range(100)], 0.1)
    source, sink = flow.Paced(load, 0.01), flow.Noting(load)

    def step(at_us: int) -> list[int]:
        clock[0] = at_us
        batch = source.next_batch()
        sink.write_batch(batch)
        return [seq for seq, _, _ in batch]

    began = 1_000_000 + flow.PAUSE_US
    assert step(began - 1) == []
    assert step(began + 9_999) == list(range(10))  # the warm-up, a tenth of all
    assert step(began + 10_000) == []
    assert not load.latencies_us

    began += 10_000 + flow.PAUSE_US
    assert source.next_awake().timestamp() == pytest.approx(began / 1e6)
    assert step(began - 1) == []
    assert step(began) == [0]
    assert step(began + 999) == []
    assert step(began + 1_000) == [1]
    assert step(began + 5_500) == [2, 3, 4, 5]  # the source was held up for three of them
    assert list(load.latencies_us) == [0, 0, 3_500, 2_500, 1_500, 500]
    assert step(began + 99_500) == list(range(6, 100))
    with pytest.raises(StopIteration):
        step(began + 99_501)


def test_a_source_that_cannot_keep_up_gives_up(
    flow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0]
    monkeypatch.setattr(flow, "now_us", lambda: clock[0])
    load = flow.Load([(i, i * 1_000, "key") for i in range(100)], 0.1)
    source = flow.Paced(load, 0.0)
    clock[0] = flow.PAUSE_US
    assert source.next_batch() == ()
    clock[0] = load.began_us + 100_000 + flow.GRACE_US + 1
    with pytest.raises(StopIteration):
        source.next_batch()


def test_a_quantile_is_taken_by_rank(flow: ModuleType) -> None:
    values = [3_000, 1_000, 4_000, 2_000]
    assert [flow.quantile_ms(values, q) for q in (0, 0.25, 0.5, 0.99, 1)] == [1, 2, 3, 4, 4]
    assert flow.quantile_ms([], 0.5) == 0
