"""What decides what a build makes, as one digest: the *key* of the cache.

The key covers the files of the project's folder.  What a project reads from elsewhere is known only
once it has been built: see :mod:`.inputs`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stateful_pipeline.errors import SourceError
from stateful_pipeline.libraries.toolchain import Compiler

_FLAGS = (
    *("CXXFLAGS", "CPPFLAGS", "LDFLAGS"),
    *("CMAKE_PREFIX_PATH", "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
)
"""What CMake and compilers read from the environment."""
_FORMAT = 2
"""What is said of a build beside it: entries of another format are not read."""


@dataclass(frozen=True)
class Project:
    """A folder with a ``CMakeLists.txt``, and how to build it.

    Attributes:
        folder: The absolute path.
        build_type: CMake's ``CMAKE_BUILD_TYPE``.
        defines: More of CMake's variables, as after ``-D``.
    """

    folder: Path
    build_type: str = "Release"
    defines: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> Iterator[Path]:
        """Yield the files that the key covers."""
        yield from _files(self.folder, top=True)

    def key(self, compiler: Compiler) -> str:
        """Return the digest of all that decides what comes out, as 16 hexadecimal digits."""
        identity = {
            "format": _FORMAT,
            "sources": {
                str(path.relative_to(self.folder)): digest_of(path) for path in self.files()
            },
            "compiler": [str(compiler.path), compiler.version],
            "torch": [
                torch.__version__,
                torch.version.git_version,
                str(Path(torch.__file__).parent),
            ],
            "options": [self.build_type, sorted(self.defines.items())],
            "flags": {name: os.environ.get(name) for name in _FLAGS},
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def project_of(source: Path, build_type: str, defines: Mapping[str, str]) -> Project:
    """Return the project in the folder ``source``.

    Raises:
        SourceError: It is no such folder.
    """
    if not (source / "CMakeLists.txt").is_file():
        what = "has no CMakeLists.txt" if source.is_dir() else "does not exist"
        raise SourceError(
            f"library {source}: {what}",
            key="source.libraries",
            hint="a library is a .so file, or a folder with a CMakeLists.txt",
        )
    return Project(source.resolve(), build_type, dict(defines))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path, *, top: bool = False) -> Iterator[Path]:
    """Yield the files of a folder; of hidden folders, caches and builds made by hand, none."""
    entries = sorted(folder.iterdir())
    if not top and any(path.name == "CMakeCache.txt" for path in entries):
        return
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            if not path.name.startswith((".", "__pycache__")):
                yield from _files(path)
        elif path.is_file():
            yield path
