"""Plans: the first one of a flow, and plans as data."""

from __future__ import annotations

import json

import pytest

from tailrace.graph import Step, Stream, graph
from tailrace.plan import Plan, first_plan

FLOW = graph(
    (Step("parse", "x int"), Step("clean", "x int"), Step("score", "x int", scale=(2, 16))),
    (
        Stream("source", "parse"),
        Stream("parse", "clean"),
        Stream("clean", "score", ("repartition",), ("user",)),
        Stream("score", "sink"),
    ),
)


@pytest.mark.parametrize(("slots", "partitions"), [(1, 2), (8, 8), (64, 16)])
def test_a_flow_starts_chained_with_a_partition_for_every_slot_that_the_scale_allows(
    slots: int, partitions: int
) -> None:
    plan = first_plan(FLOW, 250.0, slots)
    assert plan == Plan(250.0, (("parse", "clean"), ("score",)), {"score": partitions})


def test_every_step_of_the_first_plan_has_exactly_one_chain() -> None:
    plan = first_plan(FLOW, 0.0, 2)
    assert [plan.chain_of(name) for name in FLOW.names] == [
        ("parse", "clean"),
        ("parse", "clean"),
        ("score",),
    ]


def test_a_plan_is_plain_data_that_json_can_carry() -> None:
    data = Plan(333.3333, (("a", "b"), ("c",)), {"c": 4}).as_json()
    assert json.loads(json.dumps(data)) == {
        "backend": "microbatch",
        "interval_ms": 333.3,
        "chains": [["a", "b"], ["c"]],
        "partitions": {"c": 4},
    }


def test_the_data_of_a_plan_is_a_copy() -> None:
    plan = Plan(0.0, (("a",),), {"a": 1})
    partitions = plan.as_json()["partitions"]
    assert isinstance(partitions, dict)
    partitions["a"] = 9
    assert plan.partitions == {"a": 1}


def test_plans_do_not_share_their_partitions() -> None:
    first, second = Plan(), Plan()
    assert first == second
    assert first.partitions is not second.partitions
