"""Bars and charts of block characters, or of ASCII if the encoding has no blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

_BLOCKS, _LINE = " ▁▂▃▄▅▆▇█", "┄"
_ASCII_BLOCKS, _ASCII_LINE = " ..--==##", "."


@dataclass(frozen=True, slots=True)
class Drawn:
    """What ``draw(ascii_only)`` returns for the console's encoding, ``width`` columns wide."""

    width: int
    draw: Callable[[bool], RenderableType]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The version that the console can encode."""
        yield self.draw(options.ascii_only)

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        """Its own width, if there is room."""
        return Measurement(min(4, self.width), min(self.width, options.max_width))


def bar(top: float, part: float, width: int) -> Drawn:
    """A bar of length ``part``; ``top`` would fill ``width`` columns."""

    def draw(ascii_only: bool) -> RenderableType:
        if ascii_only:
            filled = "#" * round(max(0.0, part) / top * width)
            return Text(filled, "cyan", justify="left", overflow="crop", no_wrap=True)
        return Bar(top, 0, max(0.0, part), width=width, color="cyan")

    return Drawn(width, draw)


def chart(
    values: Sequence[float], red: Sequence[bool], top: float, height: int, bound: float | None
) -> Drawn:
    """Columns of blocks from 0 to ``top``, and a dotted line at the bound."""
    eighths = [round(min(value / top, 1.0) * height * 8) if top else 0 for value in values]
    marked = None if bound is None else math.ceil(bound / top * height) - 1

    def draw(ascii_only: bool) -> Text:
        blocks, across = (_ASCII_BLOCKS, _ASCII_LINE) if ascii_only else (_BLOCKS, _LINE)
        drawn = Text()
        for line in reversed(range(height)):
            for filled, bad in zip(eighths, red, strict=True):
                block = blocks[max(0, min(8, filled - 8 * line))]
                if block == " " and line == marked:
                    drawn.append(across, style="dim")
                else:
                    drawn.append(block, style="red" if bad else "cyan")
            drawn.append("\n" if line else "")
        return drawn

    return Drawn(len(values), draw)
