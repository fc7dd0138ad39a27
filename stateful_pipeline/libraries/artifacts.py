"""What CMake has made, as its file API says: libraries in the order of links, and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.libraries.toolchain import STAGE

API = Path(".cmake") / "api" / "v1"
"""Where CMake answers, in a build folder."""
_LIBRARIES = ("SHARED_LIBRARY", "MODULE_LIBRARY")


@dataclass(frozen=True)
class Artifacts:
    """The files that a project's targets made."""

    libraries: tuple[Path, ...]
    programs: tuple[Path, ...]


def ask(tree: Path) -> None:
    """Let CMake write down what it makes; before it configures the build folder ``tree``."""
    query = tree / API / "query"
    query.mkdir(parents=True)
    (query / "codemodel-v2").touch()
    (query / "cmakeFiles-v1").touch()


def made(tree: Path, project: Path) -> Artifacts:
    """Return what was made in the build folder ``tree``.

    Raises:
        StageError: Nothing that can be loaded or run, or two files of one name.
    """
    targets = list(targets_in(tree))
    libraries = _files(tree, targets, _LIBRARIES)
    programs = _files(tree, targets, ("EXECUTABLE",))
    names = [path.name for path in (*libraries, *programs)]
    place = Place(str(project / "CMakeLists.txt"))
    if not names:
        hint = "a library that can be loaded is `add_library(name SHARED file.cpp)`"
        message = "the project makes neither a shared library nor a program"
        raise StageError(message, stage=STAGE, place=place, hint=hint)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise StageError(f"two targets make {', '.join(twice)}", stage=STAGE, place=place)
    return Artifacts(libraries, programs)


def _files(tree: Path, targets: list[dict[str, Any]], kinds: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files of the targets of some kinds that were built: some are only on demand."""
    paths = [tree / target["artifacts"][0]["path"] for target in targets if target["type"] in kinds]
    return tuple(path for path in paths if path.is_file())


def targets_in(tree: Path) -> Iterator[dict[str, Any]]:
    """Yield all targets, each after those that it depends on."""
    reply = tree / API / "reply"
    [model] = reply.glob("codemodel-v2-*.json")
    [configuration] = json.loads(model.read_text(encoding="utf-8"))["configurations"]
    waiting = {
        target["id"]: json.loads((reply / target["jsonFile"]).read_text(encoding="utf-8"))
        for target in configuration["targets"]
    }

    def visit(key: str) -> Iterator[dict[str, Any]]:
        target = waiting.pop(key, None)
        if target is not None:
            for other in target.get("dependencies", ()):
                yield from visit(other["id"])
            yield target

    while waiting:
        yield from visit(next(iter(waiting)))
