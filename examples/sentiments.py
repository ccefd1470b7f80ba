"""Sentiments: a text pipeline of five steps, where chaining pays.

    tailrace run examples/sentiments.py:flow --seconds 60

Tweets are parsed, those on no topic are dropped by Spark itself, and the rest are cleaned, cut
into words, scored and summed up. Cleaning, words, score and verdict follow each other directly,
so that they can share one hand-over to Python. Broken tweets go to a place of their own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

TOPICS = ("storm", "election", "football", "concert")
MOODS = {"love": 2, "great": 1, "fine": 1, "so-so": 0, "dull": -1, "bad": -1, "hate": -2}


def write_tweets(random: np.random.Generator, keys: np.ndarray) -> list[str]:
    """What the tweets say: one in fifty is broken, one in four has no topic."""
    words = np.array(list(MOODS))
    picks = words[random.integers(0, len(words), size=(len(keys), 4))]
    topics = random.integers(0, len(TOPICS) + 1, size=len(keys))
    broken = random.random(len(keys)) < 0.02
    tweets = []
    for user, topic, pick, bad in zip(keys, topics, picks, broken, strict=True):
        name = TOPICS[topic] if topic < len(TOPICS) else None
        tweet = json.dumps({"user": f"u{user}", "topic": name, "text": " ".join(pick) + " !!"})
        tweets.append(tweet[:-5] if bad else tweet)
    return tweets


load = tr.load.generate(
    tr.load.Sine("1 k/s", "600 /s", period_s="40 s", duration_s="120 s"),
    keys=tr.load.Zipf(1_000, 1.1),
    payload=write_tweets,
    seed=7,
)


def parse(row: Any) -> tuple[str, str | None, str]:
    """A tweet from its JSON; a broken one raises and becomes a dead letter."""
    tweet = json.loads(row.payload)
    return tweet["user"], tweet["topic"], tweet["text"]


def clean(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Lower case, no shouting: columnar, so no tweet is looked at on its own."""
    text = pc.utf8_trim(pc.replace_substring(pc.utf8_lower(batch["text"]), "!", ""), " ")
    return batch.set_column(batch.schema.get_field_index("text"), "text", text)


def words(row: Any) -> Iterator[tuple[str, str]]:
    """Every word of a tweet with its topic."""
    for word in row.text.split():
        yield row.topic, word


def score(row: Any) -> tuple[str, float]:
    """What a word says about its topic."""
    return row.topic, float(MOODS.get(row.word, 0))


def verdict(row: Any) -> dict[str, object]:
    """The score in a word."""
    mood = "good" if row.score > 0 else "bad" if row.score < 0 else "neutral"
    return {"topic": row.topic, "score": row.score, "mood": mood}


def pipeline(tweets: DataFrame) -> DataFrame:
    """Parse, keep what has a topic, then clean, words, score and verdict in one go."""
    parsed = tweets.transform(
        tr.step("parse", parse, "user string, topic string, text string", on_error="dead-letter")
    )
    return (
        parsed.where("topic is not null")
        .transform(tr.batch_step("clean", clean, "user string, topic string, text string"))
        .transform(tr.flat_step("words", words, "topic string, word string"))
        .transform(tr.step("score", score, "topic string, score double"))
        .transform(tr.step("verdict", verdict, "topic string, score double, mood string"))
    )


flow = tr.Flow("sentiments", load, pipeline, tr.sinks.discard(), dead_letters=tr.sinks.memory())
flow.keep(mean="400 ms", every="5 s")
flow.keep(p99="900 ms")
flow.keep(p99="200 ms", path=("clean", "verdict"))
