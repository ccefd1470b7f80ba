"""Pseudonyms of keys: they hide the key and still say where Spark sends it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tailrace.errors import InputError
from tailrace.model.keys.keytypes import REDACTED
from tailrace.model.keys.murmur import partition_of
from tailrace.model.keys.pseudonyms import SLOTS, places, pseudonym
from tailrace.model.predict import predict
from tailrace.plan import Plan
from tailrace.profile.costs import BatchCosts
from tailrace.profile.profile import Profile, StepProfile

SECRET = b"a secret of one run"
KEYS = [f"customer-{number}@example.org" for number in range(400)]
DIVISORS = [n for n in range(1, SLOTS + 1) if SLOTS % n == 0]


def hidden(keys: list[str], kind: str = "string", secret: bytes = SECRET) -> list[str]:
    return [pseudonym(key, kind, secret) for key in keys]


@pytest.mark.parametrize("partitions", DIVISORS)
def test_where_a_key_goes_is_what_spark_says_where_partitions_divide_the_slots(
    partitions: int,
) -> None:
    assert list(places(hidden(KEYS), partitions)) == list(partition_of(KEYS, partitions, "string"))


@pytest.mark.parametrize("partitions", [7, 9, 14, 64, 1_000])
def test_elsewhere_it_is_right_as_far_as_divisors_are_shared_and_even(partitions: int) -> None:
    shared = max(n for n in DIVISORS if partitions % n == 0)
    found = places(hidden(KEYS), partitions)
    assert list(found % shared) == list(partition_of(KEYS, shared, "string"))
    assert set(found) <= set(range(partitions))
    assert max(Counter(found.tolist()).values()) < 4 * (len(KEYS) / partitions + 4)


@pytest.mark.parametrize(
    ("text", "arrow", "key", "kind"),
    [
        ("17", "int32", 17, "int"),
        ("17", "int64", 17, "bigint"),
        ("None", "int64", None, "bigint"),
        ("True", "bool", True, "boolean"),
        (json.dumps(["a", "5"]), "string;int64", ("a", 5), ("string", "bigint")),
    ],
)
def test_a_key_of_any_type_keeps_its_place(
    text: str, arrow: str, key: object, kind: str | tuple[str, ...]
) -> None:
    assert places(hidden([text], arrow), 16)[0] == partition_of([key], 16, kind)[0]


def test_a_key_that_spark_hashes_otherwise_has_a_pseudonym_all_the_same() -> None:
    assert 0 <= places(hidden(["\ud800"]), 16)[0] < 16


def test_a_pseudonym_is_stable_within_a_run_and_says_nothing_in_another() -> None:
    other = hidden(KEYS, secret=b"a secret of another")
    assert hidden(KEYS) == hidden(KEYS)
    assert len(set(hidden(KEYS))) == len(KEYS)
    digests = [{one.partition("-")[2] for one in found} for found in (hidden(KEYS), other)]
    assert digests[0].isdisjoint(digests[1])


@pytest.mark.parametrize("text", ["alice", "240-00", "-1-00", "3", "3-xyz", ""])
def test_what_is_no_pseudonym_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a redacted key"):
        places([text], 4)


def profile(partitions: int) -> Profile:
    keys = {key: 0.8 / 2**rank for rank, key in enumerate(KEYS[:16], 1)}
    step = StepProfile("count", 0.5, keyed_by=("user",), keys=keys, distinct=400)
    plan = Plan(200.0, (("count",),), {"count": partitions})
    streams = (("source", "count"), ("count", "sink"))
    return Profile("flow", (step,), streams, 1_000.0, plan, 4, batch=BatchCosts(20.0, 0.005))


def redacted(plain: Profile) -> Profile:
    (step,) = plain.steps
    keys = {pseudonym(key, "string", SECRET): share for key, share in step.keys.items()}
    return replace(plain, steps=(replace(step, keys=keys, key_type=REDACTED),))


@pytest.mark.parametrize("partitions", [2, 4, 5, 16])
def test_a_redacted_profile_predicts_the_same(partitions: int) -> None:
    plain = profile(partitions)
    assert predict(redacted(plain)).mean_ms == predict(plain).mean_ms
    assert predict(redacted(plain)).outcome.assumed == predict(plain).outcome.assumed


def test_a_prediction_says_where_the_places_of_redacted_keys_are_chance() -> None:
    (said,) = predict(redacted(profile(7))).outcome.assumed
    assert said.startswith("The keys of step 'count' were redacted, so where they fall on 7")
    assert not predict(profile(7)).outcome.assumed
