"""The locked requirements: whole, with hashes, and in step with ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILES = ("build.txt", "dev.txt")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def locked(file: str) -> dict[str, tuple[Version, list[str]]]:
    """The version and the hashes of every package that a file lists."""
    text = (ROOT / "requirements" / file).read_text("utf-8").replace("\\\n", " ")
    found: dict[str, tuple[Version, list[str]]] = {}
    for line in text.splitlines():
        pinned, *hashes = re.split(r"\s+--hash=", line.strip())
        requirement = Requirement(pinned)
        (only,) = requirement.specifier
        assert only.operator == "==", line
        found[canonicalize_name(requirement.name)] = (Version(only.version), hashes)
    return found


@pytest.mark.parametrize("file", FILES)
def test_every_package_is_pinned_with_hashes(file: str) -> None:
    packages = locked(file)
    assert packages
    for name, (_, hashes) in packages.items():
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), name


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    declared = project()["project"]
    wanted = [*declared["dependencies"], *declared["optional-dependencies"]["dev"]]
    packages = locked("dev.txt")
    for requirement in map(Requirement, wanted):
        version, _ = packages[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement


def test_the_build_backend_is_pinned_and_locked_at_the_same_version() -> None:
    packages = locked("build.txt")
    for requirement in map(Requirement, project()["build-system"]["requires"]):
        version, _ = packages[canonicalize_name(requirement.name)]
        assert str(requirement.specifier) == f"=={version}"


def test_what_both_files_list_has_one_version() -> None:
    build, dev = (locked(file) for file in FILES)
    assert {name: build[name] for name in build.keys() & dev.keys()} == {
        name: dev[name] for name in build.keys() & dev.keys()
    }
