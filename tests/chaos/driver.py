"""A driver that runs flows of ``flows.py`` as it is told, until it is killed.

Usage: ``python -m tests.chaos.driver MASTER``. A line of standard input is a command in JSON: start
a flow on its place, or stop some. A line of standard output is what came of one flow: ``started``,
``ok`` (it was stopped), ``refused``, ``failed``, or ``traceback`` for what is not said in one
sentence. It ends, all flows stopped, with SIGTERM or with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.errors import EnvironmentUnfit, InputError, TailraceError
from tailrace.spark.backends import base, realtime
from tailrace.spark.backends.telemetry import TelemetryServer
from tailrace.spark.cluster.process import free_ports
from tailrace.spark.health import selftest
from tailrace.spark.jvm.java import JAR
from tailrace.spark.session import session
from tailrace.spark.sources import connector

from . import flows

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from tailrace.spark.worker.telemetry import TelemetryClient

LONGEST_END_S = 40.0
"""A driver that does not end by then is ended: nothing may outlive the harness."""

MIN_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"

_saying = threading.Lock()
_starting = threading.Lock()


def say(**what: Any) -> None:
    """One line for the harness; one that is not there any more hears nothing."""
    with _saying:
        try:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            flows.ending.set()


class Running(threading.Thread):
    """One flow: started, watched, and stopped when asked."""

    def __init__(self, spark: SparkSession, told: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.flow: str = told["start"]
        self._place = flows.Place(Path(told["place"]), told["servers"])
        self._how = flows.How(**told["how"])
        self._spark = spark
        self.asked = threading.Event()

    def run(self) -> None:
        """Do it all, and say how it ended."""
        try:
            self._run()
        except TailraceError as error:
            refused = isinstance(error, InputError | EnvironmentUnfit)
            event = "refused" if refused else "failed"
            say(flow=self.flow, event=event, kind=type(error).__name__, sentence=str(error))
        except Exception as error:  # noqa: BLE001 - what it is, is said
            text = traceback.format_exc()
            say(flow=self.flow, event="traceback", kind=type(error).__name__, sentence=text)
        else:
            say(flow=self.flow, event="ok")

    def _run(self) -> None:
        restored: dict[str, Any] = {"after_restore": True} if self._how.after_restore else {}
        with _starting:
            vars(base)["TelemetryServer"] = Deaf if self._how.deaf else TelemetryServer
            flow = flows.made(self.flow, self._place, self._how)
            run = flow.start(self._spark, plan=flows.planned(self.flow), **restored)
        say(flow=self.flow, event="started")
        while not self.asked.wait(0.1) and not run.wait(0):
            pass
        run.stop()


class Deaf(TelemetryServer):
    """Tasks speak to a port where nothing listens."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.client: TelemetryClient = replace(self.client, port=next(free_ports()))


def made_session(master: str) -> SparkSession:
    vars(realtime)["SHORTEST_BATCH_MS"] = flows.BATCH_MS
    jars = [str(JAR)]
    try:
        jars += [str(jar) for jar in connector.find().jars]
    except EnvironmentUnfit as unfit:
        say(flow=None, event="note", sentence=str(unfit))
    settings = {
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": os.environ["TMPDIR"],
        MIN_BATCH: f"{flows.BATCH_MS:.0f}ms",
    }
    if not master.startswith("local"):
        settings |= {"spark.executor.memory": "512m", "spark.executor.cores": "10"}
        settings |= {"spark.executor.extraClassPath": ":".join(jars)}
    spark = session("chaos", master=master, settings=settings)
    selftest._passed.add(spark.sparkContext.applicationId or "")  # it costs seconds of every life
    return spark


def asked_to_end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls it
    raise EOFError


def serve(spark: SparkSession) -> None:
    """Do as told until standard input ends."""
    running: dict[str, Running] = {}
    try:
        for line in sys.stdin:
            told = json.loads(line)
            if "start" in told:
                running[told["start"]] = Running(spark, told)
                running[told["start"]].start()
            for flow in told.get("stop", ()):
                running[flow].asked.set()
    except EOFError:
        pass
    flows.ending.set()
    watch = threading.Timer(LONGEST_END_S, os._exit, [2])
    watch.daemon = True
    watch.start()
    for each in running.values():
        each.asked.set()
    for each in running.values():
        each.join()


def main(master: str) -> None:
    """Serve, and end."""
    signal.signal(signal.SIGTERM, asked_to_end)
    spark = made_session(master)
    inside: Any = spark.sparkContext
    say(flow=None, event="ready", jvm=inside._gateway.proc.pid)
    serve(spark)
    if inside._gateway.proc.poll() is None:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
