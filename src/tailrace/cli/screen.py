"""What commands show on a terminal: texts from outside are shown as they are, and steer nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tailrace.outside import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType


class Screen(Console):
    """Where people read results. A reader that went away is ours to deal with, not rich's."""

    def on_broken_pipe(self) -> None:
        """Leave the error to whoever has more to write."""
        raise  # noqa: PLE0704 - it is called where the error is handled


def table(title: str, *columns: str, justify: JustifyMethod = "left") -> Table:
    """An empty table; without columns it has two, and no header."""
    made = Table(title=printable(title), title_justify="left", show_header=bool(columns))
    for column in columns:
        made.add_column(column, justify=justify)
    return made


def row(to: Table, *cells: str) -> None:
    """Add a row; a name in a cell may hold anything."""
    to.add_row(*map(_cell, cells))


def show(what: RenderableType) -> None:
    """Print a table, or a text in a line of its own."""
    shown = printable(what) if isinstance(what, str) else what
    Screen(markup=False, emoji=False, highlight=False).print(shown)


def _cell(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return " " * min(indent, 2) + printable(text)
