"""A separate environment for each peer, made at first use: their dependencies and ours conflict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import EnvironmentUnfit, InputError

ROOT = Path("out/peers")
HERE = Path(__file__).resolve().parent
JAVA_SOURCE = HERE / "PacedLoad.java"
DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment holds: packages with their versions, and Java classes for Flink."""

    requirements: tuple[str, ...]
    java: bool = False

    def fingerprint(self) -> str:
        """Identifies the recipe, to see whether an existing environment is up to date."""
        return "\n".join((*self.requirements, JAVA_SOURCE.read_text() if self.java else ""))


RECIPES = {
    "pyflink": Recipe(("apache-flink==2.3.0",), java=True),
    "bytewax": Recipe(("bytewax==0.21.1",)),
}


def install(name: str, root: Path = ROOT) -> Path:
    """The environment of a peer, made if it does not exist yet or has another recipe.

    Raises:
        EnvironmentUnfit: It cannot be made here; the attempt leaves nothing behind.
    """
    if name not in RECIPES:
        known = " or ".join(RECIPES)
        raise InputError(f"There is no environment named {name!r}; give {known}.")
    recipe, place = RECIPES[name], root.resolve() / name
    made_by = place / "recipe.txt"
    if made_by.is_file() and made_by.read_text() == recipe.fingerprint():
        return place
    try:
        _run(name, [sys.executable, "-m", "venv", "--clear", str(place)])
        pip = [str(python(place)), "-m", "pip", "install", "--no-input", "--quiet"]
        _run(name, [*pip, "--disable-pip-version-check", *recipe.requirements])
        if recipe.java:
            _compile(name, place)
        made_by.write_text(recipe.fingerprint())
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return place


def python(place: Path) -> Path:
    """The interpreter of an environment."""
    return place / "bin" / "python"


def packages(place: Path) -> Path:
    """The site-packages directory of an environment."""
    version = ".".join(map(str, sys.version_info[:2]))
    return place / "lib" / f"python{version}" / "site-packages"


def _compile(name: str, place: Path) -> None:
    """Put source and sink among Flink's own jars, where the JVM of a job finds them."""
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin") if home else None
    javac = javac or shutil.which("javac")
    if javac is None:
        raise _unfit(name, "there is no javac; install a JDK 11 or later, or set JAVA_HOME to one")
    jars = packages(place) / "pyflink" / "lib"
    with tempfile.TemporaryDirectory(prefix="tailrace-") as classes:
        command = [javac, "--release", "11", "-nowarn", "-cp", f"{jars}/*", "-d", classes]
        _run(name, [*command, str(JAVA_SOURCE)])
        with zipfile.ZipFile(jars / "tailrace-paced-load.jar", "w") as jar:
            for compiled in sorted(Path(classes).glob("*.class")):
                jar.write(compiled, compiled.name)


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own commands, without a shell
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired as slow:
        raise _unfit(name, f"it took more than {DEADLINE_S:.0f} s; check the network") from slow
    except OSError as missing:
        raise _unfit(name, str(missing)) from missing
    if done.returncode:
        raise _unfit(name, last_line(done.stderr) or f"exit code {done.returncode}")


def last_line(text: str) -> str:
    """The last line that is not empty, where tools usually put the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


def _unfit(name: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"The peer {name} is left out, as it cannot be installed on this machine: {why}."
    )
