"""The faults, one function each: what is done, and a note of it.

A fault is *live* (the driver runs on), *killing* (it is gone afterwards) or *between* two runs (the
driver is ended or killed, then something is changed on the disk or in the program). A flow that is
refused after a fault between two runs gets its remedy, which is what the sentence should ask for.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import psutil

from tailrace.errors import EnvironmentUnfit

from .flows import FLOWS, POINTS, PUBLISHED
from .oracle import committed
from .process import Stuck, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from .scene import Scene

KEYED = ("keyed", "realtime")
STATEFUL = ("keyed", "aggregation", "realtime")
BY_FILES = tuple(flow for flow in FLOWS if PUBLISHED[flow])
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Kind(StrEnum):
    """What becomes of the driver."""

    LIVE = "live"
    KILLING = "killing"
    BETWEEN = "between"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; ``flow`` in its functions is one of ``flows``, the ones that it is about.

    Without a remedy, starting again must do.
    """

    name: str
    kind: Kind
    act: Callable[[Scene, str, Random], str]
    flows: tuple[str, ...] = FLOWS
    remedy: Callable[[Scene, str], None] | None = None


# --- moments -----------------------------------------------------------------------------------


def await_moment(scene: Scene, draw: Random) -> str:
    """Wait for a moment: at a point of a batch of one of the flows, or at random."""
    batches = [flow for flow in scene.flows if flow != "realtime"]
    if not batches or draw.random() < 0.4:
        wait_s = draw.uniform(0.0, 1.0)
        threading.Event().wait(wait_s)
        return f"after {wait_s:.2f} s"
    flow, point = draw.choice(batches), draw.choice(POINTS)
    place = scene.places[flow]
    place.reached.unlink(missing_ok=True)
    place.armed.write_text(point)
    with suppress(Stuck):
        until(place.reached.exists, "a point", 20.0)
        return f"before {point} of {flow}"
    return f"before {point} of {flow}, which did not come"


# --- live faults -------------------------------------------------------------------------------


def kill_worker(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill a Python worker, or the daemon that all are forked from."""
    workers = sorted(scene.driver.workers(), key=lambda process: process.pid)
    if not workers:
        return "no worker was there"
    family = {process.pid for process in workers}
    daemons = [w for w in workers if w.ppid() not in family]
    victim = draw.choice(daemons if draw.random() < 0.25 else workers)
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    return "the daemon" if victim in daemons else "a worker"


def pause(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Stop the driver, its JVM or its workers for a while, and continue."""
    which = draw.choice(("driver", "jvm", "workers", "all"))
    driver = psutil.Process(scene.driver.pid)
    stopped = {
        "driver": [driver],
        "jvm": [psutil.Process(scene.driver.jvm)],
        "workers": scene.driver.workers(),
        "all": scene.driver.processes(),
    }[which]
    seconds = draw.uniform(0.5, 4.0)
    try:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        threading.Event().wait(seconds)
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    return f"{which} for {seconds:.1f} s"


def fill_disk(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Let nothing be written for a while: no file of the processes may hold a byte more.

    The limit on the size of files needs no rights that a user has not, and no file system of its
    own; what writes gets an error as it does from a full disk.
    """
    limited = scene.driver.processes()
    seconds = draw.uniform(0.5, 3.0)
    _limit(limited, 0)
    try:
        threading.Event().wait(seconds)
    finally:
        _limit([*limited, *scene.driver.processes()], psutil.RLIM_INFINITY)
    return f"for {seconds:.1f} s"


def _limit(processes: list[psutil.Process], size: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            _, most = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (size, most))


def kill_broker(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill Kafka, and start it again on its data after a while."""
    assert scene.broker is not None
    scene.broker.kill()
    seconds = draw.uniform(0.0, 6.0)
    threading.Event().wait(seconds)
    try:
        scene.broker.start()
    except EnvironmentUnfit as unfit:
        raise Stuck(str(unfit)) from unfit
    return f"for {seconds:.1f} s and the time that it takes to start"


def send_garbage(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Fill the port that tasks report to with what is no report."""
    driver = psutil.Process(scene.driver.pid)
    ports = [c.laddr.port for c in driver.net_connections("udp4") if c.laddr]
    rubbish = (
        b"",
        draw.randbytes(900),
        draw.randbytes(60_000),
        b"[" * 50_000,
        json.dumps({"token": None, "speaker": 3}).encode(),
        b'{"token": "0123456789abcdef", "sink": 7}',
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in ports:
            for _ in range(2_000):
                sender.sendto(draw.choice(rubbish), ("127.0.0.1", port))
    return f"2000 datagrams to each of {len(ports)} ports"


def executors() -> list[psutil.Process]:
    """The executors of the cluster that this process has."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            own = any(parent.pid == os.getpid() for parent in process.parents())
            if own and EXECUTOR in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def kill_executor(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill an executor, or all of them."""
    found = executors()
    victims = found if draw.random() < 0.3 else found[: draw.randrange(1, 3)][-1:]
    for process in victims:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return f"{len(victims)} of {len(found)}"


# --- faults that kill the driver ---------------------------------------------------------------


def kill_driver(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill Python alone; the JVM and the workers are to see to it themselves."""
    scene.driver.kill()
    scene.at_once = draw.random() < 0.5
    return "started again at once" if scene.at_once else "started again when all had ended"


def kill_machine(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill the driver with its JVM and its workers."""
    scene.driver.kill_all()
    return "all processes"


def kill_jvm(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Kill the JVM alone; Python is to notice, say so, and end."""
    psutil.Process(scene.driver.jvm).kill()
    return "the JVM alone"


# --- faults between two runs -------------------------------------------------------------------


def remove_log(scene: Scene, flow: str, draw: Random) -> str:
    """Take away the last entries of Spark's logs, as a power cut can."""
    place = scene.places[flow]
    last = committed(place)
    both = ("offsets", "commits")
    which = draw.choice((both, both, ("commits",), ("offsets",)))
    entries = draw.choice((1, 1, 2))
    newest = max((int(p.name) for p in (place.spark / "offsets").glob("[0-9]*")), default=last)
    removed = []
    for number in range(last - entries + 1, newest + 1):
        for log in which:
            for name in (str(number), f".{number}.crc"):
                path = place.spark / log / name
                if path.exists():
                    path.unlink()
                    removed.append(f"{log}/{name}")
    return f"removed {', '.join(removed)}"


def restore_checkpoint(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Put an older copy of the checkpoint in its place, the outputs being left."""
    place = scene.places[flow]
    before = committed(place)
    _put(scene.older / flow / "flow", place.checkpoint)
    return f"batch {before} back to {committed(place)}"


def restore_output(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Put older copies of the outputs in their places, the checkpoint being left."""
    place, aside = scene.places[flow], scene.aside / flow
    shutil.rmtree(aside, ignore_errors=True)
    for name in PUBLISHED[flow]:
        if (place.directory / name).exists():
            _put(place.directory / name, aside / name)
            shutil.rmtree(place.directory / name)
        if (scene.older / flow / name).exists():
            _put(scene.older / flow / name, place.directory / name)
    return "outputs as they were a round ago"


def put_output_back(scene: Scene, flow: str) -> None:
    """The newer outputs again."""
    for name in PUBLISHED[flow]:
        if (scene.aside / flow / name).exists():
            _put(scene.aside / flow / name, scene.places[flow].directory / name)


def change_key(scene: Scene, flow: str, draw: Random) -> str:
    """Key by a column of another type."""
    before = scene.hows[flow].key_type
    after = draw.choice([kind for kind in ("int", "bigint", "string") if kind != before])
    scene.before[flow] = scene.hows[flow]
    scene.hows[flow] = replace(scene.hows[flow], key_type=after)
    return f"{before} to {after}"


def rename_step(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Give the step another name."""
    scene.before[flow] = scene.hows[flow]
    name = "counted" if scene.hows[flow].step == "count" else "count"
    scene.hows[flow] = replace(scene.hows[flow], step=name)
    return f"to {name}"


def change_back(scene: Scene, flow: str) -> None:
    """The program as it was."""
    scene.hows[flow] = scene.before[flow]


def damage_state(scene: Scene, flow: str, draw: Random) -> str:
    """Change a byte of one of the newest files of the state."""
    place = scene.places[flow]
    inside = "checkpoint/state" if flow == "aggregation" else "state"
    _put(place.checkpoint, scene.aside / flow / "flow")
    files = [p for p in (place.checkpoint / inside).rglob("*") if p.is_file() and p.stat().st_size]
    files.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    victim = draw.choice(files[-4:])
    content = bytearray(victim.read_bytes())
    at = draw.randrange(len(content))
    content[at] = (content[at] + draw.randrange(1, 256)) % 256
    victim.write_bytes(content)
    return f"byte {at} of {len(content)} of {victim.relative_to(place.checkpoint)}"


def put_state_back(scene: Scene, flow: str) -> None:
    """The copy that was taken before the damage, as the sentence asks."""
    _put(scene.aside / flow / "flow", scene.places[flow].checkpoint)


def say_restored(scene: Scene, flow: str) -> None:
    """Tell the flow that its checkpoint is an older one."""
    scene.hows[flow] = replace(scene.hows[flow], after_restore=True)


def be_deaf(scene: Scene, flow: str, draw: Random) -> str:  # noqa: ARG001 - as every fault
    """Have tasks report to a port where nothing listens."""
    scene.hows[flow] = replace(scene.hows[flow], deaf=True)
    return "tasks report to a closed port"


def _put(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


LOCAL = {
    fault.name: fault
    for fault in (
        Fault("driver", Kind.KILLING, kill_driver),
        Fault("machine", Kind.KILLING, kill_machine),
        Fault("jvm", Kind.KILLING, kill_jvm),
        Fault("worker", Kind.LIVE, kill_worker),
        Fault("pause", Kind.LIVE, pause),
        Fault("disk", Kind.LIVE, fill_disk),
        Fault("broker", Kind.LIVE, kill_broker, ("kafka",)),
        Fault("garbage", Kind.LIVE, send_garbage, ("realtime",)),
        Fault("deaf", Kind.BETWEEN, be_deaf, ("realtime",)),
        Fault("log", Kind.BETWEEN, remove_log, FLOWS, say_restored),
        Fault("checkpoint", Kind.BETWEEN, restore_checkpoint, FLOWS, say_restored),
        Fault("output", Kind.BETWEEN, restore_output, BY_FILES, put_output_back),
        Fault("key", Kind.BETWEEN, change_key, STATEFUL, change_back),
        Fault("step", Kind.BETWEEN, rename_step, ("stateless", "outputs", *KEYED), change_back),
        Fault("state", Kind.BETWEEN, damage_state, STATEFUL, put_state_back),
    )
}
"""What can happen on one machine, by name."""

CLUSTER = {
    fault.name: fault
    for fault in (
        Fault("executor", Kind.LIVE, kill_executor),
        Fault("driver", Kind.KILLING, kill_driver),
    )
}
"""What is done on a cluster."""
