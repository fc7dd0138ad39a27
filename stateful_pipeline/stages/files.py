"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` under a temporary name and move it into place."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
