from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark import session as module
from tailrace.spark import settings
from tailrace.spark.cluster.process import HOST
from tailrace.spark.session import on_loopback, session, slots_of
from tailrace.spark.settings import SETTINGS, conf_of, findings, wanted
from tailrace.spark.worker.daemon import NEEDED
from tests.spark.support import by_value, even_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.spark
by_value(__name__)

SLOTS = 4
"""Those of the session that the tests share."""


def in_a_worker(spark: SparkSession, question: Callable[[], str]) -> list[str]:
    """What Python workers answer, each answer once."""

    def ask(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"said": [question()] * batch.num_rows})

    frame = spark.range(0, 4, 1, 2).mapInArrow(ask, "said string")
    return sorted({row.said for row in frame.collect()})


def sockets() -> str:
    """Which kinds of sockets this process holds."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    held = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    kinds = [
        kind
        for kind in ("tcp", "tcp6", "unix")
        if held & set(Path(f"/proc/self/net/{kind}").read_text().split())
    ]
    return " ".join(kinds)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_on_in_the_session_and_says_why(
    spark: SparkSession, setting: settings.Setting
) -> None:
    live = spark.conf.get(setting.key)
    assert live == wanted(SLOTS)[setting.key]
    assert setting.reason
    assert setting.cost


def test_a_session_of_ours_lacks_nothing(spark: SparkSession) -> None:
    assert findings(spark) == ()


def test_a_running_session_is_used_as_it_is(spark: SparkSession) -> None:
    assert session("another") is spark


def test_a_thread_that_did_nothing_with_spark_yet_gets_the_running_session_as_it_is(
    spark: SparkSession,
) -> None:
    """Such a thread has no active session, and building one would set the settings of this one."""
    before = spark.conf.getAll
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(session, ["one", "two"])) == [spark, spark]
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(SLOTS))
    assert spark.conf.getAll == before


def test_workers_run_the_drivers_interpreter_under_our_daemon(spark: SparkSession) -> None:
    (interpreter,) = in_a_worker(spark, lambda: sys.executable)
    assert Path(interpreter) == Path(sys.executable)
    (command,) = in_a_worker(spark, lambda: Path("/proc/self/cmdline").read_text())
    assert "tailrace.spark.worker.daemon" in command


def test_workers_are_forked_from_a_daemon_that_has_what_they_need_and_no_other_thread(
    spark: SparkSession,
) -> None:
    """They share its libraries: each has the same ones at the same place in memory."""

    def looks() -> str:
        places = [hex(id(sys.modules[name])) for name in NEEDED]
        threads = len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))
        return json.dumps([places, threads])

    answers = {said for _ in range(12) for said in in_a_worker(spark, looks)}
    (alike,) = answers
    assert json.loads(alike)[1] == 1


def test_workers_that_share_numpy_draw_different_random_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    def draws() -> str:
        (tmp_path / str(os.getpid())).touch()
        while len(list(tmp_path.iterdir())) < 2:
            threading.Event().wait(0.01)  # for the worker that has the other partition
        return str(np.random.random())  # noqa: NPY002 - the state that they might share

    assert len(in_a_worker(spark, draws)) == 2


def test_a_worker_has_little_garbage_to_look_through_after_its_first_tasks(
    spark: SparkSession,
) -> None:
    """What pyarrow and pandas bring along took 10 ms after every task."""
    loose = [in_a_worker(spark, lambda: str(len(gc.get_objects()))) for _ in range(24)]
    assert max(int(said) for answers in loose[-4:] for said in answers) < 10_000


def test_what_a_later_task_imports_is_kept_out_of_the_garbage_as_well(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A worker of other tests may have had its first tasks long ago."""
    lines = "\n".join(f"X{number} = [[], []]" for number in range(4_000))
    (tmp_path / "heavy_to_import.py").write_text(f"class Heavy:\n{textwrap.indent(lines, '    ')}")

    def imports() -> str:
        sys.path.insert(0, str(tmp_path))
        importlib.import_module("heavy_to_import")
        return str(os.getpid())

    def knows() -> str:
        return f"{os.getpid()} {len(gc.get_objects())}"

    for _ in range(12):
        in_a_worker(spark, lambda: "")
    importing = {pid for _ in range(12) for pid in in_a_worker(spark, imports)}
    answers = [answer.split() for _ in range(12) for answer in in_a_worker(spark, knows)]
    assert any(pid in importing for pid, _ in answers)
    assert all(int(loose) < 10_000 for pid, loose in answers if pid in importing)


def test_workers_talk_over_unix_domain_sockets(spark: SparkSession) -> None:
    assert in_a_worker(spark, sockets) == ["unix"]


def test_the_stack_is_deep_enough_for_what_spark_searches_when_a_query_is_stopped(
    spark: SparkSession,
) -> None:
    """By such a pattern (``PROXY_ERROR`` in StreamExecution), in 10 k of what Python says."""
    inside: Any = spark.sparkContext
    pattern = inside._jvm.java.util.regex.Pattern.compile("calling((.|\r\n|\r|\n)*)(Interrupted)")
    assert not pattern.matcher("calling" + 10_000 * "x").find()


def test_local_files_are_ours_and_start_no_process(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    make = jvm.org.apache.hadoop.fs.Path
    files = make(str(tmp_path)).getFileSystem(configuration)
    assert files.getClass().getName() == "tailrace.cluster.LocalFiles"
    permission = jvm.org.apache.hadoop.fs.permission.FsPermission("640")
    path = make(str(tmp_path / "made"))
    files.create(path).close()
    files.setPermission(path, permission)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640
    assert str(files.getFileStatus(path).getPermission().toString()) == "rw-r-----"
    before = _children_reaped(spark)
    for i in range(50):
        files.create(make(str(tmp_path / f"file-{i}"))).close()
        files.mkdirs(make(str(tmp_path / f"directory-{i}")))
    assert _children_reaped(spark) == before
    plain = jvm.org.apache.hadoop.fs.LocalFileSystem()
    plain.initialize(jvm.java.net.URI("file:///"), configuration)
    plain.create(make(str(tmp_path / "plain"))).close()
    assert _children_reaped(spark) > before  # so would ours have been seen to


def _children_reaped(spark: SparkSession) -> int:
    """CPU ticks and page faults of the children that the JVM has waited for: forks leave some."""
    fields = Path(f"/proc/{_pid(spark)}/stat").read_text().rpartition(")")[2].split()
    return int(fields[8]) + int(fields[10])  # minor and major faults of waited-for children


def _pid(spark: SparkSession) -> int:
    """The process of the JVM."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


@pytest.mark.skipif(
    bool(os.environ.keys() & module._ADDRESSED), reason="Spark has another address here"
)
def test_the_driver_of_a_session_in_one_process_listens_on_loopback_alone(
    spark: SparkSession,
) -> None:
    port = int(conf_of(spark, "spark.driver.port") or 0)
    ends: Any = psutil.Process(_pid(spark)).net_connections("tcp")
    open_to = {e.laddr.ip for e in ends if e.status == "LISTEN" and e.laddr.port == port}
    assert open_to
    assert open_to <= {HOST, f"::ffff:{HOST}"}
    assert conf_of(spark, "spark.driver.host") == HOST


LOOPBACK = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local", {}, LOOPBACK),
        ("local[2]", {}, LOOPBACK),
        ("local[*,3]", {"spark.ui.enabled": "true"}, LOOPBACK),
        (f"spark://{HOST}:7077", {}, LOOPBACK),
        ("spark://far.away:7077", {}, {}),
        (f"k8s://https://{HOST}:6443", {}, {}),  # its executors have a loopback of their own
        ("yarn", {}, {}),
        ("local[2]", {"spark.driver.host": "me.example"}, {}),
        (f"spark://{HOST}:7077", {"spark.driver.bindAddress": "0.0.0.0"}, {}),
    ],
)
def test_a_driver_listens_on_loopback_if_only_this_machine_needs_it_and_no_address_is_set(
    monkeypatch: pytest.MonkeyPatch, master: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    for variable in module._ADDRESSED:
        monkeypatch.delenv(variable, raising=False)
    assert on_loopback(master, given) == expected
    for variable in module._ADDRESSED:
        with monkeypatch.context() as said:
            said.setenv(variable, "10.1.2.3")
            assert on_loopback(master, given) == {}


@pytest.fixture
def worse(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with every live setting off."""
    off = {
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.sql.shuffle.partitions": "200",
        "spark.sql.streaming.checkpointFileManagerClass": "org.example.Slow",
    }
    before = {key: spark.conf.get(key) for key in off}
    for key, value in off.items():
        spark.conf.set(key, value)
    yield spark
    for key, kept in before.items():
        assert kept is not None
        spark.conf.set(key, kept)


def test_findings_name_each_bad_value_its_cost_and_its_remedy(worse: SparkSession) -> None:
    found = findings(worse)
    live = [setting for setting in SETTINGS if setting.live]
    assert len(found) == len(live)
    for setting, finding in zip(live, found, strict=True):
        assert not finding.fatal
        assert setting.cost in finding.what
        assert setting.key in finding.what + finding.remedy
        assert wanted(SLOTS)[setting.key] in finding.remedy


def test_a_few_more_shuffle_partitions_than_slots_are_no_finding(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    try:
        assert findings(spark) == ()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(SLOTS))


def test_a_plain_session_of_the_users_is_described_and_left_alone() -> None:
    program = textwrap.dedent(
        """
        from pyspark.sql import SparkSession
        from tailrace.spark.session import session
        from tailrace.spark.settings import SETTINGS, findings
        plain = (
            SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false").getOrCreate()
        )
        before = dict(plain.sparkContext.getConf().getAll())
        assert session() is plain
        assert dict(plain.sparkContext.getConf().getAll()) == before
        for finding in findings(plain):
            print(finding.what)
        plain.stop()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "costs" in line]
    assert len(lines) == len(SETTINGS)
    for setting in SETTINGS:
        assert any(setting.cost in line for line in lines), setting.key


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", os.cpu_count()),
        ("local", 1),
        ("spark://host:7077", os.cpu_count()),
    ],
)
def test_the_slots_of_a_master_are_known(master: str, slots: int) -> None:
    assert slots_of(master) == slots


def test_a_missing_jar_is_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "JAR", tmp_path / "none.jar")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(EnvironmentUnfit, match="Tailrace's Java part is not built: run"):
        session()


@pytest.mark.parametrize(
    ("executors", "given", "said"),
    [
        ((4, 2), {}, "From 4 to 2 executors is not a range: give"),
        ((0, 2), {}, "From 0 to 2 executors is not a range: give"),
        ((1, 2), {"spark.executor.cores": "x"}, "'x' is not a value for spark.executor.cores"),
        ((1, 2), {"spark.executor.cores": "0"}, "'0' is not a value for spark.executor.cores"),
        ((1, 2), {"spark.executor.cores": "-1"}, "'-1' is not a value for spark.executor.cores"),
    ],
)
def test_executors_that_cannot_be_are_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, executors: tuple[int, int], given: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(InputError, match=said):
        session(master=f"spark://{HOST}:7077", settings=given, executors=executors)


def test_the_log_of_a_query_has_one_small_file_an_entry_and_no_checksums(
    spark: SparkSession, tmp_path: Path
) -> None:
    even_trace(10, 1e9).save(tmp_path / "load.trace")
    frame = spark.readStream.format("tailrace-replay").option("trace", str(tmp_path / "load.trace"))
    query = (
        frame.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    for log in ("offsets", "commits"):
        names = sorted(path.name for path in (tmp_path / "checkpoint" / log).iterdir())
        assert [name for name in names if not name.endswith(".crc")] == ["0"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            """The value 'hunter2' in the config "spark.x.password" is invalid""",
            "'***' is not a value for spark.x.password: set it to another.",
        ),
        (
            "An error\n: java.net.URISyntaxException: https://u:hunter2@h",
            "Spark did not start (java.net.URISyntaxException: https://u:***@h)",
        ),
    ],
)
def test_why_spark_did_not_start_is_said_without_secrets(said: str, shown: str) -> None:
    assert str(module._not_started(said)).startswith(shown)
