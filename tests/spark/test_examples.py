"""The examples compute what they say they compute, however they are run."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.control import Mode
from tailrace.load import Texts, Trace
from tailrace.spark import sinks
from tailrace.spark.from_file import example, find_flow, run, unchained
from tailrace.spark.sources import replay
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.spark.flow import Flow
    from tailrace.spark.run import Run

pytestmark = pytest.mark.spark

RUN_S = 4.0
INTERVAL_MS = 2_000.0
"""The adjustment interval of a flow that runs so briefly: its plan is adjusted meanwhile."""

SHORT = 1_500
"""Records of a load that is read to its end."""


@cache
def declared_in(name: str) -> Any:
    """The module of an example, loaded once: some take seconds to write their load."""
    find_flow(f"{example(f'{name}.py')}:flow")
    return sys.modules[f"tailrace_flow_{name}"]


def flow_of(name: str) -> Flow:
    """A copy of an example's flow for one test, with sinks of its own: all of them in memory."""
    flow: Flow = copy(declared_in(name).flow)
    flow.sinks = {output: sinks.memory() for output in flow.sinks}
    if flow.dead_letters is not None:
        flow.dead_letters = sinks.memory()
    return flow


def results(flow: Flow, output: str = "sink") -> list[dict[str, Any]]:
    """What such a flow has put into one of its sinks."""
    memory = flow.sinks[output]
    assert isinstance(memory, sinks.Memory)
    return memory.rows()


# --- primes --------------------------------------------------------------------------------


def is_prime(number: int) -> bool:
    """Miller and Rabin's test, which no composite passes for all of forty bases but by a miracle.

    Another test than the example's, after a trial division by small numbers.
    """
    if any(number % small == 0 for small in range(2, 500)):
        return False
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    odd = (number - 1) >> twos
    for base in range(1_000, 1_040):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if all((power := power * power % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_reference_knows_primes_from_composites() -> None:
    mersenne = {p for p in range(60, 620) if is_prime(2**p - 1)}
    assert mersenne == {61, 89, 107, 127, 521, 607}
    assert not is_prime((2**89 - 1) * (2**107 - 1))


def test_primes_finds_the_primes_among_the_numbers_that_it_drew(spark: SparkSession) -> None:
    flow = flow_of("primes")
    flow.interval_ms = INTERVAL_MS
    report = run(flow, RUN_S)
    found = {row["seq"]: row["found"] for row in results(flow)}
    assert sorted(row["seq"] for row in results(flow)) == list(range(len(found)))
    assert report.data["records"] == len(found)
    primes = 0
    for seq, said in found.items():
        number = int.from_bytes(hashlib.sha256(b"%d" % seq).digest(), "big") | 1
        prime = is_prime(number)
        primes += prime
        assert said == f"{number:#x} is {'probably prime' if prime else 'composite'}"
    assert 0 < primes < len(found)
    assert spark.streams.active == []


# --- sentiments ----------------------------------------------------------------------------

MOODS = {"love": 2, "great": 1, "fine": 1, "so-so": 0, "dull": -1, "bad": -1, "hate": -2}
Verdicts = Counter[tuple[str, float, str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the pipeline makes of tweets: the verdicts, and the payloads that cannot be read."""

    verdicts: Verdicts
    broken: Counter[str]


def sequentially(payloads: Iterable[str]) -> Outcome:
    """What comes of tweets, one after the other, in plain Python."""
    verdicts: Verdicts = Counter()
    broken: Counter[str] = Counter()
    for payload in payloads:
        try:
            tweet = json.loads(payload)
        except ValueError:
            broken[payload] += 1
            continue
        if tweet["topic"] is None:
            continue
        for word in tweet["text"].lower().replace("!", "").strip(" ").split():
            score = float(MOODS[word])
            mood = {True: "good", False: "bad"}[score > 0] if score else "neutral"
            verdicts[tweet["topic"], score, mood] += 1
    return Outcome(verdicts, broken)


def outcome(flow: Flow) -> Outcome:
    """What a flow with its results and its dead letters in memory has made."""
    letters = flow.dead_letters
    assert isinstance(letters, sinks.Memory)
    verdicts = ((row["topic"], row["score"], row["mood"]) for row in results(flow))
    dead = (json.loads(row["record"])["payload"] for row in letters.rows())
    assert {row["step"] for row in letters.rows()} <= {"parse"}
    assert all("JSONDecodeError" in row["error"] for row in letters.rows())
    return Outcome(Counter(verdicts), Counter(dead))


def tweets() -> Trace:
    load = declared_in("sentiments").load
    assert isinstance(load, Trace)
    return load


def beginning_of(load: Trace, count: int) -> Trace:
    """The first records of a load, all of them due at once."""
    assert load.payloads is not None
    return Trace(
        np.zeros(count, np.int64),
        load.key[:count],
        load.size[:count],
        load.key_names,
        Texts.of([load.payloads[i] for i in range(count)]),
    )


def test_sentiments_judges_every_tweet_and_buries_the_broken_ones(spark: SparkSession) -> None:
    flow = flow_of("sentiments")
    flow.interval_ms = INTERVAL_MS
    report = run(flow, RUN_S)
    read = report.data["records"]
    payloads = tweets().payloads
    assert payloads is not None
    made = outcome(flow)
    assert made == sequentially(payloads[i] for i in range(read))
    assert made.broken
    assert made.verdicts
    assert spark.streams.active == []


@pytest.mark.parametrize(
    ("plan", "chains"),
    [
        (None, (("parse",), ("clean", "words", "score", "verdict"))),
        (unchained, (("parse",), ("clean",), ("words",), ("score",), ("verdict",))),
    ],
    ids=["chained", "unchained"],
)
def test_sentiments_comes_to_the_same_chained_and_not(
    spark: SparkSession,
    plan: Callable[[Graph], Plan] | None,
    chains: tuple[tuple[str, ...], ...],
) -> None:
    flow = flow_of("sentiments")
    load = beginning_of(tweets(), SHORT)
    running = read_to_the_end(flow, load, spark, plan)
    assert running.controller.plan.chains == chains
    assert load.payloads is not None
    assert outcome(flow) == sequentially(load.payloads)


def read_to_the_end(
    flow: Flow, load: Trace, spark: SparkSession, plan: Callable[[Graph], Plan] | None = None
) -> Run:
    """Run a flow on a short load, read by one task, until all of it is done."""
    flow.mode, flow.source = Mode.OBSERVE, replay(load, partitions=1)
    read: list[int] = []
    running = flow.start(spark, plan=plan, on_measure=lambda batch: read.append(batch.records))
    try:
        until(lambda: sum(read) >= len(load) or running.wait(0), "the whole load is read")
    finally:
        running.stop()
    assert sum(read) == len(load)
    return running


# --- hot topics and trading ------------------------------------------------------------------


def test_hot_topics_asks_about_the_tweets_on_them_and_no_others(spark: SparkSession) -> None:
    twitter = declared_in("hot_topics")
    flow, load = flow_of("hot_topics"), beginning_of(twitter.load, SHORT)
    read_to_the_end(flow, load, spark)
    recent: dict[str, dict[str, Any]] = {}
    expected: Counter[tuple[str, float]] = Counter()
    for seq, text in enumerate(load.payloads or ()):
        for topic in (word[1:] for word in text.split() if word.startswith("#")):
            state = recent.setdefault(topic, {"recent": {}})
            for _ in twitter.keep_hot(topic, [Tweet(seq, text)], state):
                expected[topic, float(sum(MOODS.get(word, 0) for word in text.split()))] += 1
    scores = results(flow, "sink:sentiments")
    assert Counter((row["topic"], row["score"]) for row in scores) == expected
    assert len(expected) > 1
    newest = max(results(flow, "sink:topics"), key=lambda row: row["slice"])
    assert newest["slice"] == (SHORT - 1) // twitter.SLICE
    assert set(newest["topics"]) <= {topic for topic, _ in expected}


@dataclass(frozen=True, slots=True)
class Tweet:
    """A record of the filter."""

    seq: int
    text: str


def test_trading_draws_every_chart_of_every_symbol(spark: SparkSession) -> None:
    trading = declared_in("trading")
    flow, load = flow_of("trading"), beginning_of(trading.load, 8_000)
    read_to_the_end(flow, load, spark)
    quotes: dict[str, list[Any]] = {}
    for key, text in zip(load.key, load.payloads or (), strict=True):
        symbol = load.key_names[key]
        quotes.setdefault(symbol, []).append(Quote(*trading.quote(Raw(symbol, text))[1:]))
    expected = [
        chart
        for symbol, rows in quotes.items()
        for chart in trading.chart(symbol, rows, {"quotes": b"", "seen": 0})
    ]
    assert len(expected) > 100
    assert sorted(tuple(row.values()) for row in results(flow)) == sorted(expected)


@dataclass(frozen=True, slots=True)
class Raw:
    """A record of the load."""

    key: str
    payload: str


@dataclass(frozen=True, slots=True)
class Quote:
    """A record of the charts."""

    at_us: int
    bid: int
    ask: int
