"""Profiles: the graph of a profile, and what it refuses."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tailrace.constraint import SINK, SOURCE
from tailrace.errors import InputError
from tailrace.plan import Backend, Plan
from tailrace.profile.profile import EXCHANGE, Latency, Profile, StepProfile

PROFILE = Profile(
    "orders",
    (StepProfile("parse", 0.1), StepProfile("count", 0.2, keyed_by=("user",))),
    ((SOURCE, "parse"), ("parse", "count"), ("count", SINK)),
    850.0,
    Plan(chains=(("parse",), ("count",)), partitions={"count": 4}, backend=Backend.REALTIME),
    2,
)


def test_the_graph_has_an_exchange_before_keyed_steps_and_the_partitions_of_the_plan() -> None:
    graph = PROFILE.graph
    assert graph.names == ("parse", "count")
    assert [stream.native for stream in graph.streams] == [(), (EXCHANGE,), ()]
    assert [stream.keyed_by for stream in graph.streams] == [(), ("user",), ()]
    assert [step.scale for step in graph.steps] == [None, (1, 4)]
    assert graph.primary_chains() == (("parse",), ("count",))
    assert PROFILE.backend is Backend.REALTIME


def test_a_step_is_found_by_its_name_or_refused_with_those_that_there_are() -> None:
    assert PROFILE.step("count") is PROFILE.steps[1]
    with pytest.raises(InputError, match="has no step 'cuont': it has parse, count"):
        PROFILE.step("cuont")


@pytest.mark.parametrize("wrong", [-1e-9, float("inf"), float("nan")])
def test_every_latency_must_be_finite_and_not_below_zero(wrong: float) -> None:
    for item in fields(Latency):
        with pytest.raises(InputError, match=f"The {item.name} of the latency cannot be {wrong}"):
            replace(Latency(4.0, 3.0, 8.0, 9.0), **{item.name: wrong})


def test_a_profile_whose_parts_do_not_fit_together_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 core and 1 source partition, and has 0 and 1"):
        replace(PROFILE, cores=0)
    with pytest.raises(InputError, match="chains a step 'mood' that is not one of its steps"):
        replace(PROFILE, plan=Plan(chains=(("parse", "mood"),)))
    with pytest.raises(InputError, match=r"keys of step 'a' have shares that sum to 1\.1"):
        StepProfile("a", 1.0, keys={"x": 0.6, "y": 0.5})
