"""Builds a target of LibTorch: the scripted module, its libraries and the program that runs it.

Everything is in one folder: libraries that are linked to one another find each other beside
themselves, and so a user may move the folder as a whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import build as build_library
from stateful_pipeline.libraries import default_cache, infer_program
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.in_process import MODEL, PROGRAM


def build(artifacts: Artifacts, target: TargetBuild) -> None:
    """Build ``target``, and note its libraries and the command that runs it.

    Raises:
        TargetError: There is no compiler, or no cmake, to build the program with.
        StageError: The program cannot be built, or two libraries have one name.
    """
    scripted = artifacts.need("scripted", "build")
    program = infer_program()
    folder = artifacts.folder / "targets" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(scripted, folder / MODEL)
    libraries = _copy_libraries(artifacts, folder)
    shutil.copy2(program, folder / PROGRAM)
    notes = artifacts.notes.setdefault("build", {}).setdefault("libtorch", {})
    notes[target.name] = {
        "libraries": libraries,
        "command": _command(libraries, artifacts.spec.source.method),
    }
    target.artifact = folder / MODEL


def _copy_libraries(artifacts: Artifacts, folder: Path) -> list[str]:
    """Copy the libraries of the model's classes and operators; return their names, in order."""
    names: list[str] = []
    for index, source in enumerate(artifacts.spec.source.libraries):
        for library in build_library(source, default_cache()).libraries:
            if library.name in names:
                raise StageError(
                    f"two libraries of the model are called {library.name}",
                    stage="build",
                    place=artifacts.spec.place(f"source.libraries[{index}]"),
                    hint="they lie in one folder when deployed: give one another name",
                )
            shutil.copy2(library, folder / library.name)
            names.append(library.name)
    return names


def _command(libraries: Sequence[str], method: str) -> str:
    """Return how the program is run, from within the folder."""
    words = [f"./{PROGRAM}", MODEL]
    words += [word for name in libraries for word in ("--library", name)]
    words += [] if method == "forward" else ["--method", method]
    return " ".join([*words, "--inputs", "FILE", "--outputs", "FILE"])
