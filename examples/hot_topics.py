"""TwitterSentiments: what is talked about, and what is thought of it, each with its own bound.

    tailrace run examples/hot_topics.py:flow --seconds 120

On a cluster it runs on as many executors as its bounds take, from one to eight:

    tailrace cluster start --cores 8    # and in another terminal:
    tailrace run examples/hot_topics.py:elastic --seconds 120 --master spark://127.0.0.1:7077

The workload of Lohrmann 2016, section 5.1.3, at the size of one machine. Tweets take two ways:

- **topics**: every task counts the topics of its own tweets, and one merger makes the list of hot
  topics of all counts. A topic is hot if it has its share of the recent tweets.
- **sentiments**: a filter keeps the tweets on hot topics, and a remote service is asked for the
  mood of each. The service is played by a wait of 2 ms.

In the original the merger sends its list back to every filter. A flow on Spark has no way back,
and a join with the list of the same batch would lead every tweet to the filter by way of the
merger too, so that the ways were no longer two. So the filter is keyed by the topic: it counts its
topic over the same recent tweets, and needs no list to know whether the topic is on it. It keeps a
tweet exactly if the list made of all tweets up to this one names its topic. For that the list has
all topics above a share, not the first few. The price is that one task filters all tweets on a
topic, and that the number of these tasks stays as it is while the flow runs, as of every step that
remembers; tweets are spread again before the costly step.

The bounds are ours: a mean of 2 s for the topics, 215 ms in the original, and of 1 s for the
sentiments, 30 ms there. In the original records pass from task to task as they come, and its
bounds are kept in 93 % and 96 % of its intervals; here they travel in micro-batches. Both outputs
of a batch become visible when all of it is done, so that in effect the tighter bound holds for
both. The original replays two weeks of tweets. Our load is made up: three days that pass in two
minutes, with day and night and one burst on three topics, at a tenth of the original's peak of
6,734 tweets/s.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

SLICE = 100
"""Tweets are counted by slices of the stream: ``seq // SLICE``."""

SLICES = 20
"""The recent tweets are those of so many slices, up to the newest."""

HOT = round(0.05 * SLICE * SLICES)
"""A topic is hot with so many of the recent tweets: a twentieth."""

CALL_S = 0.002
"""What an answer of the remote service takes."""

MOODS = {"love": 2, "great": 1, "fine": 1, "so-so": 0, "dull": -1, "bad": -1, "hate": -2}

# --- the load --------------------------------------------------------------------------------

TOPICS = tuple(f"topic{rank}" for rank in range(1, 201))
NEWS = ("kickoff", "goal", "final")
"""What the burst is about; nobody speaks of it before."""

SPEED = 2_160
burst = tr.load.Burst("1 /min", "10.7 /min", at_s="28.8 h", length_s="3 h", duration_s="72 h")
days = tr.load.Together(tr.load.Sine("5 /min", "3 /min", period_s="24 h", duration_s="72 h"), burst)
rate = tr.load.Faster(days, SPEED)


def write_tweets(random: np.random.Generator, keys: np.ndarray) -> list[str]:
    """What the tweets say: one in four has no topic; in the burst, four in five are on the news.

    As tweets come evenly, the time of each is known: the n-th is due when n + 1/2 are expected.
    """
    number = len(keys)
    hours = rate.time_of(np.arange(0.5, number, dtype=np.float64)) * SPEED / 3_600
    first, last = burst.at_s / 3_600, (burst.at_s + burst.length_s) / 3_600
    weights = 1 / np.arange(1, len(TOPICS) + 1)
    usual = random.choice(TOPICS, number, p=weights / weights.sum())
    news = (first <= hours) & (hours < last) & (random.random(number) < 0.8)
    topics = np.where(news, random.choice(NEWS, number), usual)
    untold = ~news & (random.random(number) < 0.25)
    words = random.choice(list(MOODS), size=(number, 3))
    said = [" ".join(pick) for pick in words.tolist()]
    return [
        text if quiet else f"{text} #{topic}"
        for text, topic, quiet in zip(said, topics.tolist(), untold.tolist(), strict=True)
    ]


load = tr.load.generate(rate, arrivals="even", payload=write_tweets, seed=11)

# --- the steps -------------------------------------------------------------------------------


def parse(row: Any) -> Iterator[tuple[int, str, str]]:
    """A tweet with each of its topics; one without a topic is of no interest."""
    for word in row.payload.split():
        if word.startswith("#"):
            yield row.seq, word[1:], row.payload


def count(batch: pa.RecordBatch) -> pa.RecordBatch:
    """How often each topic comes up in each slice, among the tweets of one hand-over."""
    tweets = pa.table({"slice": pc.divide(batch["seq"], SLICE), "topic": batch["topic"]})
    counts = tweets.group_by(["slice", "topic"], use_threads=False).aggregate([([], "count_all")])
    return pa.RecordBatch.from_pydict(
        {
            "list": pa.repeat("all", counts.num_rows),
            "slice": counts["slice"].combine_chunks(),
            "topic": counts["topic"].combine_chunks(),
            "tweets": counts["count_all"].combine_chunks(),
        }
    )


def merge(_: str, rows: list[Any], state: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """Add the counts of all tasks up; a new list of hot topics for every new slice."""
    recent: dict[int, dict[str, int]] = state["recent"]
    for row in rows:
        counts = recent.setdefault(row.slice, {})
        counts[row.topic] = counts.get(row.topic, 0) + row.tweets
    newest = max(recent)
    forget(recent, newest)
    if newest > state["listed"]:
        state["listed"] = newest
        yield newest, hottest(recent)


def hottest(recent: dict[int, dict[str, int]]) -> list[str]:
    """The hot topics, the most talked about first."""
    total: Counter[str] = Counter()
    for counts in recent.values():
        total.update(counts)
    hot = [topic for topic, tweets in total.items() if tweets >= HOT]
    return sorted(hot, key=lambda topic: (-total[topic], topic))


def keep_hot(topic: str, rows: list[Any], state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tweets on a topic while it is hot, in the order of the stream."""
    recent: dict[int, int] = state["recent"]
    for row in sorted(rows, key=lambda row: row.seq):
        newest = row.seq // SLICE
        recent[newest] = recent.get(newest, 0) + 1
        forget(recent, newest)
        if sum(recent.values()) >= HOT:
            yield topic, row.text


def forget(recent: dict[int, Any], newest: int) -> None:
    """Let go of the slices that are no longer recent."""
    for old in [number for number in recent if number <= newest - SLICES]:
        del recent[old]


def sentiment(row: Any) -> tuple[str, float]:
    """What a tweet thinks of its topic, after the wait for the service."""
    time.sleep(CALL_S)
    return row.topic, float(sum(MOODS.get(word, 0) for word in row.text.split()))


# --- the flow --------------------------------------------------------------------------------


def pipeline(records: DataFrame) -> dict[str, DataFrame]:
    """Parse once, then both ways."""
    tweets = records.transform(tr.flat_step("parse", parse, "seq long, topic string, text string"))
    counts = "list string, slice long, topic string, tweets long"
    topics = tweets.transform(tr.batch_step("topics", count, counts, scale=(1, 16))).transform(
        tr.keyed_step(
            "merger",
            merge,
            "slice long, topics array<string>",
            key="list",
            state={"recent": {}, "listed": -1},
        )
    )
    sentiments = tweets.transform(
        tr.keyed_step(
            "filter",
            keep_hot,
            "topic string, text string",
            key="topic",
            state={"recent": {}},
            scale=(1, 16),
        )
    ).transform(tr.step("sentiment", sentiment, "topic string, score double", scale=(1, 16)))
    return {"sentiments": sentiments, "topics": topics}


def declared(executors: tuple[int, int] | None = None) -> tr.Flow:
    """The flow with its two bounds, one for each way."""
    sinks = {"sentiments": tr.sinks.discard(), "topics": tr.sinks.discard()}
    found = tr.Flow("hot-topics", load, pipeline, sinks, executors=executors)
    found.keep(mean="2 s", path=("source", "sink:topics"))
    return found.keep(mean="1 s", path=("source", "sink:sentiments"))


def elastic() -> tr.Flow:
    """The flow on one to eight executors, as many as its bounds take; it needs a cluster."""
    return declared(executors=(1, 8))


flow = declared()
