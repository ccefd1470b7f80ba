"""Stalls: what is said of a step, a batch or a query that makes no progress."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tailrace.profile.stall import Stall

STEP = Stall("step", 7, 12.34, "parse", 2, stack=("job.py:9 in run", "job.py:3 in parse"))
BATCH = Stall("publishing", 7, 60.0, sink="lake")
QUERY = Stall("getOffset", 7, 60.0)


@pytest.mark.parametrize(
    ("stall", "sentence"),
    [
        (STEP, "Step 'parse' has hung in partition 2 of batch 7 for 12 s (at job.py:3 in parse)."),
        (BATCH, "Batch 7 has been publishing for the sink 'lake' for 60 s."),
        (QUERY, "The query has been at 'getOffset' for 60 s."),
        (
            replace(STEP, over=True, stack=()),
            "Step 'parse' hung in partition 2 of batch 7 for 12 s, then went on.",
        ),
        (
            replace(BATCH, over=True),
            "Batch 7 was publishing for the sink 'lake' for 60 s, then went on.",
        ),
        (replace(QUERY, over=True), "The query was at 'getOffset' for 60 s, then went on."),
    ],
)
def test_a_stall_is_said_in_a_sentence(stall: Stall, sentence: str) -> None:
    assert stall.sentence == sentence


def test_a_stall_is_the_same_however_long_it_lasts_and_another_elsewhere() -> None:
    later = replace(STEP, seconds=40.0, stack=(), over=True)
    assert later.place == STEP.place
    others = [replace(STEP, **one) for one in ({"batch": 8}, {"partition": 3}, {"step": "b"})]
    assert len({stall.place for stall in (STEP, BATCH, QUERY, *others)}) == 6


def test_a_report_holds_a_stall_as_plain_data() -> None:
    data = STEP.as_json()
    assert json.loads(json.dumps(data)) == data
    assert (data["seconds"], data["step"], data["stack"][-1]) == (12.3, "parse", STEP.stack[-1])
