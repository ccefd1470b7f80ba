"""The jars of a Kafka broker, and of Spark's connector to it, fetched once by Maven.

Spark's connector is published with Spark. Where the one of the installed version cannot be had, the
newest earlier one that runs with it is taken, and said.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tailrace.errors import EnvironmentUnfit

KAFKA = "4.3.1"
"""The broker's version."""

HOME = Path("out/kafka")
"""Where libraries and the data of ``python -m tailrace.bench.broker`` go unless told otherwise."""

POM = Path(__file__).with_name("kafka.pom.xml")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
STRICTLY = ("--batch-mode", "--quiet", "--strict-checksums")
"""How Maven is called: a file that does not match its checksum is an error, not a warning."""

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"


@dataclass(frozen=True, slots=True)
class Connector:
    """The jars that let Spark speak to Kafka, and what is to be known about them."""

    version: str
    tokens: str
    jars: tuple[Path, ...]

    @property
    def note(self) -> str | None:
        """What is not as it should be, or nothing."""
        spark = version("pyspark")
        odd = [] if self.version == spark else [f"the Kafka connector of Spark {self.version}"]
        if self.tokens != self.version:
            odd.append(f"the Kafka token provider of Spark {self.tokens}")
        if not odd:
            return None
        return f"Spark {spark} runs with {' and '.join(odd)}: its own could not be had from Maven."


def candidates() -> tuple[tuple[str, str], ...]:
    """Connectors in the order of preference: each its version and that of its token provider.

    Spark's own comes first. The others are earlier ones that were tried on Spark 4.3.0, in
    batches, micro-batches and real-time mode; the last has the newest token provider of some
    repositories that hold only a part of Spark 4.2.
    """
    own = version("pyspark")
    return ((own, own), ("4.2.0", "4.2.0"), ("4.2.0", "4.1.0-preview1"))


def connector(library: Path = HOME / "lib") -> Connector:
    """The best connector that can be had; the one that was had before, if there is one."""
    refusals = []
    wanted = [(*pair, library / f"connector-{'-with-'.join(pair)}") for pair in candidates()]
    for spark, tokens, folder in wanted:
        if folder.exists():
            return Connector(spark, tokens, _jars(folder))
    for spark, tokens, folder in wanted:
        try:
            described = _description(spark)
            versions = {"connector": spark, "tokens": tokens}
            versions |= {"clients": _version_in(described, "kafka-clients")}
            versions |= {"pool": _version_in(described, "commons-pool2")}
            return Connector(spark, tokens, _fetched("connector", folder, versions))
        except _NotFetched as error:
            refusals.append(str(error))
    raise EnvironmentUnfit(
        f"Spark's Kafka connector cannot be had from Maven ({refusals[-1]}): check the network, "
        "or Maven's settings."
    )


def connector_jars(library: Path = HOME / "lib") -> list[Path]:
    """The connector's jars, for ``spark.jars``."""
    return list(connector(library).jars)


def broker_jars(library: Path = HOME / "lib") -> list[Path]:
    """The broker's jars."""
    folder = library / f"broker-{KAFKA}"
    if folder.exists():
        return list(_jars(folder))
    try:
        return list(_fetched("broker", folder, {"kafka": KAFKA}))
    except _NotFetched as error:
        raise EnvironmentUnfit(
            f"Kafka {KAFKA} cannot be had from Maven ({error}): check the network, or Maven's "
            "settings."
        ) from error


class _NotFetched(Exception):  # noqa: N818 - it never leaves this module
    """Maven could not fetch something; the text is its reason."""


def _description(spark: str) -> str:
    """The connector's own pom, which names the versions of what it was built with."""
    with tempfile.TemporaryDirectory(prefix="tailrace-") as place:
        _maven(
            Path(place), "copy", f"-Dartifact={CONNECTOR}:{spark}:pom", f"-DoutputDirectory={place}"
        )
        return next(Path(place).glob("*.pom")).read_text(encoding="utf-8")


def _version_in(pom: str, artifact: str) -> str:
    found = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>([\w.-]+)</version>", pom)
    if found is None:
        raise _NotFetched(f"its description names no version of {artifact}")
    return found[1]


def _fetched(profile: str, folder: Path, versions: dict[str, str]) -> tuple[Path, ...]:
    """Let Maven fill a folder beside the one wanted and rename it, so that it is whole or not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as place:
        staged = Path(place).resolve() / "jars"
        settings = [f"-D{name}={value}" for name, value in versions.items()]
        _maven(
            Path(place),
            "copy-dependencies",
            f"--file={POM}",
            f"--activate-profiles={profile}",
            f"-DoutputDirectory={staged}",
            *settings,
        )
        try:
            staged.rename(folder)
        except OSError:  # someone else was faster
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
    """What Maven gives as the reason, without its decoration."""
    errors = re.findall(r"\[ERROR\] (.*\S)", re.sub(r"\x1b\[\w*m", "", said))
    first = errors[0] if errors else "Maven gave no reason"
    return re.sub(r" -> \[Help.*", "", first.rpartition(": ")[2]).rstrip(" .")


# --- the broker --------------------------------------------------------------------------------
