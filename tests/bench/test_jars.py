"""What Maven fetches is checked against its checksum."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bench import jars
from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from pathlib import Path


def test_maven_is_always_asked_to_check_strictly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho "[ERROR] no: it is a test"\nexit 1\n')
    maven.chmod(0o700)
    monkeypatch.setenv("PATH", f"{maven.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(EnvironmentUnfit, match=r"cannot be fetched from Maven \(it is a test\)"):
        jars.broker_jars(tmp_path / "lib")
    calls = asked.read_text().splitlines()
    assert calls
    assert all("--strict-checksums" in call.split() for call in calls)
