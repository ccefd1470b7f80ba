"""One round: a fault over all flows of a scene at once, and the verdict on each.

A round starts the flows, waits for batches, injects its fault at a moment of its own, brings the
flows back as a supervisor would, stops them and judges what they left. Each flow that the fault is
about counts as one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from .faults import Kind, await_moment
from .process import Stuck, until
from .scene import Scene, Story

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from .faults import Fault
    from .process import Said

BAD = ("wrong", "stuck", "noisy", "leak")
"""Outcomes that must not be."""

LONGEST_SENTENCE = 1_200
SAYS_NOTHING = ("Exception thrown in awaitResult", "An error occurred while calling")
"""What Spark and py4j say in the place of a cause."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault for one flow."""

    round: int
    flow: str
    fault: str
    outcome: str
    moment: str = ""
    note: str = ""
    sentences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def play(scene: Scene, fault: Fault, draw: random.Random) -> list[Outcome]:
    """One round on a scene; what came of it for every flow that was concerned."""
    began = time.monotonic()
    hit = [flow for flow in scene.flows if flow in fault.flows]
    stories: dict[str, Story] = {flow: Story() for flow in scene.flows}
    notes: dict[str, str] = {}
    moment = ""
    scene.complaints = []
    try:
        if fault.kind is not Kind.LIVE:
            scene.make_spare()
        begin(scene)
        moment = await_moment(scene, draw)
        notes = inject(scene, fault, hit, draw, stories)
        remedy = fault.remedy
        remedies = {flow: partial(remedy, scene, flow) for flow in hit} if remedy else {}
        bring_back(scene, remedies, stories)
        scene.drop()
        judge(scene, stories)
    except Stuck as stuck:
        for flow in hit:
            stories[flow].stuck = stories[flow].stuck or str(stuck)
    finally:
        scene.disarm()
        scene.hows = {flow: replace(how, deaf=False) for flow, how in scene.hows.items()}
    seconds = round((time.monotonic() - began) / max(1, len(hit)), 2)
    return [
        *(
            replace(
                verdict(f, fault.name, stories[f]),
                moment=moment,
                note=notes.get(f, ""),
                seconds=seconds,
            )
            for f in hit
        ),
        *bystanders(scene, fault, hit, stories, moment),
    ]


def begin(scene: Scene) -> None:
    """Start every flow, on what the round before has left, which was found right."""
    scene.driver.await_ready()
    scene.start(*(flow for flow in scene.flows if flow not in scene.driver.running))
    for flow, story in scene.progress().items():
        if story.stuck:
            said = "; ".join(one.sentence for one in story.said)
            raise Stuck(f"{flow} did not run before the fault ({story.stuck}): {said}")


def inject(
    scene: Scene, fault: Fault, hit: list[str], draw: random.Random, stories: dict[str, Story]
) -> dict[str, str]:
    """Do it; a note for every flow. Where the driver is gone, another one is there afterwards."""
    if fault.kind is Kind.BETWEEN:
        how = leave(scene, draw, stories)
        notes = {flow: f"{how}; {fault.act(scene, flow, draw)}" for flow in hit}
        scene.fresh_driver()
        return notes
    note = fault.act(scene, "", draw)
    scene.disarm()
    if fault.kind is Kind.KILLING:
        if scene.driver.alive:
            until(lambda: heard(scene, stories), "the flows to notice that their JVM is gone", 60.0)
        scene.fresh_driver()
    return dict.fromkeys(hit, note)


def leave(scene: Scene, draw: random.Random, stories: dict[str, Story]) -> str:
    """End the driver, properly or not, so that something can be changed."""
    if draw.random() < 0.5:
        scene.driver.kill_all()
        scene.disarm()
        return "killed"
    scene.disarm()
    for flow, story in scene.stop().items():
        stories[flow].said += [said for said in story.said if said.event != "ok"]
        stories[flow].stuck = story.stuck
    scene.drop()
    return "stopped"


def heard(scene: Scene, stories: dict[str, Story]) -> bool:
    """Whether every flow of the driver has said that it is over."""
    for said in scene.driver.heard():
        if said.flow and said.is_over:
            stories[said.flow].said.append(said)
    return not scene.driver.running or not scene.driver.alive


def bring_back(
    scene: Scene, remedies: Mapping[str, Callable[[], None]], stories: dict[str, Story]
) -> None:
    """Have every flow run again and commit, then stop them all."""
    for _ in range(3):
        if not scene.has_jvm():
            scene.fresh_driver()
        scene.start(*(flow for flow in scene.flows if flow not in scene.driver.running))
        add(stories, scene.progress(remedies))
        if scene.has_jvm():
            stopped = scene.stop()
            add(stories, stopped)
            clean = all(said.event == "ok" for story in stopped.values() for said in story.said)
            if clean or any(story.stuck for story in stories.values()):
                return
    raise Stuck("the flows did not come back")


def add(stories: dict[str, Story], more: dict[str, Story]) -> None:
    """Go on with the stories."""
    for flow, story in more.items():
        stories[flow].said += [said for said in story.said if said.event != "ok"]
        stories[flow].stuck = stories[flow].stuck or story.stuck
        stories[flow].lost = stories[flow].lost or story.lost
        stories[flow].mended = stories[flow].mended or story.mended


def judge(scene: Scene, stories: dict[str, Story]) -> None:
    """Compare what is there with what must be; keep a copy where all is well."""
    stuck = {flow for flow, story in stories.items() if story.stuck}
    for flow, found in scene.judged(skip=stuck).items():
        stories[flow].problems += found
    if not stuck and not any(story.problems for story in stories.values()):
        scene.keep_copy()


def verdict(flow: str, fault: str, story: Story) -> Outcome:
    """The verdict on one flow."""
    problems = [*story.problems, *([story.lost] if story.lost else [])]
    if problems:
        said = "wrong"
    elif story.stuck:
        said, problems = "stuck", [story.stuck]
    elif not all(is_sentence(said) for said in story.said):
        said = "noisy"
    elif story.mended or any(said.event == "refused" for said in story.said):
        said = "refused"
    else:
        said = "exact"
    sentences = [f"{said.event}: {said.sentence}" for said in story.said]
    return Outcome(-1, flow, fault, said, sentences=sentences, problems=problems)


def is_sentence(said: Said) -> bool:
    """Whether a flow ended with one sentence that says something."""
    text = said.sentence
    return (
        said.event != "traceback"
        and "\n" not in text
        and text.endswith(".")
        and not any(empty in text for empty in SAYS_NOTHING)
        and len(text) < LONGEST_SENTENCE
    )


def bystanders(
    scene: Scene, fault: Fault, hit: list[str], stories: dict[str, Story], moment: str
) -> list[Outcome]:
    """What went wrong with flows that the fault was not about, and with processes."""
    found = []
    for flow in scene.flows:
        if flow not in hit:
            seen = verdict(flow, f"beside {fault.name}", stories[flow])
            if seen.outcome in BAD:
                found.append(replace(seen, moment=moment))
    if scene.complaints:
        kind = "noisy" if all(c.startswith("noise") for c in scene.complaints) else "leak"
        found.append(Outcome(-1, "all", fault.name, kind, moment, problems=scene.complaints))
    return found
