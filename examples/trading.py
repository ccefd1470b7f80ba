"""Trading: quotes become charts, symbol by symbol, over a window that slides.

    tailrace run examples/trading.py:flow --seconds 180

The workload of De Matteis 2016, section 7.1, at the size of one machine. For every symbol the last
1,000 quotes are a window, and every 25 quotes a chart of it is drawn, for bid and ask each:

- the quotes of one millisecond are averaged, and a parabola is fitted to the averages over time.
  The original fits by Levenberg and Marquardt's method; a parabola is linear in what is sought, so
  that the best fit is solved for at once, by least squares;
- the last 25 quotes become a candlestick: the first and the last price, the highest and the
  lowest.

Until a symbol has had 1,000 quotes its window is what there is. Window and slide are the
original's. The rate has its statistics (workload "rw": 180 s, 300,000 quotes/s to begin with) at a
two-hundredth, but for the largest moves, as ours are uniform. The clock of the exchange is slowed
as much, so that a millisecond holds as many quotes as in the original. There are 500 symbols in
place of 2,836, and the hottest has the same share of the quotes, 2.9 %; the coldest are not as
cold.

The bound is ours: a mean of 500 ms in every 5 s. The original has 1.5 ms under this rate: its
threads share one machine of 16 cores and hand quotes on one by one, where here they travel in
micro-batches.

The order of quotes matters here. One task reads them, and all quotes of a symbol go to one task,
so that they come in the order of the exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import polynomial

import tailrace as tr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

WINDOW = 1_000
SLIDE = 25
INTERVAL_US = 1_000
"""Quotes closer than this count as one."""

QUOTE = np.dtype([("at_us", "<i8"), ("bid", "<i4"), ("ask", "<i4")])
"""A quote as the state keeps it, in 16 bytes: prices in cents, 0 where there is no offer."""

# --- the load --------------------------------------------------------------------------------

SCALE = 200
SYMBOLS = 500
walk = tr.load.RandomWalk(
    300_000 / SCALE,
    28_672 / SCALE,  # moves that are uniform up to this deviate by 16,554, as the original's do
    every_s="1 s",
    low=135_494 / SCALE,
    high=457_831 / SCALE,
    duration_s="180 s",
    seed=7_481,
)


def write_quotes(random: np.random.Generator, keys: np.ndarray) -> list[str]:
    """Time at the exchange, bid and its size, ask and its size; one offer in fifty is missing."""
    count = len(keys)
    at_us = walk.time_of(np.arange(0.5, count, dtype=np.float64)) / SCALE * 1e6
    middle, half_spread = prices(random, keys), random.integers(1, 4, count)
    sizes = random.integers(0, 50, (2, count))
    columns = (at_us.astype(int), middle - half_spread, sizes[0], middle + half_spread, sizes[1])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [",".join(map(str, row)) for row in rows]


def prices(random: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    """The price at each quote, in cents: every symbol wanders from a price of its own."""
    by_symbol = np.argsort(keys, kind="stable")
    symbols = keys[by_symbol]
    wandered = random.integers(-2, 3, len(keys)).cumsum()
    price = np.empty(len(keys), dtype=np.int64)
    price[by_symbol] = 5_000 + 20 * symbols + wandered - wandered[np.searchsorted(symbols, symbols)]
    return price


load = tr.load.generate(
    walk,
    arrivals="even",
    keys=tr.load.Zipf(SYMBOLS, 0.55),
    payload=write_quotes,
    seed=5,
)

# --- the steps -------------------------------------------------------------------------------

Chart = tuple[str, int, str, int, int, int, int, float, float, float]


def quote(row: Any) -> tuple[str, int, int, int]:
    """A quote from its text; an offer of nothing is none."""
    at_us, bid, bid_size, ask, ask_size = map(int, row.payload.split(","))
    return row.key, at_us, bid if bid_size else 0, ask if ask_size else 0


def chart(symbol: str, rows: list[Any], state: dict[str, Any]) -> Iterator[Chart]:
    """A chart for each side at every slide; the state is what the next window needs of these."""
    fresh = np.array([(row.at_us, row.bid, row.ask) for row in rows], QUOTE)
    quotes = np.concatenate([np.frombuffer(state["quotes"], QUOTE), fresh])
    before, seen = state["seen"], state["seen"] + len(rows)
    oldest = seen - len(quotes)
    needed = WINDOW - SLIDE + seen % SLIDE
    state["seen"], state["quotes"] = seen, quotes[max(0, len(quotes) - needed) :].tobytes()
    for end in range(before // SLIDE * SLIDE + SLIDE, seen + 1, SLIDE):
        window = quotes[max(0, end - oldest - WINDOW) : end - oldest]
        for side in ("bid", "ask"):
            offers = window[window[side] > 0]
            latest = window[-SLIDE:][side]
            latest = latest[latest > 0].tolist()
            if latest:
                candle = latest[0], latest[-1], max(latest), min(latest)
                yield symbol, end, side, *candle, *parabola(offers["at_us"], offers[side])


def parabola(at_us: np.ndarray, cents: np.ndarray) -> tuple[float, float, float]:
    """The fit to the averages by interval: level, slope and bend, by ms since the oldest offer.

    Of one or two intervals it is a constant or a line.
    """
    intervals, place = np.unique(at_us // INTERVAL_US, return_inverse=True)
    averages = np.bincount(place, cents) / np.bincount(place)
    since_ms = (intervals - intervals[0]) * (INTERVAL_US / 1e3)
    fitted = polynomial.polyfit(since_ms, averages, min(2, len(intervals) - 1))
    level, slope, bend = np.pad(fitted, (0, 3 - len(fitted))).tolist()
    return level, slope, bend


# --- the flow --------------------------------------------------------------------------------


def pipeline(records: DataFrame) -> DataFrame:
    """Read quotes, draw charts."""
    charts = (
        "symbol string, quotes long, side string, open int, close int, high int, low int, "
        "level double, slope double, bend double"
    )
    new = {"quotes": b"", "seen": 0}
    return records.transform(
        tr.step("quote", quote, "symbol string, at_us long, bid int, ask int")
    ).transform(tr.keyed_step("chart", chart, charts, key="symbol", state=new))


flow = tr.Flow("trading", tr.replay(load, partitions=1), pipeline, tr.sinks.discard())
flow.keep(mean="500 ms")
