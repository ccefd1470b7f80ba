"""A scene: a directory with flows in it, the driver that runs them, and what they run against."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .feed import PARTITIONS, Feed
from .flows import PUBLISHED, How, Place
from .oracle import committed, problems, published
from .process import PATIENCE_S, Driver, Said, Stuck, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from bench.broker import Broker

MOST_STARTS = 5
BATCHES = 2
"""How many batches a flow commits before a fault, and after it."""


@dataclass
class Story:
    """What happened to one flow in one round."""

    said: list[Said] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stuck: str = ""
    lost: str = ""
    mended: bool = False


class Scene:
    """Flows on places of their own under one directory."""

    def __init__(
        self, directory: Path, flows: tuple[str, ...], master: str, broker: Broker | None
    ) -> None:
        """Begin with a driver, and nothing run yet."""
        self.directory, self.flows, self.master, self.broker = directory, flows, master, broker
        self.older, self.aside = directory / "older", directory / "aside"
        servers = broker.servers if broker else ""
        self.places = {flow: Place(directory / flow, servers) for flow in flows}
        for place in self.places.values():
            place.directory.mkdir(parents=True)
        self.hows = dict.fromkeys(flows, How())
        self.before: dict[str, How] = {}
        self.at_once = False
        self.complaints: list[str] = []
        self._drivers: list[Driver] = []
        self._feed: Feed | None = None
        if broker is not None and "kafka" in flows:
            for way in ("in", "out"):
                broker.create_topic(self.places["kafka"].topic(way), PARTITIONS)
            self._feed = Feed(self.places["kafka"])
        self.driver = self._born()
        self.spare: Driver | None = None

    def close(self) -> None:
        """End the driver, and leave nothing."""
        if self._feed is not None:
            self._feed.close()
        for driver in self._drivers:
            if driver.alive:
                self._ended(driver)
            driver.bury()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- drivers -------------------------------------------------------------------------------

    def _born(self) -> Driver:
        driver = Driver(self.directory / "drivers", len(self._drivers), self.master)
        self._drivers.append(driver)
        return driver

    def make_spare(self) -> None:
        """Start the next driver beside this one, which saves much time."""
        if self.spare is None and self.master.startswith("local"):
            self.spare = self._born()

    def fresh_driver(self) -> None:
        """Go on with the next driver, when nothing is left of the one before."""
        gone, self.at_once = self.driver, self.at_once and self.spare is not None
        if not self.at_once:
            self._ended(gone)
        self.driver, self.spare = self.spare or self._born(), None
        self.driver.await_ready()

    def drop(self) -> None:
        """See that nothing is left of drivers that are gone."""
        for driver in self._drivers:
            if driver not in (self.driver, self.spare):
                self._ended(driver)

    def _ended(self, driver: Driver) -> None:
        if driver.temporary.exists():
            self.complaints += driver.end()
            if driver.noise():
                self.complaints.append(f"noise: {driver.noise()[:600]}")
            shutil.rmtree(driver.temporary, ignore_errors=True)

    def has_jvm(self) -> bool:
        """Whether the driver and its JVM are there."""
        return self.driver.has_jvm

    # --- flows ---------------------------------------------------------------------------------

    def start(self, *flows: str) -> None:
        """Have flows started, each as it is told."""
        for flow in flows:
            self.driver.start(flow, self.places[flow], self.hows[flow])

    def disarm(self) -> None:
        """Let whatever stands at a point go on."""
        for place in self.places.values():
            place.armed.unlink(missing_ok=True)
            place.reached.unlink(missing_ok=True)

    def stop(self) -> dict[str, Story]:
        """Stop every flow that runs, between two batches."""
        stories: dict[str, Story] = {flow: Story() for flow in self.flows}
        asked = set(self.driver.running)
        self.driver.stop(*sorted(asked))

        def stopped() -> bool:
            for said in self.driver.heard():
                if said.flow and said.event != "started":
                    stories[said.flow].said.append(said)
            return not self.driver.running or not self.has_jvm()

        try:
            until(stopped, f"the end of {', '.join(sorted(asked))}")
        except Stuck as stuck:
            for flow in self.driver.running:
                stories[flow].stuck = str(stuck)
        return stories

    def progress(
        self, remedies: Mapping[str, Callable[[], None]] | None = None
    ) -> dict[str, Story]:
        """Wait until every flow has committed some batches; start again what ends meanwhile.

        ``remedies`` holds, by flow, what to call when it is refused.
        """
        stories: dict[str, Story] = {flow: Story() for flow in self.flows}
        base = {flow: committed(self.places[flow]) for flow in self.flows}
        seen = {flow: published(flow, self.places[flow]) for flow in self.flows}
        starts = dict.fromkeys(self.flows, 0)
        waiting = set(self.flows)

        def again(said: Said) -> None:
            flow = str(said.flow)
            story = stories[flow]
            story.said.append(said)
            starts[flow] += 1
            now = published(flow, self.places[flow])
            gone = [name for name, size in seen[flow].items() if now.get(name) != size]
            if said.event == "refused" and gone:
                story.lost = f"a refused start changed {len(gone)} files, {gone[0]} first"
            if starts[flow] >= MOST_STARTS:
                story.stuck = f"{MOST_STARTS} starts, and none went well"
                waiting.discard(flow)
                return
            failed_twice = [s.event for s in story.said].count("failed") > 1
            if remedies and flow in remedies and (said.event == "refused" or failed_twice):
                remedies[flow]()
                story.mended = True
                base[flow] = committed(self.places[flow])
            if self.has_jvm():
                self.start(flow)

        def moved() -> bool:
            for said in self.driver.heard():
                if said.flow and said.event == "started":
                    self.hows[said.flow] = replace(self.hows[said.flow], after_restore=False)
                elif said.flow and said.is_over:
                    waiting.add(said.flow)
                    again(said)
            for flow in list(waiting):
                now = committed(self.places[flow])
                base[flow] = min(base[flow], now)
                if now >= base[flow] + BATCHES:
                    waiting.discard(flow)
            return not waiting or not self.has_jvm()

        try:
            until(moved, "progress")
        except Stuck:
            for flow in waiting:
                stories[flow].stuck = f"no progress in {PATIENCE_S:.0f} s"
        return stories

    def judged(self, skip: set[str]) -> dict[str, list[str]]:
        """What is wrong with the outputs of every flow that was stopped properly."""
        return {
            flow: problems(flow, self.places[flow], self.hows[flow])
            for flow in self.flows
            if flow not in skip
        }

    def keep_copy(self) -> None:
        """Keep a copy of what every flow has, as of now."""
        shutil.rmtree(self.older, ignore_errors=True)
        for flow in self.flows:
            for name in ("flow", *PUBLISHED[flow]):
                found = self.places[flow].directory / name
                if found.exists():
                    shutil.copytree(found, self.older / flow / name, symlinks=True)
