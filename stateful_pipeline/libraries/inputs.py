"""What a build has read from beyond its project: CMake lists its own, and the compiler its headers.

The system's files and PyTorch's are left out: the key of the cache has their versions.  For what
could come to be read instead, such as a header of the same name in an earlier folder, the absence
of the file is an input.  Nobody lists what a command of the project's own reads, nor what CMake
looked for and did not find.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateful_pipeline.libraries.artifacts import API, targets_in
from stateful_pipeline.libraries.project import Project, digest_of
from stateful_pipeline.libraries.toolchain import ninja

_SYSTEM = tuple(map(Path, ("/usr", "/lib", "/lib32", "/lib64")))
_LOCAL = Path("/usr/local")
_VARIABLE = re.compile(r"\bENV\{(\w+)\}")


@dataclass(frozen=True)
class Inputs:
    """What a build depends on, beside its key.

    Attributes:
        files: The digests of files; None stands for a file that was not there.
        variables: The environment variables that the project's CMake files name; None if unset.
    """

    files: Mapping[str, str | None]
    variables: Mapping[str, str | None]

    @property
    def changed(self) -> bool:
        """Whether any of it is another now."""
        return any(_digest(Path(path)) != was for path, was in self.files.items()) or any(
            os.environ.get(name) != was for name, was in self.variables.items()
        )


def _digest(path: Path) -> str | None:
    return digest_of(path) if path.is_file() else None


def inputs_of(project: Project, tree: Path) -> Inputs:
    """Return the inputs of what was built in the folder ``tree``."""
    targets, lists = list(targets_in(tree)), list(_lists(project, tree))
    own = set(project.files())
    outside = _Outside(tree.resolve(), Path(torch.__file__).parent.resolve())
    maker = ninja() if (tree / "build.ninja").is_file() else None
    read = _read_by_make(tree) if maker is None else _read_by_ninja(tree, maker)
    compiled = [path for path in (tree / name for name in read) if path in outside]
    linked = [path for target in targets for path in _linked(project, tree, target)]
    found = {path for path in (*compiled, *lists, *linked) if path in outside}
    files: dict[str, str | None] = {
        str(path): digest_of(path)
        for path in sorted(found)
        if path.is_file() and own.isdisjoint((path, path.resolve()))
    }
    absent = _would_shadow(compiled, _include_folders(targets, outside))
    return Inputs(files | dict.fromkeys(map(str, absent)), _variables(lists, outside))


@dataclass(frozen=True)
class _Outside:
    """All files but those of a build folder, of torch and of the system."""

    tree: Path
    torch: Path

    def __contains__(self, path: Path) -> bool:
        real = path.resolve()
        if any(real.is_relative_to(folder) for folder in (self.tree, self.torch)):
            return False
        return real.is_relative_to(_LOCAL) or not any(map(real.is_relative_to, _SYSTEM))


def _lists(project: Project, tree: Path) -> Iterator[Path]:
    """Yield what CMake itself has read, its own modules left out."""
    [reply] = (tree / API / "reply").glob("cmakeFiles-v1-*.json")
    for file in json.loads(reply.read_text(encoding="utf-8"))["inputs"]:
        if not (file.get("isCMake") or file.get("isGenerated")):
            yield project.folder / file["path"]


def _variables(lists: Iterable[Path], outside: _Outside) -> dict[str, str | None]:
    """Return the environment variables that CMake files name."""
    texts = [
        path.read_text(encoding="utf-8", errors="replace") for path in lists if path in outside
    ]
    names = sorted({name for text in texts for name in _VARIABLE.findall(text)})
    return {name: os.environ.get(name) for name in names}


def _linked(project: Project, tree: Path, target: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the sources of a target, and the objects and libraries that it is linked to."""
    for source in target.get("sources", ()):
        if not source.get("isGenerated"):
            yield project.folder / source["path"]
    folders: list[Path] = []
    for piece in target.get("link", {}).get("commandFragments", ()):
        for word in shlex.split(piece["fragment"]):
            if word.startswith("-L"):
                folders.append(tree / word[2:])
            elif word.startswith("-l"):
                names = (f"lib{word[2:]}.so", f"lib{word[2:]}.a")
                yield from (folder / name for folder in folders for name in names)
            elif not word.startswith("-"):
                yield tree / word


def _read_by_ninja(tree: Path, maker: str) -> Iterator[str]:
    listed = subprocess.run(  # noqa: S603 - ninja, by its path
        [maker, "-C", str(tree), "-t", "deps"], capture_output=True, text=True, check=True
    )
    yield from (line.strip() for line in listed.stdout.splitlines() if line.startswith("    "))


def _read_by_make(tree: Path) -> Iterator[str]:
    for file in tree.rglob("*.o.d"):
        _, _, read = file.read_text(encoding="utf-8").partition(":")
        names = re.split(r"(?<!\\)\s+", read.replace("\\\n", "\n"))
        yield from (name.replace("\\ ", " ") for name in names if name)


def _include_folders(targets: Iterable[Mapping[str, Any]], outside: _Outside) -> list[Path]:
    """Return the folders in which the compiler looks for headers, in order."""
    groups = (group for target in targets for group in target.get("compileGroups", ()))
    # Ninja has paths in this form, too.
    given = (
        Path(os.path.normpath(each["path"]))
        for group in groups
        for each in group.get("includes", ())
    )
    return [folder for folder in dict.fromkeys(given) if folder in outside]


def _would_shadow(read: Sequence[Path], folders: Sequence[Path]) -> set[Path]:
    """Return the files that would be read instead of some in ``folders``, were they there."""
    beside = list(dict.fromkeys(path.parent for path in read))  # as #include "name.h" looks first
    found: set[Path] = set()
    for header in read:
        for count, folder in enumerate(folders):
            if header.is_relative_to(folder):
                name = header.relative_to(folder)
                found.update(each / name for each in (*beside, *folders[:count]))
    return {path for path in found if not path.exists()}
