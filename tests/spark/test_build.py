from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jvm_build", ROOT / "jvm" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_jar_is_the_same_bytes_whenever_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = load_build()
    jars = []
    for name in ("one.jar", "two.jar"):
        monkeypatch.setattr(build, "JAR", tmp_path / name)
        jars.append(build.build().read_bytes())
    made_at = (tmp_path / "two.jar").stat().st_mtime_ns
    build.build()
    assert jars[0] == jars[1]
    assert (tmp_path / "two.jar").stat().st_mtime_ns == made_at


def test_a_build_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = load_build()
    monkeypatch.setattr(build, "JAR", tmp_path / "none.jar")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(build.BuildError, match="There is no javac; install a JDK 17"):
        build.build()
