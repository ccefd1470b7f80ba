"""What commands show on a terminal: text from outside is shown literally, never interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tailrace.outside import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType


class Screen(Console):
    """The terminal. A reader that went away is handled by us, not by rich."""

    def on_broken_pipe(self) -> None:
        """Raise the error on to the caller, who may have more to write."""
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
    """Print a table, or a text on a line of its own."""
    shown = printable(what) if isinstance(what, str) else what
    Screen(markup=False, emoji=False, highlight=False).print(shown)


def _cell(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return " " * min(indent, 2) + printable(text)
