"""``tailrace doctor`` on machines and sessions that are fit, slow or unfit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.health import doctor
from tailrace.spark.settings import Finding
from tests.cli.conftest import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

SLOW = Finding(fatal=False, what="spark.x is 200 [of 2]; costs 4.5 s.", remedy="Set it to 2.")
FATAL = Finding(fatal=True, what="There is no java on the PATH: install one.", remedy="")


class FakeSession:
    """A session that only knows whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeSession]:
    """Sets what doctor finds on the machine and in the session that it starts."""

    def lie_down(machine: tuple[Finding, ...], session: tuple[Finding, ...]) -> FakeSession:
        fake = FakeSession()
        monkeypatch.setattr(doctor, "machine", lambda: machine)
        monkeypatch.setattr(doctor, "session", lambda **_: fake)
        monkeypatch.setattr(doctor, "examine", lambda _: session)
        return fake

    return lie_down


@pytest.mark.parametrize(
    ("machine", "session", "code"),
    [
        ((), (), 0),
        ((SLOW,), (), 0),
        ((), (SLOW, SLOW), 0),
        ((FATAL,), (SLOW,), 1),
        ((SLOW,), (FATAL,), 1),
    ],
)
def test_doctor_ends_with_1_only_if_nothing_would_run_and_its_json_stands_alone(
    tailrace: Callable[..., Said],
    patient: Callable[..., FakeSession],
    machine: tuple[Finding, ...],
    session: tuple[Finding, ...],
    code: int,
) -> None:
    fake = patient(machine, session)
    said = tailrace("doctor", "--json")
    assert said.code == code
    assert said.err == ""
    looked = FATAL not in machine  # what cannot work is not started
    expected = (*machine, *session) if looked else machine
    assert json.loads(said.out) == {
        "fit": code == 0,
        "findings": [{"fatal": f.fatal, "what": f.what, "remedy": f.remedy} for f in expected],
    }
    assert fake.stopped == looked


def test_doctor_says_everything_to_a_person_too(
    tailrace: Callable[..., Said], patient: Callable[..., FakeSession]
) -> None:
    patient((SLOW,), (FATAL,))
    said = " ".join(tailrace("doctor").out.split())
    assert f"slow {SLOW.what} {SLOW.remedy}" in said
    assert f"will not work {FATAL.what}" in said
    patient((), ())
    assert tailrace("doctor").out == "fit  Nothing is missing and nothing is slow.\n"


def test_a_session_that_does_not_start_is_a_finding(
    tailrace: Callable[..., Said],
    patient: Callable[..., FakeSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient((), ())

    def fail(**_: object) -> None:
        raise EnvironmentUnfit("A port is in use: free it.")

    monkeypatch.setattr(doctor, "session", fail)
    said = tailrace("doctor", "--json")
    assert said.code == MACHINE
    (finding,) = json.loads(said.out)["findings"]
    assert finding == {"fatal": True, "what": "A port is in use: free it.", "remedy": ""}


def test_doctor_stops_its_session_even_if_the_examination_fails(
    patient: Callable[..., FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = patient((), ())

    def fail(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", fail)
    with pytest.raises(KeyboardInterrupt):
        doctor.try_session(plain=False)
    assert fake.stopped


def test_the_machine_is_found_wanting_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    before = doctor.machine()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other-python")
    monkeypatch.setattr(doctor, "JAR", tmp_path / "none.jar")
    versions = {"pyspark": "3.5.1", "pandas": "3.0.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    found = [finding for finding in doctor.machine() if finding not in before]
    told = [(finding.fatal, f"{finding.what} {finding.remedy}") for finding in found]
    wanted = [
        (True, "There is no java in JAVA_HOME"),
        (True, "PySpark 3.5.1 is not supported by"),
        (False, "PySpark 4.3 does not fully support pandas 3.0.0. Install pandas<3."),
        (True, "Tailrace's Java part is not built. Run 'make setup'"),
        (False, "PYSPARK_PYTHON is /usr/bin/other-python, not this interpreter."),
    ]
    assert len(told) == len(wanted)
    for (fatal, text), (must, start) in zip(told, wanted, strict=True):
        assert fatal == must
        assert text.startswith(start)
