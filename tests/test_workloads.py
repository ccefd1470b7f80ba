"""The workloads of the theses, without Spark: their steps against plain sequential references."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from tailrace.graph import Graph, Step, Stream, graph
from tailrace.policy.scaling.sizing import Limits
from tailrace.spark.from_file import example, find_flow
from tailrace.state.plain import dumps, loads
from tailrace.state.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.load import Trace


def declared(name: str) -> Any:
    """An example's module, as the command line imports it."""
    find_flow(f"{example(f'{name}.py')}:flow")
    return sys.modules[f"tailrace_flow_{name}"]


TWITTER, TRADING = declared("hot_topics"), declared("trading")


def test_the_examples_are_declared_without_a_session() -> None:
    flows = [f"{example(f'{name}.py')}:flow" for name in ("hot_topics", "trading")]
    code = (
        "from pyspark import SparkContext; from tailrace.spark.from_file import find_flow\n"
        f"print([find_flow(name).name for name in {flows}], SparkContext._active_spark_context)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['hot-topics', 'trading'] None"


@pytest.mark.parametrize(
    "function",
    [
        *(TWITTER.parse, TWITTER.count, TWITTER.merge, TWITTER.keep_hot, TWITTER.sentiment),
        *(TRADING.quote, TRADING.chart),
    ],
    ids=lambda function: function.__name__,
)
def test_a_step_travels_to_workers_without_the_load(function: Callable[..., Any]) -> None:
    assert len(cloudpickle.dumps(function)) < 10_000  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["hot_topics", "trading"])
def test_a_load_is_the_same_whenever_it_is_made(name: str) -> None:
    assert declared(name).load == {"hot_topics": TWITTER, "trading": TRADING}[name].load


# --- how keyed steps and pipelines are run here ------------------------------------------------


class Keyed:
    """A keyed step in one process: what it remembers is written and read back after every call."""

    def __init__(self, function: Callable[..., Any], initial: dict[str, Any]) -> None:
        self._function, self._initial = function, dumps(initial)
        self.packed: dict[str, bytes] = {}

    def __call__(self, key: str, rows: list[Any]) -> list[Any]:
        state = State(loads(self.packed.get(key, self._initial)))
        made = list(self._function(key, rows, state))
        self.packed[key] = dumps(dict(state))
        return made

    def remembers(self, key: str) -> dict[str, Any]:
        """The state of a key."""
        state: dict[str, Any] = loads(self.packed[key])
        return state


class Frame:
    """A DataFrame that only notes which steps it goes through."""

    def __init__(self, origin: str, steps: list[Step], streams: list[Stream]) -> None:
        self.origin, self.steps, self.streams = origin, steps, streams

    def transform(self, apply: Any) -> Frame:
        """Go through a step."""
        self.steps.append(apply.step)
        self.streams.append(Stream(self.origin, apply.step.name))
        return Frame(apply.step.name, self.steps, self.streams)


def graph_of(module: Any) -> Graph:
    """The graph of an example's pipeline, as far as its steps alone make it."""
    source = Frame("source", [], [])
    made = module.pipeline(source)
    ends = {f"sink:{name}": end for name, end in made.items()} if isinstance(made, dict) else {}
    streams = [Stream(end.origin, name) for name, end in (ends or {"sink": made}).items()]
    return graph(tuple(source.steps), (*source.streams, *streams))


def cut(items: Sequence[Any], places: Iterable[int]) -> list[list[Any]]:
    """The items in consecutive groups that end at these places."""
    edges = sorted({0, len(items), *(place for place in places if place < len(items))})
    return [list(items[first:end]) for first, end in pairwise(edges)]


def by_key(rows: list[Any], name: str) -> dict[str, list[Any]]:
    """The rows of one hand-over, key by key."""
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, name), []).append(row)
    return groups


def payloads_of(load: Trace) -> list[str]:
    assert load.payloads is not None
    return list(load.payloads)


# --- hot topics: the graph and the load -----------------------------------------------------


def test_both_branches_part_after_the_parser_and_have_a_bound_of_their_own() -> None:
    flow, made = TWITTER.flow, graph_of(TWITTER)
    assert made.forks() == {"parse"}
    assert {goal.bound_ms: made.path(goal.path) for goal in flow.constraints} == {
        2_000.0: ("source", "parse", "topics", "merger", "sink:topics"),
        1_000.0: ("source", "parse", "filter", "sentiment", "sink:sentiments"),
    }
    assert set(flow.sinks) == set(made.sinks)
    scaled = {step.name: step.scale for step in made.steps if step.scale}
    assert scaled == dict.fromkeys(("topics", "filter", "sentiment"), (1, 16))


def test_only_the_elastic_flow_asks_for_executors() -> None:
    elastic = TWITTER.elastic()
    assert TWITTER.flow.executors is None
    assert elastic.executors == Limits(1, 8)
    assert elastic.constraints == TWITTER.flow.constraints


def test_the_tweets_peak_at_a_tenth_of_the_original_at_two_fifths_of_the_replay() -> None:
    """Lohrmann 2016, 5.1.3: 6,734 tweets/s at 2,400 s of 6,000 s."""
    assert TWITTER.rate.duration_s == 120
    assert len(TWITTER.load) == round(float(TWITTER.rate.expected(np.array([120.0]))[0]))
    each_s = np.bincount(TWITTER.load.due_us // 1_000_000, minlength=120)
    assert 48 <= int(np.argmax(each_s)) < 53
    assert each_s.max() == pytest.approx(673.4, rel=0.01)
    usual = np.delete(each_s, range(48, 53))
    days = usual[:40], usual[-40:]
    for day in days:
        assert day.max() > 2.5 * day.min()


def topics_of(text: str) -> list[str]:
    return [word.removeprefix("#") for word in text.split() if word[0] == "#"]


def test_the_burst_is_on_three_topics_that_nobody_speaks_of_otherwise() -> None:
    told = [topics_of(text) for text in payloads_of(TWITTER.load)]
    hours = TWITTER.load.due_us / 1e6 * 72 / 120
    in_burst = (hours >= 28.8) & (hours < 31.8)
    on_news = np.array([bool(set(topics) & set(TWITTER.NEWS)) for topics in told])
    assert not on_news[~in_burst].any()
    assert on_news[in_burst].mean() == pytest.approx(0.8, abs=0.03)
    assert len({topic for topics in told for topic in topics}) > 150
    silent = np.array([not topics for topics in told])
    assert silent[~in_burst].mean() == pytest.approx(0.25, abs=0.01)


# --- hot topics: the steps ------------------------------------------------------------------


def tweet(seq: int, topic: str, text: str = "") -> Any:
    return SimpleNamespace(seq=seq, topic=topic, text=text or f"fine #{topic}")


def test_a_tweet_is_parsed_once_for_each_of_its_topics() -> None:
    row = SimpleNamespace(seq=7, payload="so-so #storm great #goal fine")
    assert list(TWITTER.parse(row)) == [(7, "storm", row.payload), (7, "goal", row.payload)]
    assert list(TWITTER.parse(SimpleNamespace(seq=8, payload="love it"))) == []


tweets_drawn = st.lists(st.sampled_from("aabbbc-"), min_size=1, max_size=120).map(
    lambda topics: [tweet(seq, topic) for seq, topic in enumerate(topics) if topic != "-"]
)


def counted(tweets: Sequence[Any]) -> list[Any]:
    """What the step "topics" makes of a hand-over."""
    batch = pa.RecordBatch.from_pydict(
        {
            "seq": pa.array([row.seq for row in tweets], pa.int64()),
            "topic": pa.array([row.topic for row in tweets], pa.string()),
        }
    )
    made = TWITTER.count(batch)
    assert made.schema.names == ["list", "slice", "topic", "tweets"]
    return [SimpleNamespace(**row) for row in made.to_pylist()]


@given(tweets_drawn)
def test_topics_are_counted_by_slice(tweets: list[Any]) -> None:
    with patch.multiple(TWITTER, SLICE=7):
        rows = counted(tweets)
    expected = Counter((row.seq // 7, row.topic) for row in tweets)
    assert {(row.slice, row.topic): row.tweets for row in rows} == expected
    assert len(rows) == len(expected)
    assert {row.list for row in rows} <= {"all"}


def hot_after(tweets: Sequence[Any], newest: int, sizes: SimpleNamespace) -> list[str]:
    """The hot topics in the slices up to the newest: all tweets looked at anew."""
    recent = Counter(
        row.topic for row in tweets if newest - sizes.SLICES < row.seq // sizes.SLICE <= newest
    )
    hot = [(-number, topic) for topic, number in recent.items() if number >= sizes.HOT]
    return [topic for _, topic in sorted(hot)]


sizes_drawn = st.builds(
    SimpleNamespace, SLICE=st.integers(1, 9), SLICES=st.integers(1, 5), HOT=st.integers(1, 8)
)
places = st.lists(st.integers(0, 120))


@given(tweets_drawn, sizes_drawn, places)
def test_the_merger_lists_what_is_hot_once_for_every_slice_that_it_sees_begin(
    tweets: list[Any], sizes: SimpleNamespace, ends: list[int]
) -> None:
    merger = Keyed(TWITTER.merge, {"recent": {}, "listed": -1})
    listed, seen = -1, 0
    with patch.multiple(TWITTER, **vars(sizes)):
        for group in cut(tweets, ends) if tweets else []:
            seen += len(group)
            newest = tweets[seen - 1].seq // sizes.SLICE
            due = [(newest, hot_after(tweets[:seen], newest, sizes))] if newest > listed else []
            assert merger("all", counted(group)) == due
            listed = newest


@given(tweets_drawn, sizes_drawn, places, st.randoms())
def test_the_filter_keeps_the_same_tweets_however_they_come_together(
    tweets: list[Any], sizes: SimpleNamespace, ends: list[int], random: Any
) -> None:
    keeper = Keyed(TWITTER.keep_hot, {"recent": {}})
    for row in tweets:
        row.text = str(row.seq)
    expected = {
        row.seq
        for number, row in enumerate(tweets, start=1)
        if row.topic in hot_after(tweets[:number], row.seq // sizes.SLICE, sizes)
    }
    kept: list[tuple[str, str]] = []
    with patch.multiple(TWITTER, **vars(sizes)):
        for group in cut(tweets, ends) if tweets else []:
            random.shuffle(group)
            for topic, rows in by_key(group, "topic").items():
                kept += keeper(topic, rows)
    assert Counter(kept) == Counter((row.topic, row.text) for row in tweets if row.seq in expected)


@given(tweets_drawn, sizes_drawn)
def test_a_tweet_is_kept_exactly_if_the_list_of_all_tweets_up_to_it_names_its_topic(
    tweets: list[Any], sizes: SimpleNamespace
) -> None:
    merger = Keyed(TWITTER.merge, {"recent": {}, "listed": -1})
    keeper = Keyed(TWITTER.keep_hot, {"recent": {}})
    with patch.multiple(TWITTER, **vars(sizes)):
        for row in tweets:
            merger("all", counted([row]))
            named = row.topic in TWITTER.hottest(merger.remembers("all")["recent"])
            assert bool(keeper(row.topic, [row])) == named


def test_the_filter_lets_go_of_what_is_no_longer_recent() -> None:
    keeper = Keyed(TWITTER.keep_hot, {"recent": {}})
    for seq in range(0, 500_000, 70):
        keeper("a", [tweet(seq, "a")])
    assert len(keeper.remembers("a")["recent"]) == TWITTER.SLICES
    assert len(keeper.packed["a"]) < 500


def test_a_sentiment_is_the_sum_of_its_words_after_one_call_of_the_service() -> None:
    row = SimpleNamespace(topic="goal", text="love great dull #goal")
    with patch.object(TWITTER.time, "sleep") as slept:
        assert TWITTER.sentiment(row) == ("goal", 2.0 + 1.0 - 1.0)
    slept.assert_called_once_with(TWITTER.CALL_S)
    assert TWITTER.CALL_S == 0.002


def test_in_the_burst_the_news_becomes_hot_and_the_filter_lets_most_tweets_pass() -> None:
    texts = payloads_of(TWITTER.load)
    rows = [SimpleNamespace(seq=seq, payload=text) for seq, text in enumerate(texts)]
    parsed = [tweet(*made) for row in rows for made in TWITTER.parse(row)]
    merger = Keyed(TWITTER.merge, {"recent": {}, "listed": -1})
    keeper = Keyed(TWITTER.keep_hot, {"recent": {}})
    lists: dict[int, list[str]] = {}
    kept = np.zeros(120)
    due_s = TWITTER.load.due_us // 1_000_000
    for group in cut(parsed, range(0, len(parsed), 150)):
        lists.update(merger("all", counted(group)))
        for topic, tweets in by_key(group, "topic").items():
            kept[due_s[group[-1].seq]] += len(keeper(topic, tweets))
    named = {
        due_s[min(number * TWITTER.SLICE, len(texts) - 1)]: set(topics)
        for number, topics in lists.items()
    }
    news = set(TWITTER.NEWS)
    assert all(not news & topics for second, topics in named.items() if second < 48)
    assert all(news <= topics for second, topics in named.items() if 50 <= second < 53)
    assert not news & named[119]
    passed = kept / np.bincount(due_s, minlength=120)
    assert passed[50:52].mean() > 0.8
    assert 0.1 < passed[20:45].mean() < 0.3


# --- trading: the load ----------------------------------------------------------------------


def test_the_rate_of_quotes_has_the_statistics_of_the_original() -> None:
    """De Matteis 2016, workload A3 "rw": a random walk of 180 rates, one for each second."""
    each_s = TRADING.walk.rate_at(np.arange(180) + 0.5) * TRADING.SCALE
    assert each_s[0] == 300_000
    assert each_s.mean() == pytest.approx(297_244, rel=0.01)
    assert each_s.min() == pytest.approx(135_494, rel=0.01)
    assert each_s.max() == pytest.approx(457_831, rel=0.01)
    assert np.diff(each_s).std() == pytest.approx(16_554, rel=0.01)
    assert len(TRADING.load) == round(each_s.sum() / TRADING.SCALE)


def test_the_hottest_symbol_has_the_share_that_it_has_in_the_original() -> None:
    """De Matteis 2016, workload A3: the most frequent key has 0.0287 of the quotes."""
    shares = np.bincount(TRADING.load.key, minlength=500) / len(TRADING.load)
    assert np.count_nonzero(shares) == 500
    assert shares.max() == shares[0] == pytest.approx(0.0287, rel=0.03)


def quotes_of(symbol: int) -> list[Any]:
    """The quotes of a symbol, as the step "quote" reads them."""
    load = TRADING.load

    def read(seq: int) -> Any:
        row = SimpleNamespace(key=str(symbol), payload=load.payloads[seq])
        names = ("symbol", "at_us", "bid", "ask")
        return SimpleNamespace(**dict(zip(names, TRADING.quote(row), strict=True)))

    return [read(seq) for seq in np.flatnonzero(load.key == symbol).tolist()]


def test_quotes_are_in_the_order_of_the_exchange_and_a_bid_is_below_its_ask() -> None:
    for symbol in (0, 250, 499):
        quotes = quotes_of(symbol)
        assert all(before.at_us <= after.at_us for before, after in pairwise(quotes))
        assert all(0 < q.bid < q.ask < q.bid + 7 for q in quotes if q.bid and q.ask)
        moves = [abs(b.bid - a.bid) for a, b in pairwise(quotes) if a.bid and b.bid]
        assert max(moves) <= 4


def test_a_millisecond_of_the_exchange_holds_as_many_quotes_as_in_the_original() -> None:
    quotes = quotes_of(0)
    lasted_ms = (quotes[-1].at_us - quotes[0].at_us) / 1e3
    assert len(quotes) / lasted_ms == pytest.approx(297_244 * 0.0287 / 1e3, rel=0.05)


def test_an_offer_of_nothing_is_none() -> None:
    row = SimpleNamespace(key="3", payload="1500,4999,0,5003,12")
    assert TRADING.quote(row) == ("3", 1500, 0, 5003)
    offers = [price for quote in quotes_of(0) for price in (quote.bid, quote.ask)]
    assert offers.count(0) / len(offers) == pytest.approx(0.02, abs=0.005)


# --- trading: the charts --------------------------------------------------------------------


def best_parabola(points: dict[int, list[int]]) -> list[float]:
    """The normal equations of the least squares, solved exactly in fractions."""
    oldest = min(points)
    xs = [Fraction(at - oldest) for at in points]
    ys = [Fraction(sum(cents), len(cents)) for cents in points.values()]
    size = min(3, len(points))
    rows = [
        [sum((x ** (i + j) for x in xs), Fraction(0)) for j in range(size)]
        + [sum((y * x**i for x, y in zip(xs, ys, strict=True)), Fraction(0))]
        for i in range(size)
    ]
    for i in range(size):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [float(row[-1]) for row in rows] + [0.0] * (3 - size)


def charts_of(quotes: Sequence[Any], window: int, slide: int) -> list[tuple[Any, ...]]:
    """Every chart of a symbol, each from all of its quotes."""
    charts: list[tuple[Any, ...]] = []
    for end in range(slide, len(quotes) + 1, slide):
        for side in ("bid", "ask"):
            latest = [c for q in quotes[end - slide : end] if (c := getattr(q, side))]
            if not latest:
                continue
            points: dict[int, list[int]] = {}
            for quote in quotes[max(0, end - window) : end]:
                if cents := getattr(quote, side):
                    points.setdefault(quote.at_us // 1_000, []).append(cents)
            candle = latest[0], latest[-1], max(latest), min(latest)
            charts.append(("s", end, side, *candle, *best_parabola(points)))
    return charts


def assert_same_charts(made: list[Any], expected: list[Any]) -> None:
    assert [chart[:7] for chart in made] == [chart[:7] for chart in expected]
    for one, other in zip(made, expected, strict=True):
        assert all(type(value) in (int, float, str) for value in one)
        for fitted, exact in zip(one[7:], other[7:], strict=True):
            assert math.isclose(fitted, exact, rel_tol=1e-6, abs_tol=1e-6)


EMPTY = {"quotes": b"", "seen": 0}
cents_drawn = st.one_of(st.just(0), st.integers(4_000, 6_000))
quotes_drawn = st.lists(st.tuples(st.integers(0, 2_500), cents_drawn, cents_drawn), max_size=60)


@settings(max_examples=200)
@given(quotes_drawn, places, st.integers(1, 6), st.integers(0, 12))
def test_charts_are_those_of_a_sequential_run_however_quotes_come_together(
    drawn: list[tuple[int, int, int]], ends: list[int], slide: int, more: int
) -> None:
    at_us = np.cumsum([gap for gap, _, _ in drawn], dtype=int).tolist()
    quotes = [
        SimpleNamespace(at_us=at, bid=bid, ask=ask)
        for at, (_, bid, ask) in zip(at_us, drawn, strict=True)
    ]
    keeper = Keyed(TRADING.chart, EMPTY)
    made: list[Any] = []
    with patch.multiple(TRADING, WINDOW=slide + more, SLIDE=slide):
        for group in cut(quotes, ends) if quotes else []:
            made += keeper("s", group)
    assert_same_charts(made, charts_of(quotes, slide + more, slide))


def test_the_hottest_symbol_is_charted_as_in_a_sequential_run() -> None:
    quotes = quotes_of(0)[:1_400]
    keeper = Keyed(TRADING.chart, EMPTY)
    made = [chart for group in cut(quotes, range(0, 1_400, 33)) for chart in keeper("s", group)]
    assert_same_charts(made, charts_of(quotes, 1_000, 25))
    assert len(made) == 2 * 1_400 // 25


def test_the_state_of_a_symbol_is_sixteen_bytes_for_a_quote_of_less_than_a_window() -> None:
    keeper = Keyed(TRADING.chart, EMPTY)
    for group in cut(quotes_of(0), range(0, 8_000, 77)):
        keeper("s", group)
        held = len(keeper.remembers("s")["quotes"])
        assert held % 16 == 0
        assert held < 16 * TRADING.WINDOW
        assert len(keeper.packed["s"]) < held + 100


def test_a_fit_finds_the_parabola_that_prices_lie_on() -> None:
    at_us = np.repeat(np.arange(50) * 1_000, 2)
    ms = at_us / 1e3
    noise = np.tile([3.0, -3.0], 50)  # averaged away in each millisecond
    fit = TRADING.parabola(at_us + 10**12, 5_000 + 2 * ms - 0.25 * ms**2 + noise)
    np.testing.assert_allclose(fit, [5_000, 2, -0.25], rtol=1e-9)


def test_trading_has_one_reader_so_that_quotes_stay_in_order() -> None:
    assert TRADING.flow.source.partitions == 1
    assert graph_of(TRADING).path(("source", "sink")) == ("source", "quote", "chart", "sink")
