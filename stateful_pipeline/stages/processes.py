"""What a process that runs a module of this package needs to find it."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return this process's environment, in which Python finds this very package."""
    paths = [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
