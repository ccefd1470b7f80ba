"""Fixtures for tests of state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace.state.store import Store
from tests.state.stores import run, version_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls the plug, so nothing is flushed."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The one file of a store with one version."""
    run(Store(tmp_path / "count" / "0"), 0, {key: key for key in range(20)})
    (path,) = version_files(tmp_path / "count" / "0", 0)
    return path
