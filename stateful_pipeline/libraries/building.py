"""Builds CMake projects into a cache, so that nothing is compiled twice.

An entry of the cache is a folder ``<project>-<key>-<outside>`` that appears whole or not at all: it
is built under another name and moved into place, by one process at a time (a file lock that the
system gives back whatever happens).  ``key`` is what :meth:`.Project.key` covers; ``outside`` is
the digest of the files that the compiler read from beyond the project's folder, PyTorch's and the
system's left out.  An entry is never changed, since a process that has loaded a library keeps it
under its path.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateful_pipeline.errors import SourceError, StageError
from stateful_pipeline.libraries.artifacts import ask, made
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

_ENTRY = "entry.json"
_SYSTEM = ("/usr/", "/lib/", "/opt/")


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
    """Return the entry whose files from outside of the project are what they were, if any."""
    for folder in cache.glob(f"{glob.escape(stem)}-*"):
        entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
        if all(_is(Path(path), digest) for path, digest in entry["outside"].items()):
            return _built(folder, entry, compiled=False)
    return None


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and digest_of(path) == digest


def _built(folder: Path, entry: Mapping[str, Any], *, compiled: bool) -> BuiltLibrary:
    libraries = tuple(folder / name for name in entry["libraries"])
    return BuiltLibrary(libraries, tuple(folder / name for name in entry["programs"]), compiled)


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
        artifacts, outside = made(tree, project.folder), _outside(project, tree)
        for path in (*artifacts.libraries, *artifacts.programs):
            shutil.copy2(path, result / path.name)
        entry: dict[str, Any] = {
            "libraries": [path.name for path in artifacts.libraries],
            "programs": [path.name for path in artifacts.programs],
            "outside": outside,
        }
        text = json.dumps(entry, indent=2, sort_keys=True) + "\n"
        (result / _ENTRY).write_text(text, encoding="utf-8")
        digest = hashlib.sha256(json.dumps(outside, sort_keys=True).encode()).hexdigest()[:8]
        place = cache / f"{stem}-{digest}"
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


def _outside(project: Project, tree: Path) -> dict[str, str]:
    """Return the digests of what was read from beyond the project, torch and the system."""
    own = (str(project.folder), str(tree), str(Path(torch.__file__).parent))
    maker = ninja()
    read = _read_by_make(tree) if maker is None else _read_by_ninja(tree, maker)
    paths = {(tree / name).resolve() for name in read}
    paths = {p for p in paths if not any(p.is_relative_to(folder) for folder in (*own, *_SYSTEM))}
    return {str(path): digest_of(path) for path in sorted(paths) if path.is_file()}


def _read_by_ninja(tree: Path, maker: str) -> Iterator[str]:
    listed = subprocess.run(  # noqa: S603 - ninja, by its path
        [maker, "-C", str(tree), "-t", "deps"], capture_output=True, text=True, check=True
    )
    yield from (line.strip() for line in listed.stdout.splitlines() if line.startswith("    "))


def _read_by_make(tree: Path) -> Iterator[str]:
    for file in tree.rglob("*.o.d"):
        _, _, read = file.read_text(encoding="utf-8").partition(":")
        yield from (name for name in read.split() if name != "\\")
