"""The guide to Kafka works as it stands, on a machine that has nothing of it yet."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench.broker import Broker
from tailrace.errors import EnvironmentUnfit
from tailrace.spark.cluster.process import free_ports
from tailrace.spark.sources import connector
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.apart]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "kafka.md"
COMMANDS = re.findall(r"^```sh\n(.+?)\n```$", GUIDE.read_text("utf-8"), re.MULTILINE)
START, CREATE, RUN, SEND, READ = COMMANDS
SECONDS = 20.0
"""How long the guide sends."""

PATIENCE_S = 300.0


class Machine:
    """A directory with the project, and nothing that a run has left: no jars, no cache, no data."""

    def __init__(self, path: Path) -> None:
        """Link what a checkout has; what runs leave stays here."""
        self.path = path
        here = ("Makefile", "pyproject.toml", "requirements", "bench", "examples", "jvm", "src")
        for name in here:
            (path / name).symlink_to(ROOT / name)
        (path / ".venv").symlink_to(sys.prefix)
        port = next(free_ports())
        self.servers = f"127.0.0.1:{port}"
        own = {"PORT": str(port), "KAFKA": self.servers, "XDG_CACHE_HOME": str(path / "cache")}
        self.environment = {**os.environ, **own}

    def words(self, command: str) -> list[str]:
        """A command of the guide; of make, what it would run after setup."""
        words = shlex.split(command)
        if words[0] != "make":
            return words
        said = self._done([*words, "--dry-run", "--no-print-directory"])
        return shlex.split(said.splitlines()[-1])

    def do(self, command: str) -> str:
        """Run a command of the guide to its end; its standard output."""
        return self._done(self.words(command))

    @contextmanager
    def doing(self, command: str, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command of the guide beside others, and end it with the block."""
        with (self.path / "said").open("a", encoding="utf-8") as said:
            process = subprocess.Popen(
                [*self.words(command), *more],
                cwd=self.path,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)

    def refused(self, command: str) -> str:
        """Run a command of the guide that fails: the last line, after no pages of Java."""
        done = self._ended(self.words(command))
        assert done.returncode == 1, done.stderr
        assert "Exception" not in done.stderr
        return done.stderr.splitlines()[-1]

    def _done(self, words: list[str]) -> str:
        done = self._ended(words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _ended(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    @contextmanager
    def broker(self) -> Iterator[None]:
        """The broker of the guide, which has said where it listens."""
        with self.doing(START) as broker:
            assert broker.stdout is not None
            assert f"listens on {self.servers}; Ctrl-C stops it." in broker.stdout.readline()
            yield

    def holds(self, topic: str, count: int) -> bool:
        """Whether a topic has got this many records."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "test"})
        try:
            parts = [TopicPartition(topic, part) for part in range(2)]
            return sum(consumer.get_watermark_offsets(part, 30)[1] for part in parts) >= count
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False  # the topic was created just now
        finally:
            consumer.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that has Java, Maven and the project; skipped where nothing can be fetched."""
    try:
        Broker()
        connector.find()
    except EnvironmentUnfit as unfit:
        pytest.skip(str(unfit))
    return Machine(tmp_path)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alerts(count: int) -> Counter[tuple[str, int, float]]:
    """What must result from this many readings: machine, number and degrees, one by one."""
    limits = dict(example("kafka_alerts").LIMITS)
    seen: Counter[str] = Counter()
    expected: Counter[tuple[str, int, float]] = Counter()
    for machine, reading in example("kafka_try").readings(count):
        if reading["degrees"] > limits.get(reading["kind"], float("inf")):
            seen[machine] += 1
            expected[machine, seen[machine], reading["degrees"]] += 1
    return expected


def shown(lines: str) -> Counter[tuple[str, int, float]]:
    """The alerts that the consumer of the guide has printed."""
    pairs = (line.split(" ", 1) for line in lines.splitlines())
    told = ((machine, json.loads(alert)) for machine, alert in pairs)
    return Counter((machine, alert["n"], alert["degrees"]) for machine, alert in told)


def test_who_follows_the_guide_word_for_word_gets_exact_results_at_the_first_try(
    machine: Machine,
) -> None:
    expected = alerts(round(SECONDS * example("kafka_try").RATE_PER_S))
    with machine.broker():
        machine.do(CREATE)
        with machine.doing(RUN, "--json") as flow:
            started = machine.path / "out" / "alerts" / "checkpoint" / "metadata"
            until(started.exists, "the flow runs", PATIENCE_S)
            assert machine.do(SEND) == "2000 readings are sent.\n"
            out, _ = flow.communicate(timeout=PATIENCE_S)
            assert flow.returncode == 0, (machine.path / "said").read_text("utf-8")
        assert shown(machine.do(READ)) == expected
    report = json.loads(out)
    assert report["records"] == 2000
    assert [constraint["bound_ms"] for constraint in report["constraints"]] == [50.0]
    assert {interval["plan"]["backend"] for interval in report["intervals"]} == {"realtime"}
    assert (machine.path / "cache" / "tailrace" / "kafka").is_dir()


@pytest.mark.nightly
def test_a_flow_that_is_killed_and_run_again_sends_every_result_and_no_other(
    machine: Machine,
) -> None:
    expected = alerts(round(SECONDS * example("kafka_try").RATE_PER_S))
    with ExitStack() as running:
        running.enter_context(machine.broker())
        machine.do(CREATE)
        sending = running.enter_context(machine.doing(SEND))
        with machine.doing(RUN) as flow:
            until(lambda: machine.holds("alerts", 50), "alerts have come", PATIENCE_S)
            os.killpg(flow.pid, signal.SIGKILL)
            flow.communicate(timeout=PATIENCE_S)
        sending.communicate(timeout=PATIENCE_S)
        results: Counter[tuple[str, int, float]] = Counter()

        def everything_came() -> bool:
            nonlocal results
            results = shown(machine.do(READ))
            return len(results) >= len(expected)

        with machine.doing(RUN):
            until(everything_came, "every result came", PATIENCE_S)
    assert set(results) == set(expected)


def test_leaving_out_a_step_of_the_guide_is_explained_in_one_sentence(
    machine: Machine,
) -> None:
    assert machine.refused(RUN) == (
        f"tailrace: Kafka cannot be reached ({machine.servers}: Connection refused): start it, or "
        "fix the address."
    )
    with machine.broker():
        assert machine.refused(RUN) == (
            f"tailrace: Kafka at {machine.servers} has no topic 'alerts' and does not create it: "
            "create the topic, or fix its name."
        )


def test_the_guide_shows_the_flow_that_it_runs() -> None:
    (code,) = re.findall(
        r"This is all of .*?^```python\n(.+?)^```$",
        GUIDE.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    source = (ROOT / "examples" / "kafka_alerts.py").read_text("utf-8")
    for line in filter(str.strip, code.splitlines()):
        assert re.sub(r"^def (\w+)\(.*", r"def \1(", line) in source
