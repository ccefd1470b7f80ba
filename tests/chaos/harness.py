"""The loop: seeded rounds of one fault each, kept as they come.

Rounds follow from the seed alone. A scene that went wrong is left for a new one, so that nothing is
counted twice.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.broker import Broker
from tailrace.errors import EnvironmentUnfit
from tailrace.spark.cluster.local import Cluster

from .faults import CLUSTER, LOCAL
from .flows import FLOWS
from .process import Stuck
from .round import BAD, Outcome, begin, judge, play
from .scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .faults import Fault

SLOTS = "local[20]"
CUT = ("machine", "checkpoint", "log", "key")
"""A short cut of it, for every run of the tests: twenty faults with four drivers."""

IN_A_SCENE = 8
EXECUTORS_KILLED = 3


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the sequence that a seed stands for."""

    number: int
    scene: int
    cluster: bool
    fault: str

    def draw(self, seed: int) -> random.Random:
        """The chance of this round alone, so that it can be run alone."""
        return random.Random(f"{seed} {self.number}")


def rounds(seed: int, only: tuple[str, ...] = ()) -> Iterator[Round]:
    """The sequence of a seed: every fault of one machine in turn, then some on a cluster.

    With ``only``, just these on one machine, in one scene.
    """
    if only:
        yield from (Round(n, 0, cluster=False, fault=name) for n, name in enumerate(only))
        return
    draw = random.Random(seed)
    numbers, scenes = itertools.count(), itertools.count()
    while True:
        names = draw.sample(sorted(LOCAL), len(LOCAL))
        for scene in (names[:IN_A_SCENE], names[IN_A_SCENE:]):
            number = next(scenes)
            for name in scene:
                yield Round(next(numbers), number, cluster=False, fault=name)
        names = ["executor"] * EXECUTORS_KILLED
        names.insert(draw.randrange(1, len(names)), "driver")
        number = next(scenes)
        for name in names:
            yield Round(next(numbers), number, cluster=True, fault=name)


# --- the loop ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run."""

    faults: int = 300
    seed: int = 1
    keep: Path | None = None
    flow: str | None = None
    fault: str | None = None
    round: int | None = None
    cut: tuple[str, ...] = ()

    def wants(self, one: Round) -> bool:
        """Whether a round is among those to run."""
        fault = (CLUSTER if one.cluster else LOCAL)[one.fault]
        return (
            self.fault in (None, one.fault)
            and self.round in (None, one.number)
            and (self.flow is None or self.flow in fault.flows)
        )


def kept(keep: Path | None) -> list[Outcome]:
    """The outcomes of an earlier run."""
    if keep is None or not keep.exists():
        return []
    return [Outcome(**json.loads(line)) for line in keep.read_text().splitlines()]


class Theatre:
    """What scenes share, started when first needed: a broker, a cluster, a directory."""

    def __init__(self, held: ExitStack) -> None:
        """``held`` ends it all."""
        self._held = held
        made = tempfile.TemporaryDirectory(prefix="tailrace-chaos-", ignore_cleanup_errors=True)
        self._directory = Path(held.enter_context(made))
        self._scenes = itertools.count()
        self._broker: Broker | None = None
        self._cluster: Cluster | None = None
        self._now: tuple[int, Scene] | None = None
        self.unfit = ""
        held.callback(self.end_scene)

    def scene(self, one: Round, flow: str | None) -> Scene:
        """The scene of a round, a new one unless it is there and was left in order."""
        if self._now is not None and self._now[0] == one.scene:
            return self._now[1]
        self.end_scene()
        flows: tuple[str, ...] = FLOWS if flow is None else (flow,)
        broker = self._with_broker() if "kafka" in flows else None
        flows = tuple(f for f in flows if f != "kafka" or broker)
        master = self._with_cluster() if one.cluster else SLOTS
        place = self._directory / f"scene-{next(self._scenes)}"
        scene = Scene(place, flows, master, broker)
        self._now = (one.scene, scene)
        return scene

    def end_scene(self) -> list[str]:
        """Leave the scene; the complaints about its end."""
        if self._now is None:
            return []
        (_, scene), self._now = self._now, None
        scene.complaints = []
        scene.close()
        return scene.complaints

    def _with_broker(self) -> Broker | None:
        if self._broker is None and not self.unfit:
            try:
                self._broker = self._held.enter_context(Broker())
            except EnvironmentUnfit as unfit:
                self.unfit = str(unfit)
        return self._broker

    def _with_cluster(self) -> str:
        if self._cluster is None:
            cluster = Cluster(workers=1, cores=20, memory="512 MiB")
            self._cluster = self._held.enter_context(cluster)
        return self._cluster.master


def run(wanted: Wanted, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Run until there are as many outcomes as wanted, from where an earlier run ended."""
    found = kept(wanted.keep)
    first = max((one.round for one in found), default=-1) + 1
    with ExitStack() as held:
        theatre = Theatre(held)
        fresh = -1
        for one in filter(
            wanted.wants, itertools.islice(rounds(wanted.seed, wanted.cut), first, None)
        ):
            if sum(o.flow != "all" for o in found) >= wanted.faults:
                break
            fault = (CLUSTER if one.cluster else LOCAL)[one.fault]
            scene = theatre.scene(one, wanted.flow)
            if one.scene != fresh:
                warm_up(scene)
                fresh = one.scene
            made = play(scene, fault, one.draw(wanted.seed)) + skipped(fault, scene, theatre.unfit)
            made = [replace(o, round=one.number) for o in made]
            if any(o.outcome in ("wrong", "stuck") for o in made):
                theatre.end_scene()
                fresh = -1
            found += made
            for each in made:
                tell(each)
            _append(wanted.keep, made)
            if one.number == wanted.round:
                break
        ended = [
            Outcome(first, "all", "end", "leak", problems=c) for c in [theatre.end_scene()] if c
        ]
        found += ended
        _append(wanted.keep, ended)
    return found


def skipped(fault: Fault, scene: Scene, unfit: str) -> list[Outcome]:
    """What could not be tried here, with the reason."""
    missing = unfit and "kafka" in fault.flows and "kafka" not in scene.flows
    return [Outcome(-1, "kafka", fault.name, "skipped", problems=[unfit])] if missing else []


def warm_up(scene: Scene) -> None:
    """Some batches without a fault, so that there is something older to go back to."""
    begin(scene)
    stories = scene.stop()
    judge(scene, stories)
    odd = {flow: story for flow, story in stories.items() if story.problems or story.stuck}
    if odd:
        raise Stuck(f"the flows are not right even without a fault: {odd}")


def _append(keep: Path | None, made: Iterable[Outcome]) -> None:
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        with keep.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in made)


def summary(found: list[Outcome]) -> dict[str, Any]:
    """Runs by flow and fault, the sentences of refusals, and all that must not be."""
    counts = Counter((one.flow, one.fault, one.outcome) for one in found)
    sentences = {s for one in found if one.outcome == "refused" for s in one.sentences}
    return {
        "faults": sum(one.flow != "all" for one in found),
        "rounds": len({one.round for one in found}),
        "outcomes": dict(Counter(one.outcome for one in found)),
        "cells": [
            {"flow": flow, "fault": fault, "outcome": outcome, "runs": runs}
            for (flow, fault, outcome), runs in sorted(counts.items())
        ],
        "refusals": sorted(sentences),
        "bad": [asdict(one) for one in found if one.outcome in BAD],
    }
