"""The programs that build: which of them is taken, how they are run, what they complain about."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateful_pipeline.errors import Place, StageError

STAGE = "script"
"""The stage that loads what a model needs."""

_COMPILERS = ("c++", "g++", "clang++")
_ERROR = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+)(?::(?P<column>\d+))?: (?:fatal )?error: "
)
_CMAKE_ERROR = re.compile(r"^CMake Error at (?P<file>[^:]+):(?P<line>\d+)")
_NOISE = re.compile(r"^(\[\d+/\d+\]|FAILED: |ninja: |-- |g?make(\[\d+\])?: |\[ *\d+%\])")
_PATIENCE = 5.0
"""Seconds in which what is asked to end may do so."""
_ORIGIN = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): +"
    r"(?:required from here|note: in instantiation of .* requested here)"
)
_SHOWN, _WIDEST = 60, 400
"""So many lines of complaints are shown, and so much of each; the log has the rest."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and all that it says of its version."""

    path: Path
    version: str


def compiler() -> Compiler:
    """Return the compiler that ``CXX`` names, or else the system's.

    Raises:
        StageError: There is none.
    """
    wanted = os.environ.get("CXX")
    candidates = map(shutil.which, [wanted] if wanted else _COMPILERS)
    found = next(filter(None, candidates), None)
    if found is None:
        message = f"no C++ compiler {wanted!r}" if wanted else "no C++ compiler on PATH"
        hint = "install one, as in `apt install g++`, or name one in the variable CXX"
        raise StageError(message, stage=STAGE, hint=hint)
    asked = subprocess.run(  # noqa: S603 - the user's own compiler
        [found, "--version"], capture_output=True, text=True, check=False
    )
    return Compiler(Path(found), asked.stdout.strip())


def cmake() -> str:
    """Return the path of cmake, of PATH or of the package ``cmake``.

    Raises:
        StageError: There is none.
    """
    found = _tool("cmake", "CMAKE_BIN_DIR")
    if found is None:
        hint = "`pip install cmake ninja`, or `apt install cmake ninja-build`"
        raise StageError("no cmake found, which builds C++ libraries", stage=STAGE, hint=hint)
    return found


def ninja() -> str | None:
    """Return the path of ninja, of PATH or of the package ``ninja``; None leaves it to make.

    Raises:
        StageError: There is no make either.
    """
    found = _tool("ninja", "BIN_DIR")
    if found is None and shutil.which("make") is None:
        hint = "`pip install ninja`, or `apt install ninja-build`"
        raise StageError(
            "neither ninja nor make found, one of which cmake needs", stage=STAGE, hint=hint
        )
    return found


def _tool(name: str, folder: str) -> str | None:
    """Return the program ``name`` of PATH, or of the package that has it in its ``folder``."""
    found = shutil.which(name)
    if found is not None:
        return found
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    return shutil.which(name, path=getattr(package, folder))


def run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> bool:
    """Run a command, and write what it says into a file; whether it ended well.

    Whatever interrupts this ends the command and all that it has started.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - cmake, by its path
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            return process.wait() == 0
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started.

    Ninja runs compilers in groups of their own, and ends them where it is asked to end itself.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and _lives(process):
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether anything of the group of ``process`` is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def complaint(log: Path, folder: Path) -> StageError:
    """Return the error for what CMake and the compiler say in a file, in their own words.

    Args:
        log: The file, which is kept.
        folder: The project's, from which CMake counts its paths.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    spoken = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if not _NOISE.match(line) and not before.startswith("FAILED: ")  # then comes the command
    ]
    shown = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]} .." for line in spoken[:_SHOWN]]
    message = "\n".join([f"the C++ project {folder.name} cannot be built", *shown])
    place = _first_place(lines, folder)
    return StageError(message, stage=STAGE, place=place, hint=f"the whole log is in {log}")


def _first_place(lines: Sequence[str], folder: Path) -> Place | None:
    """Return where the first error is: in a template of others, the project's line that asks."""
    for line in lines:
        found = _ERROR.match(line) or _CMAKE_ERROR.match(line)
        if found is not None:
            place = _place(found, folder)
            asked = (_place(o, folder) for o in map(_ORIGIN.match, lines) if o is not None)
            own = next((each for each in asked if Path(each.file).is_relative_to(folder)), None)
            return place if own is None or Path(place.file).is_relative_to(folder) else own
    return None


def _place(found: re.Match[str], folder: Path) -> Place:
    parts = found.groupdict()
    column = parts.get("column")
    file = folder / parts["file"]  # stays what it is where it is absolute
    return Place(str(file), int(parts["line"]), None if column is None else int(column))
