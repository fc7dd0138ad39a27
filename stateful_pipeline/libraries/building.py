"""Builds CMake projects into a cache, so that nothing is compiled twice.

An entry of the cache is a folder ``<project>-<key>-<inputs>`` that appears whole or not at all: it
is built under another name and moved into place, by one process at a time (a file lock that the
system gives back whatever happens).  ``key`` is what :meth:`.Project.key` covers; ``inputs`` is
the digest of what was read from elsewhere, as :mod:`.inputs` has it.  An entry is never changed,
since a process that has loaded a library keeps it under its path; one that something else has
changed is built again.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from stateful_pipeline.errors import SourceError, StageError
from stateful_pipeline.libraries.artifacts import ask, made
from stateful_pipeline.libraries.entries import DamagedEntryError, Entry, read_entry
from stateful_pipeline.libraries.inputs import inputs_of
from stateful_pipeline.libraries.project import Project, digest_of, project_of
from stateful_pipeline.libraries.toolchain import (
    STAGE,
    Compiler,
    cmake,
    compiler,
    complaint,
    ninja,
    run,
)


@dataclass(frozen=True)
class BuiltLibrary:
    """What came out of a project.

    Attributes:
        libraries: The shared libraries, each after those that it is linked to.
        programs: The executables.
        compiled: Whether this call compiled it, rather than found it.
    """

    libraries: tuple[Path, ...]
    programs: tuple[Path, ...] = ()
    compiled: bool = False

    @property
    def path(self) -> Path:
        """The only library; a project with several has :attr:`libraries`."""
        [path] = self.libraries
        return path


def default_cache() -> Path:
    """Return the user's own folder for what is built."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stateful-pipeline" / "libraries"


def build(
    source: Path,
    cache: Path | None = None,
    *,
    build_type: str = "Release",
    defines: Mapping[str, str] | None = None,
) -> BuiltLibrary:
    """Return the libraries and programs of ``source``, built unless the cache has them.

    Args:
        source: A folder with a ``CMakeLists.txt``, or a ``.so``, which is taken as it is.
        cache: The folder of the cache; the user's own by default.
        build_type: CMake's ``CMAKE_BUILD_TYPE``.
        defines: More of CMake's variables, as after ``-D``.

    Raises:
        SourceError: ``source`` is neither.
        StageError: It cannot be built: no compiler, or what the compiler says, with its line.
    """
    if source.is_file():
        if ".so" not in source.suffixes:
            hint = "a library is a .so file, or a folder with a CMakeLists.txt"
            raise SourceError(f"library {source}: no .so", key="source.libraries", hint=hint)
        return BuiltLibrary((source.resolve(),))
    project = project_of(source, build_type, defines or {})
    chosen = compiler()
    stem = f"{project.folder.name}-{project.key(chosen)}"
    cache = (cache or default_cache()).absolute()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{stem}.lock"):
            found = _find(cache, stem)
            return found if found is not None else _make(project, chosen, cache, stem)
    except OSError as error:
        hint = "let the variable XDG_CACHE_HOME name a folder that can be written to"
        message = f"libraries cannot be built in {cache}: {error}"
        raise StageError(message, stage=STAGE, hint=hint) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _find(cache: Path, stem: str) -> BuiltLibrary | None:
    """Return the entry whose inputs are what they were, if any; take away what is damaged."""
    for folder in cache.glob(f"{glob.escape(stem)}-*"):
        try:
            entry = read_entry(folder)
        except DamagedEntryError as error:
            warnings.warn(
                f"in the cache of C++ libraries, {error}: it is built again", stacklevel=3
            )
            shutil.rmtree(folder)
            continue
        if not entry.inputs.changed:
            return _built(folder, entry, compiled=False)
    return None


def _built(folder: Path, entry: Entry, *, compiled: bool) -> BuiltLibrary:
    libraries, programs = (
        tuple(folder / name for name in names) for names in (entry.libraries, entry.programs)
    )
    return BuiltLibrary(libraries, programs, compiled)


def _make(project: Project, chosen: Compiler, cache: Path, stem: str) -> BuiltLibrary:
    # What a process that was killed has left: nobody else is in here.
    for left in cache.glob(f".{glob.escape(stem)}.*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=cache) as name:
        tree, result = Path(name) / "tree", Path(name) / "result"
        tree.mkdir()
        result.mkdir()
        failed = _compile(project, chosen, tree, result)
        if failed is not None:
            kept = cache / f"{stem}.log"
            os.replace(failed, kept)
            raise complaint(kept, project.folder)
        artifacts = made(tree, project.folder)
        for path in (*artifacts.libraries, *artifacts.programs):
            shutil.copy2(path, result / path.name)
        libraries, programs = (
            {path.name: digest_of(path) for path in paths}
            for paths in (artifacts.libraries, artifacts.programs)
        )
        entry = Entry(libraries, programs, inputs_of(project, tree))
        entry.write(result)
        place = cache / f"{stem}-{entry.digest}"
        os.replace(result, place)
    return _built(place, entry, compiled=True)


def _compile(project: Project, chosen: Compiler, tree: Path, logs: Path) -> Path | None:
    """Build a project in the folder ``tree``.

    Returns:
        Of what CMake and the compiler say, which goes to the folder ``logs``, the file with what
        ended the build; None if nothing did.
    """
    program, maker = cmake(), ninja()
    ask(tree)
    variables = {
        "CMAKE_BUILD_TYPE": project.build_type,
        "CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path,
        "CMAKE_CXX_COMPILER": str(chosen.path),
        # What is built leaves its folder, with the libraries that it is linked to beside it.
        "CMAKE_BUILD_RPATH": "$ORIGIN",
        "CMAKE_PLATFORM_NO_VERSIONED_SONAME": "ON",
        **({} if maker is None else {"CMAKE_MAKE_PROGRAM": maker}),
        **project.defines,
    }
    configure = [program, "--no-warn-unused-cli", "-S", str(project.folder), "-B", str(tree)]
    configure += ["-G", "Unix Makefiles" if maker is None else "Ninja"]
    configure += [f"-D{name}={value}" for name, value in variables.items()]
    parallel = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    environment = {**os.environ, "LC_ALL": "C"}
    compile_ = [program, "--build", str(tree), "--parallel", parallel]
    for name, command in (("configure.log", configure), ("build.log", compile_)):
        if not run(command, logs / name, environment):
            return logs / name
    return None
