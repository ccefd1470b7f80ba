from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.sources import connector
from tailrace.spark.sources.connector import PARTS, candidates, find, with_connector

if TYPE_CHECKING:
    from pathlib import Path

OWN = version("pyspark")
CLIENTS, POOL = "1.2.3", "4.5.6"
GROUPS = dict(
    zip(PARTS, ["org.apache.spark"] * 2 + ["org.apache.kafka", "org.apache.commons"], strict=True)
)
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
<dependencies>{dependencies}</dependencies></project>
"""
NEEDS = """\
<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version></dependency>
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without caches, and no settings from outside."""
    for name in ("XDG_CACHE_HOME", "SPARK_CONF_DIR", connector.FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".m2").mkdir(parents=True)
    return tmp_path / "home"


def publish(root: Path, artifact: str, number: str, needs: dict[str, str] | None = None) -> None:
    """Put an artifact into a Maven repository: a description, and a jar that names itself."""
    group = GROUPS[artifact]
    folder = root / group.replace(".", "/") / artifact / number
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(
        NEEDS.format(group=GROUPS[name], artifact=name, version=wanted)
        for name, wanted in (needs or {}).items()
    )
    described = POM.format(
        group=group, artifact=artifact, version=number, dependencies=dependencies
    )
    (folder / f"{artifact}-{number}.pom").write_text(described, encoding="utf-8")
    (folder / f"{artifact}-{number}.jar").write_text(f"{artifact} {number}", encoding="utf-8")


def repository(root: Path, pairs: list[tuple[str, str]]) -> Path:
    """A Maven repository that has these connectors and token providers and what they need."""
    for own, tokens in pairs:
        needs = {PARTS[1]: own, "kafka-clients": CLIENTS, "commons-pool2": POOL}
        publish(root, PARTS[0], own, needs)
        publish(root, PARTS[1], tokens)
    publish(root, "kafka-clients", CLIENTS)
    publish(root, "commons-pool2", POOL)
    return root


def mirrored(home: Path, url: str) -> None:
    """Have the user's Maven settings name a mirror of everything."""
    (home / ".m2" / "settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror><id>m</id>'
        f"<mirrorOf>*</mirrorOf><url>{url}</url></mirror></mirrors></settings>",
        encoding="utf-8",
    )


def texts(jars: tuple[Path, ...]) -> set[str]:
    return {jar.read_text(encoding="utf-8") for jar in jars}


def unreachable() -> None:
    raise AssertionError("Java was started for what is in the cache")


@pytest.mark.parametrize("first", range(len(candidates())))
def test_the_most_preferred_connector_that_can_be_had_is_taken_and_kept(
    first: int,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirrored(home, repository(tmp_path / "repository", list(candidates()[first:])).as_uri())
    had = find()
    assert (had.version, had.tokens) == candidates()[first]
    assert texts(had.jars) == {
        f"{PARTS[0]} {had.version}",
        f"{PARTS[1]} {had.tokens}",
        f"kafka-clients {CLIENTS}",
        f"commons-pool2 {POOL}",
    }
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if first else 0)
    assert (f"Spark {OWN} runs with the Kafka connector of Spark 4.2.0" in said) == bool(first)
    shutil.rmtree(tmp_path / "repository")
    monkeypatch.setattr(connector, "find_java", unreachable)
    assert find() == had
    assert capsys.readouterr().err == ""


def test_the_ivy_settings_of_the_user_are_what_the_connector_is_looked_for_with(
    tmp_path: Path,
) -> None:
    root = repository(tmp_path / "repository", [(OWN, OWN)]).as_uri()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='ours'/><resolvers>"
        f"<ibiblio name='ours' m2compatible='true' root='{root}'/></resolvers></ivysettings>",
        encoding="utf-8",
    )
    chosen = {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(tmp_path / "ivy")}
    assert texts(find(settings=chosen).jars) >= {f"{PARTS[0]} {OWN}"}


def test_without_any_connector_one_sentence_says_why_and_what_to_do(
    home: Path, tmp_path: Path
) -> None:
    mirrored(home, (tmp_path / "empty").as_uri())
    with pytest.raises(EnvironmentUnfit) as refused:
        find()
    assert str(refused.value) == (
        "Spark's Kafka connector could not be fetched from Maven (org.apache.spark#"
        "spark-sql-kafka-0-10_2.13;4.2.0: not found): check the network, set a mirror with "
        "spark.jars.repositories or spark.jars.ivySettings, or name a folder that has its jars "
        "with tailrace.session(kafka=...) or TAILRACE_JARS."
    )
    assert not list(home.rglob("*.jar"))


def test_a_repository_that_never_answers_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "RESOLVE_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mirrored(home, f"http://127.0.0.1:{mute.getsockname()[1]}/maven")
        with pytest.raises(EnvironmentUnfit, match=r"\(the repository did not answer within 3 s\)"):
            find()


def test_maven_settings_that_are_not_xml_are_named(home: Path) -> None:
    (home / ".m2" / "settings.xml").write_text("<settings>", encoding="utf-8")
    with pytest.raises(EnvironmentUnfit, match=r"settings.xml is not XML \(.*\): fix it"):
        find()


@pytest.mark.parametrize(
    ("of", "taken"),
    [
        ("central", True),
        ("*", True),
        ("external:*", True),
        ("*,!central", False),
        ("jcenter", False),
    ],
)
def test_a_mirror_counts_that_stands_for_maven_central(of: str, taken: bool, home: Path) -> None:
    mirrored(home, "https://mirror.example/maven")
    file = home / ".m2" / "settings.xml"
    file.write_text(file.read_text("utf-8").replace(">*<", f">{of}<"), encoding="utf-8")
    assert (connector._mirror(home / ".m2") == "https://mirror.example/maven") == taken


def a_folder(path: Path, names: list[str]) -> Path:
    path.mkdir()
    for name in names:
        (path / name).touch()
    return path


MAVEN_NAMES = [
    f"{PARTS[0]}-4.2.0.jar",
    f"{PARTS[1]}-4.2.0.jar",
    "kafka-clients-3.9.2.jar",
    "commons-pool2-2.13.1.jar",
]
IVY_NAMES = [f"{GROUPS[name.rpartition('-')[0]]}_{name}" for name in MAVEN_NAMES]


@pytest.mark.parametrize("names", [MAVEN_NAMES, IVY_NAMES])
@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_folder_that_is_named_gives_the_connector_and_nothing_else_is_asked(
    how: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "find_java", unreachable)
    others = [f"{PARTS[0]}-4.2.0-sources.jar", f"{PARTS[0]}-4.1.3.jar", "hadoop-client-api-3.4.jar"]
    folder = a_folder(tmp_path / "jars", [*names, *others])
    monkeypatch.setenv(connector.FOLDER, str(folder if how == "variable" else tmp_path / "other"))
    had = find(folder if how == "argument" else True)
    assert (had.version, had.tokens) == ("4.2.0", "4.2.0")
    assert sorted(jar.name for jar in had.jars) == sorted(names)


def test_a_folder_that_lacks_a_part_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "jars", MAVEN_NAMES[:2])
    with pytest.raises(EnvironmentUnfit) as refused:
        find(folder)
    assert str(refused.value) == (
        f"The folder {folder} has no jar of kafka-clients, commons-pool2: put it there, or leave "
        "out the folder to have the connector downloaded."
    )


def test_a_preview_is_older_than_what_it_previews(tmp_path: Path) -> None:
    names = [f"{PARTS[0]}-{number}.jar" for number in ("4.2.0", "4.2.0-preview5", "4.1.10")]
    newest = connector._newest(a_folder(tmp_path / "jars", names), PARTS[0])
    assert newest is not None
    assert newest.name == f"{PARTS[0]}-4.2.0.jar"


@pytest.mark.parametrize(
    "given",
    [
        {"spark.jars": f"/jars/{PARTS[0]}-4.2.0.jar"},
        {"spark.jars.packages": f"org.apache.spark:{PARTS[0]}:4.2.0"},
        {"spark.driver.extraClassPath": f"/jars/{PARTS[0]}-4.2.0.jar"},
    ],
)
@pytest.mark.parametrize("where", ["settings", "spark-defaults.conf"])
def test_a_connector_that_the_user_has_set_is_left_as_it_is(
    where: str, given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "settings":
        assert with_connector(given, True) == given
        return
    lines = "".join(f"{key}  {value}\n" for key, value in given.items())
    (tmp_path / where).write_text(f"# ours\n{lines}", encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert with_connector({"spark.ui.enabled": "false"}, True) == {"spark.ui.enabled": "false"}


def test_the_connector_joins_the_jars_that_a_session_has(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "jars", MAVEN_NAMES)
    jars = [str(folder / name) for name in MAVEN_NAMES]
    given = {"spark.jars": "/mine.jar", "spark.executor.memory": "2g"}
    assert with_connector(given, folder) == {
        "spark.executor.memory": "2g",
        "spark.jars": ",".join(["/mine.jar", *jars]),
        "spark.driver.extraClassPath": os.pathsep.join(jars),
    }


WITHOUT_IT = """\
import sys
import tailrace as tr
from tailrace.errors import EnvironmentUnfit

spark = tr.session(master="local[1]")
for _ in range(2):  # a session that runs, and one in the JVM that it leaves behind
    try:
        tr.session(master="local[1]", kafka=sys.argv[1])
    except EnvironmentUnfit as refused:
        print(refused)
    spark.stop()
"""
WITH_IT = """\
import sys
import tailrace as tr

spark = tr.session(master="local[1]", kafka=sys.argv[1])
print(spark.read.format("kafka").options(
    subscribe="any", **{"kafka.bootstrap.servers": "127.0.0.1:9"}).load().columns[:2])
"""


@pytest.mark.apart
@pytest.mark.spark
def test_the_advice_for_a_session_without_the_connector_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the connector of this machine
    try:
        folder = find().jars[0].parent
    except EnvironmentUnfit as unfit:
        pytest.skip(str(unfit))
    sentence = (
        "This session has no Kafka connector, and a running JVM cannot load one: restart "
        "Python and begin with tailrace.session(kafka=True).\n"
    )
    assert _python(WITHOUT_IT, folder, tmp_path) == sentence * 2
    assert _python(WITH_IT, folder, tmp_path) == "['key', 'value']\n"


def _python(program: str, folder: Path, place: Path) -> str:
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=True, timeout=300
    ).stdout
