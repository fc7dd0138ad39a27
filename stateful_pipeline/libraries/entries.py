"""An entry of the cache: a folder with what was built, and a file that says what that was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.libraries.inputs import Inputs
from stateful_pipeline.libraries.project import digest_of

_FILE = "entry.json"


class DamagedEntryError(Exception):
    """An entry is not what was put there; the message says which file."""


@dataclass(frozen=True)
class Entry:
    """What was built.

    Attributes:
        libraries: The names of the shared libraries, in the order of links, and their digests.
        programs: The same of the executables.
        inputs: What it was built from, beside what its key covers.
    """

    libraries: Mapping[str, str]
    programs: Mapping[str, str]
    inputs: Inputs

    @property
    def digest(self) -> str:
        """The digest of its inputs, as 8 hexadecimal digits."""
        text = json.dumps([dict(self.inputs.files), dict(self.inputs.variables)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def write(self, folder: Path) -> None:
        """Describe what is in ``folder``."""
        plain = {
            "libraries": list(self.libraries.items()),
            "programs": list(self.programs.items()),
            "files": dict(self.inputs.files),
            "variables": dict(self.inputs.variables),
        }
        (folder / _FILE).write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def read_entry(folder: Path) -> Entry:
    """Return the entry in ``folder``.

    Raises:
        DamagedEntryError: It is not whole.
    """
    file = folder / _FILE
    try:
        entry = _entry(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise DamagedEntryError(f"{file} is missing") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # whatever JSON may hold
        raise DamagedEntryError(f"{file} is damaged") from error
    for name, digest in (*entry.libraries.items(), *entry.programs.items()):
        path = folder / name
        if not path.is_file():
            raise DamagedEntryError(f"{path} is missing")
        if digest_of(path) != digest:
            raise DamagedEntryError(f"{path} is damaged")
    return entry


def _entry(plain: Any) -> Entry:
    inputs = Inputs(dict(plain["files"]), dict(plain["variables"]))
    entry = Entry(dict(plain["libraries"]), dict(plain["programs"]), inputs)
    texts = (*entry.libraries.items(), *entry.programs.items())
    if not texts or not all(isinstance(text, str) for pair in texts for text in pair):
        raise TypeError("no names with digests")
    return entry
