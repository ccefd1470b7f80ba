"""The energy that this machine's processors use, if it is measured and may be read.

Linux shows the counters of the processor (RAPL) under ``/sys/class/powercap``: microjoules for each
package, which wrap around to zero at a given range. Virtual machines mostly have none, and users
other than root often may not read them.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

ROOT = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")
"""A package; its parts (``intel-rapl:0:0``) do not match."""


class EnergyMeter:
    """Adds up what the packages of this machine use, from its creation on.

    To be read more often than counters wrap around, which is every few minutes at full power.
    """

    def __init__(self, root: Path = ROOT) -> None:
        """Find what can be read now; the rest is left alone."""
        zones = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        packages = [zone for zone in zones if _PACKAGE.fullmatch(zone.name)]
        self._ranges = {
            zone: most
            for zone in packages
            if (most := _microjoules(zone / "max_energy_range_uj")) is not None
        }
        self._last = {
            zone: now
            for zone in self._ranges
            if (now := _microjoules(zone / "energy_uj")) is not None
        }
        self._taken_uj = 0
        self._lock = threading.Lock()

    def read(self) -> float | None:
        """Joules so far; None if this machine shows none."""
        if not self._last:
            return None
        with self._lock:
            self._add()
        return self._taken_uj / 1e6

    def _add(self) -> None:
        for zone, before in self._last.items():
            now = _microjoules(zone / "energy_uj")
            if now is not None:
                self._taken_uj += (
                    now - before if now >= before else now + self._ranges[zone] - before
                )
                self._last[zone] = now


def _microjoules(file: Path) -> int | None:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):
        return None
