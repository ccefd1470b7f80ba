"""Dead letters that a task leaves for the driver to publish when the batch is committed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

from tailrace.state.files import replacing

Letter = tuple[str, str, str]
"""The step, the record and the error."""


def put_aside(
    directory: str, batch: int, chain: str, partition: int, letters: list[Letter]
) -> None:
    """Write the dead letters of a task where the driver finds them, all or none."""
    place = Path(directory) / f"{batch}-{quote(chain, safe='+')}-{partition}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place, place.with_suffix(f".{os.getpid()}.tmp"), flush=True) as file:
        file.write(json.dumps(letters).encode())
