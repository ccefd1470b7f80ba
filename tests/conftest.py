"""The command line as tests call it, and the one broker of the run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from bench.broker import Broker
from tailrace import cli
from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ["SPARK_CONF_DIR"] = str(Path(__file__).with_name("conf"))

settings.register_profile("tailrace", deadline=None)  # nothing here is about the speed of a machine
settings.load_profile("tailrace")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def sentence(self, code: int) -> str:
        """The one sentence that a refused command says, checked to be just that."""
        assert self.code == code, self.err
        assert self.out == ""
        assert self.err.startswith("tailrace: ")
        assert self.err.endswith(".\n")
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("tailrace: ").removesuffix("\n")

    def last_sentence(self, code: int) -> str:
        """The one sentence of a command that ran before it failed, after whatever progress.

        What was measured until then may be on standard output.
        """
        assert self.code == code, self.err
        assert "Traceback" not in self.err
        (said,) = [line for line in self.err.splitlines() if line.startswith("tailrace: ")]
        assert self.err.endswith(f"{said}\n")
        return said.removeprefix("tailrace: ")


@pytest.fixture
def tailrace(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The command line, called as the shell calls it."""

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["tailrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The one Kafka of the run, started for the first test that needs it.

    A test makes topics of its own, and brings the broker back if it ends it.
    """
    try:
        shared = Broker()
    except EnvironmentUnfit as unfit:
        pytest.skip(str(unfit))
    with shared:
        yield shared
