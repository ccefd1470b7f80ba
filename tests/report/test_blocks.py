"""Bars and charts of characters: as long and as high as the values that they show."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.report.blocks import Drawn, bar, chart

BLOCKS = " ▁▂▃▄▅▆▇█"


def lines(drawn: Drawn, encoding: str = "utf-8") -> list[str]:
    """What a console of this encoding shows."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n").split("\n")


@given(st.floats(0.01, 1e6), st.floats(-0.5, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_part_of_the_whole(top: float, share: float, width: int) -> None:
    (plain,) = lines(bar(top, share * top, width), "ascii")
    assert set(plain.strip()) <= {"#"}
    assert abs(plain.count("#") - max(0.0, share) * width) <= 0.5 + 1e-6
    (drawn,) = lines(bar(top, share * top, width))
    assert abs(drawn.count("█") - max(0.0, share) * width) <= 1


@given(st.lists(st.floats(0, 150), min_size=1, max_size=30), st.integers(1, 4), st.floats(1, 100))
def test_the_columns_of_a_chart_are_as_high_as_their_values(
    values: list[float], height: int, top: float
) -> None:
    rows = lines(chart(values, [False] * len(values), top, height, None))
    padded = [row.ljust(len(values)) for row in rows]
    assert len(padded) == height
    for number, value in enumerate(values):
        eighths = [BLOCKS.index(row[number]) for row in reversed(padded)]
        assert abs(sum(eighths) - min(value / top, 1) * height * 8) <= 0.5 + 1e-6
        assert eighths == sorted(eighths, reverse=True)
        assert sum(0 < each < 8 for each in eighths) <= 1


def test_a_bound_is_a_line_where_no_column_covers_it() -> None:
    values = [1.0, 9.0, 1.0]
    assert lines(chart(values, [False] * 3, 10.0, 2, 7.0)) == ["┄▆┄", "▂█▂"]
    assert lines(chart(values, [False] * 3, 10.0, 2, 7.0), "ascii") == [".=.", ".#."]


def test_columns_that_broke_the_bound_are_red() -> None:
    drawn = chart([1.0, 2.0], [False, True], 2.0, 1, None).draw(False)
    assert [str(span.style) for span in drawn.spans] == ["cyan", "red"]  # type: ignore[union-attr]


def test_a_chart_of_nothing_is_empty() -> None:
    assert lines(chart([0.0, 0.0], [False] * 2, 0.0, 1, None)) == ["  "]
