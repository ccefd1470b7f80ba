"""The jars of a Kafka broker, fetched once by Maven."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tailrace.errors import EnvironmentUnfit

KAFKA = "4.3.1"
"""The broker's version."""

HOME = Path("out/kafka")
"""Where libraries and the data of ``python -m bench.broker`` go by default."""

POM = Path(__file__).with_name("kafka.pom.xml")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
STRICTLY = ("--batch-mode", "--quiet", "--strict-checksums")
"""Options for Maven: a checksum mismatch is an error, not a warning."""


def broker_jars(library: Path = HOME / "lib") -> list[Path]:
    """The broker's jars."""
    folder = library / f"broker-{KAFKA}"
    if folder.exists():
        return list(_jars(folder))
    try:
        return list(_fetched(folder))
    except _NotFetched as error:
        raise EnvironmentUnfit(
            f"Kafka {KAFKA} cannot be fetched from Maven ({error}): check the network, or Maven's "
            "settings."
        ) from error


class _NotFetched(Exception):  # noqa: N818 - it never leaves this module
    """Maven could not fetch something; the text is its reason."""


def _fetched(folder: Path) -> tuple[Path, ...]:
    """Let Maven fill a temporary folder and rename it, so that it is complete or missing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as place:
        staged = Path(place).resolve() / "jars"
        _maven(
            Path(place),
            "copy-dependencies",
            f"--file={POM}",
            f"-Dkafka={KAFKA}",
            f"-DoutputDirectory={staged}",
        )
        try:
            staged.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return _jars(folder)


def _jars(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.resolve().glob("*.jar")))


def _maven(place: Path, goal: str, *arguments: str) -> None:
    found = shutil.which("mvn")
    if found is None:
        raise EnvironmentUnfit(
            "There is no mvn on the PATH to fetch Kafka with: install Maven 3.6 or later."
        )
    command = [found, *STRICTLY, f"{PLUGIN}:{goal}", *arguments]
    said = subprocess.run(  # noqa: S603 - the path was found above
        command, cwd=place, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if said.returncode:
        raise _NotFetched(_reason(said.stdout + said.stderr))


def _reason(said: str) -> str:
    """The reason that Maven gives, without decoration."""
    errors = re.findall(r"\[ERROR\] (.*\S)", re.sub(r"\x1b\[\w*m", "", said))
    first = errors[0] if errors else "Maven gave no reason"
    return re.sub(r" -> \[Help.*", "", first.rpartition(": ")[2]).rstrip(" .")
