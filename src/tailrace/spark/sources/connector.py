"""Spark's Kafka connector: which one a session gets, and where its jars come from.

The connector is published with Spark but is not part of PySpark, and a session must have it from
the start. If the connector of the installed version is not available, the newest earlier one that
is known to work with it is used, and a line says so. It is searched for in this order:

1. what the session has anyway: Spark's own jars, or the user's ``spark.jars`` and the like;
2. a folder of jars that the user names, by ``session(kafka="folder")`` or ``TAILRACE_JARS``;
3. the user's cache, which has the connector once it was found: no cost, no network;
4. Maven coordinates, through Spark's own resolver with its caches, repositories and settings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.find_spark_home import _find_spark_home

from tailrace import cache
from tailrace.errors import EnvironmentUnfit
from tailrace.spark.jvm.java import JAR, find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

FORMAT = "kafka"
FOLDER = "TAILRACE_JARS"
"""The environment variable that names a folder with the connector's jars."""

ARTIFACT = "spark-sql-kafka-0-10_2.13"
PARTS = (ARTIFACT, "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""What Spark lacks; everything else that the connector depends on is among Spark's own jars, and
two versions of one jar cause errors at run time that are hard to explain."""

RESOLVE_S = 180.0
"""How long all attempts to fetch the connector may take together."""

_PLACES = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_RESOLVING = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories")


@dataclass(frozen=True, slots=True)
class Connector:
    """The jars that let Spark talk to Kafka, and the versions of the two parts."""

    version: str
    tokens: str
    jars: tuple[Path, ...]

    @property
    def note(self) -> str | None:
        """Which parts are not of Spark's own version, if any."""
        spark = version("pyspark")
        odd = [] if self.version == spark else [f"the Kafka connector of Spark {self.version}"]
        if self.tokens != self.version:
            odd.append(f"the Kafka token provider of Spark {self.tokens}")
        return f"Spark {spark} runs with {' and '.join(odd)}" if odd else None


def candidates() -> tuple[tuple[str, str], ...]:
    """Connectors in order of preference: the version of each and of its token provider.

    Spark's own comes first. The others are earlier ones that were tried on Spark 4.3.0, in
    batches, micro-batches and real-time mode; the last has the newest token provider found in some
    repositories that hold only part of Spark 4.2.
    """
    own = version("pyspark")
    return ((own, own), ("4.2.0", "4.2.0"), ("4.2.0", "4.1.0-preview1"))


def with_connector(settings: Mapping[str, str], wanted: bool | str | Path) -> dict[str, str]:
    """The settings for a new session, with the connector's jars added."""
    known = {**_defaults(), **settings}
    if _is_there(known):
        return dict(settings)
    jars = [str(jar) for jar in find(wanted, known).jars]
    places = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep}
    added = {
        place: comma.join([*filter(None, [known.get(place)]), *jars])
        for place, comma in places.items()
    }
    return {**settings, **added}


def find(wanted: bool | str | Path = True, settings: Mapping[str, str] | None = None) -> Connector:
    """The connector from the given folder, else from the cache, else from Maven."""
    folder = os.environ.get(FOLDER) if isinstance(wanted, bool) else wanted
    if folder:
        return _in_folder(Path(folder))
    for own, tokens in candidates():
        jars = _cached(_cache(own, tokens))
        if jars:
            return Connector(own, tokens, jars)
    return _resolved(settings or {})


def require_connector(spark: SparkSession) -> None:
    """Refuse a session that does not have the connector."""
    try:
        # Loading a topic contacts no server until it is read; it only needs an address.
        nowhere = {"kafka.bootstrap.servers": "127.0.0.1:9"}
        spark.read.format(FORMAT).options(subscribe="any", **nowhere).load()
    except (AnalysisException, Py4JJavaError) as error:
        raise EnvironmentUnfit(
            "This session has no Kafka connector, and a running JVM cannot load one: restart "
            "Python and begin with tailrace.session(kafka=True)."
        ) from error


# --- what is there ---------------------------------------------------------------------------


def _is_there(settings: Mapping[str, str]) -> bool:
    """Whether a session has the connector anyway."""
    named = any(ARTIFACT in settings.get(place, "") for place in _PLACES)
    return named or _newest(_spark_home() / "jars", ARTIFACT) is not None


def _defaults() -> dict[str, str]:
    """The settings in ``spark-defaults.conf``, as Spark reads them."""
    folder = os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf"
    file = Path(folder) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    text = file.read_text("utf-8")
    return dict(re.findall(r"^\s*(spark\.[\w.]+)[ \t=:]+(\S.*?)\s*$", text, re.MULTILINE))


def _spark_home() -> Path:
    return Path(_find_spark_home())


def _in_folder(folder: Path) -> Connector:
    found = {part: _newest(folder, part) for part in PARTS}
    missing = [part for part, jar in found.items() if jar is None]
    if missing:
        raise EnvironmentUnfit(
            f"The folder {folder} has no jar of {', '.join(missing)}: put it there, or leave out "
            "the folder to have the connector downloaded."
        )
    jars = [jar for jar in found.values() if jar is not None]
    own, tokens = (_version_of(jars[n].name, PARTS[n]) or "" for n in range(2))
    return Connector(own, tokens, tuple(jar.resolve() for jar in jars))


def _newest(folder: Path, part: str) -> Path | None:
    """The jar of an artifact in a folder, as Maven or as Ivy names it."""
    jars = [jar for jar in folder.glob("*.jar") if _version_of(jar.name, part)]
    return max(jars, key=lambda jar: _order(_version_of(jar.name, part) or ""), default=None)


def _version_of(name: str, part: str) -> str | None:
    found = re.fullmatch(rf"(?:[\w.]+_)?{re.escape(part)}-(\d[\w.]*(?:-preview\d+)?)\.jar", name)
    return None if found is None else found[1]


def _order(of: str) -> tuple[list[int], bool]:
    """A sort key: versions by their numbers, a preview before its release."""
    return [int(number) for number in re.findall(r"\d+", of)[:3]], "-" not in of


def _cache(own: str, tokens: str) -> Path:
    """Where a connector for the installed Spark is cached."""
    home = cache.directory() / "kafka" / f"spark-{version('pyspark')}"
    return home / f"{own}-with-{tokens}"


def _cached(folder: Path) -> tuple[Path, ...]:
    """The jars of a folder in the cache, unless other users may have put them there."""
    if not folder.is_dir() or cache.distrusted(folder):
        return ()
    return tuple(sorted(folder.glob("*.jar")))


# --- what Maven has ----------------------------------------------------------------------------


def _resolved(settings: Mapping[str, str]) -> Connector:
    """Ask Spark's resolver for each candidate in turn, and keep what it found."""
    pairs = {f"{own}/{tokens}": (own, tokens) for own, tokens in candidates()}
    said = _ask(list(pairs), settings)
    refusals = re.findall(r"^refused \S+: (.*)$", said, re.MULTILINE)
    _, found, rest = said.partition("found ")
    if not found:
        reason = refusals[-1] if refusals else said.strip() or "no reason given"
        raise EnvironmentUnfit(
            f"Spark's Kafka connector could not be fetched from Maven ({reason}): check the "
            "network, set a mirror with spark.jars.repositories or spark.jars.ivySettings, or name "
            f"a folder that has its jars with tailrace.session(kafka=...) or {FOLDER}."
        )
    pair, *jars = rest.splitlines()
    had = Connector(*pairs[pair], _kept(_cache(*pairs[pair]), [Path(jar) for jar in jars]))
    if had.note:
        print(f"tailrace: {had.note} ({refusals[0]}).", file=sys.stderr)
    return had


def _ask(pairs: list[str], settings: Mapping[str, str]) -> str:
    """The resolver's output, or why it has none; it runs in a JVM of its own."""
    with tempfile.TemporaryDirectory(prefix="tailrace-") as place:
        chosen = {key: settings[key] for key in _RESOLVING if key in settings}
        mirror = _mirror(Path.home() / ".m2")
        if mirror and chosen.keys() <= {"spark.jars.ivy"}:
            chosen["spark.jars.ivySettings"] = str(_ivy_settings(Path(place), mirror))
        chosen["user.home"] = str(Path.home())  # Java asks the system, not HOME
        options = [f"-D{key}={value}" for key, value in chosen.items()]
        jars = os.pathsep.join([str(JAR), str(_spark_home() / "jars" / "*")])
        command = [str(find_java()), *options, "-cp", jars, "tailrace.cluster.Resolver", *pairs]
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                command, capture_output=True, text=True, check=False, timeout=RESOLVE_S
            )
        except subprocess.TimeoutExpired:
            return f"the repository did not answer within {RESOLVE_S:.0f} s"
    return done.stdout or done.stderr.strip().partition("\n")[0]


def _mirror(maven: Path) -> str | None:
    """The mirror of Maven Central in the user's Maven settings, which Ivy does not read."""
    file = maven / "settings.xml"
    if not file.is_file():
        return None
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 - the user's own file
    except ElementTree.ParseError as error:
        raise EnvironmentUnfit(f"{file} is not XML ({error}): fix it, or remove it.") from error
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        fields = {entry.tag.rpartition("}")[2]: (entry.text or "").strip() for entry in mirror}
        of = {name.strip() for name in fields.get("mirrorOf", "").split(",")}
        if of & {"central", "*", "external:*"} and "!central" not in of:
            return fields.get("url")
    return None


def _ivy_settings(place: Path, mirror: str) -> Path:
    """Ivy settings that search the user's Maven folder and then a mirror, and nothing else."""
    local = (Path.home() / ".m2" / "repository").as_uri()
    resolvers = "".join(
        f"<ibiblio name={quoteattr(name)} m2compatible='true' root={quoteattr(root)}/>"
        for name, root in (("local", local), ("mirror", mirror))
    )
    file = place / "ivysettings.xml"
    file.write_text(
        "<ivysettings><settings defaultResolver='both'/><resolvers>"
        f"<chain name='both' returnFirst='true'>{resolvers}</chain></resolvers></ivysettings>",
        encoding="utf-8",
    )
    return file


def _kept(folder: Path, jars: list[Path]) -> tuple[Path, ...]:
    """Copy jars next to the target folder and rename that, so that it is complete or missing."""
    try:
        cache.made(folder.parent)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as place:
            staged = Path(place) / "jars"
            staged.mkdir()
            for jar in jars:
                shutil.copyfile(jar, staged / jar.name)
            staged.rename(folder)
    except OSError:  # another process was faster, or the cache is not writable: use them uncached
        return tuple(jars)
    return tuple(sorted(folder.glob("*.jar")))
