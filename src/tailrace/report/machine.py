"""A description of the machine that a result was measured on."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import Any

import psutil


def described() -> dict[str, Any]:
    """Cores, memory and versions; nothing that names a person or a host."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
    }
