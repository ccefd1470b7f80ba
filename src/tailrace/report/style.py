"""The style of pictures, and how they are written: the same data gives the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from tailrace.errors import InputError, unwritable
from tailrace.state.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "tailrace",
    "text.parse_math": False,
}
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}


def written(path: Path, figure: Callable[[], Figure]) -> Path:
    """Draw a figure in our style and write it, as PNG or SVG by the suffix of the path.

    Raises:
        InputError: If the suffix is another one, or the file cannot be written to this place.
        EnvironmentUnfit: If there is no space left.
    """
    suffix = path.suffix.lower()
    if suffix not in _METADATA:
        raise InputError(f"A picture cannot be written as '{path.name}': end it in .png or .svg.")
    with mpl.rc_context(STYLE):
        drawn = figure()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, path.with_name(f".{path.name}.tmp"), flush=False) as file:
                drawn.savefig(file, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
        except OSError as error:
            raise unwritable(f"The picture {path}", error) from error
    return path
