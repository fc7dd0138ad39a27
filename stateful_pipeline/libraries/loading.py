"""Loads a library of classes and operators, and keeps who registered which name.

A library registers while it is loaded, once in the life of a process.  What cannot work ends in an
error here, before anything is loaded: see :mod:`.probe`.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from stateful_pipeline.errors import SourceError, StageError
from stateful_pipeline.libraries.probe import probe
from stateful_pipeline.libraries.project import digest_of
from stateful_pipeline.libraries.toolchain import STAGE
from stateful_pipeline.model.torch_internals import refuse_missing
from stateful_pipeline.unasked_exit import come_first

_CLASS = re.compile(r"__torch__\.torch\.classes\.([\w.]+)")
_NAMESPACE_TAKEN = re.compile(r"register the namespace (\w+);")
_EARLIER = re.compile(r"Previous registration of TORCH_LIBRARY was registered at (\S+);")
_CLASS_TAKEN = re.compile(r"__torch__\.torch\.classes\.([\w.]+).*already registered", re.DOTALL)
_OPERATOR_TAKEN = re.compile(r"register an operator \((\w+::\w+).*multiple times", re.DOTALL)
_ABSENT = re.compile(r"(\S+): cannot open shared object file")
_NO_ELF = re.compile(r"invalid ELF header|file too short|wrong ELF class|not a dynamic executable")
_ENDED = re.compile(r"it (crashes|ends the process)\b")
_ENDS = {
    "crashes": "the file may be cut short, or what runs while it is loaded (constructors of static "
    "objects) is wrong: build it, or copy it, again",
    "ends the process": "what runs while it is loaded (constructors of static objects) may not "
    "call exit(): let it throw an exception",
}
_NEEDED = ("_jit_get_custom_class_schemas", "_dispatch_get_all_op_names")


@dataclass(frozen=True)
class LoadedLibrary:
    """A library that this process has loaded.

    Attributes:
        path: The file.
        digest: Its SHA-256 when it was loaded.
        classes: What it registered, as in ``my_classes.MyStackClass``: ``torch.classes`` has them.
        operators: The same for operators, as in ``my_classes::manipulate_instance``.
    """

    path: Path
    digest: str
    classes: tuple[str, ...]
    operators: tuple[str, ...]


_loaded: dict[str, LoadedLibrary] = {}
_lock = threading.Lock()


def load(path: Path) -> LoadedLibrary:
    """Load a library, and return what it registered; one of the same content is loaded once.

    A library that something else in this process has loaded before is taken to have registered
    nothing.

    Raises:
        SourceError: There is no such file.
        StageError: It cannot be loaded, or registers a name that is taken.
    """
    if not path.is_file():
        hint = "a library is a .so file, or a folder with a CMakeLists.txt"
        raise SourceError(f"library {path}: no such file", key="source.libraries", hint=hint)
    path = path.resolve()
    refuse_missing([f"torch._C.{n}" for n in _NEEDED if not hasattr(torch._C, n)], STAGE)
    with _lock:
        digest = digest_of(path)
        if digest not in _loaded:
            _refuse_changed(path)
            _refuse_failing(path)
            _loaded[digest] = _load(path, digest)
        return _loaded[digest]


def _load(path: Path, digest: str) -> LoadedLibrary:
    classes, operators = registered_classes(), _operators()
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    come_first()
    return LoadedLibrary(
        path,
        digest,
        tuple(sorted(registered_classes() - classes)),
        tuple(sorted(_operators() - operators)),
    )


def registered_classes() -> set[str]:
    """Return the names of all classes in this process that have a method."""
    owners = [
        _CLASS.search(str(schema.arguments[0].type))
        for schema in torch._C._jit_get_custom_class_schemas()  # type: ignore[attr-defined]
        if schema.arguments
    ]
    return {found.group(1) for found in owners if found is not None}


def _operators() -> set[str]:
    """Return the names of all operators, without their overloads."""
    return {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}


def _refuse_changed(path: Path) -> None:
    """Raise where another file was loaded under this path: the linker would not look again."""
    if any(library.path == path for library in _loaded.values()):
        hint = "start a new process: one cannot load a library anew"
        raise StageError(f"library {path} has changed since it was loaded", stage=STAGE, hint=hint)


def _refuse_failing(path: Path) -> None:
    trial = probe(path)
    if trial.refused is not None:
        raise StageError(
            f"library {path} cannot be loaded: {trial.refused}",
            stage=STAGE,
            hint=_why_refused(trial.refused),
        )
    if trial.aborted is not None:
        raise _taken(path, trial.aborted)


def _why_refused(reason: str) -> str:
    """Return what to try where the dynamic linker refuses a library for that reason."""
    absent = _ABSENT.match(reason)
    if absent is not None:
        return (
            f"the library is linked to {absent.group(1)}, which the linker does not find: put that "
            "into the folder of the library and link with the rpath $ORIGIN, name its folder in "
            "LD_LIBRARY_PATH, or list it before the library in `source.libraries`"
        )
    if _NO_ELF.search(reason):
        return "this is no whole shared library for this machine: build it, or copy it, again"
    return (
        f"this is torch {torch.__version__}, for which it has to be built;"
        " given as a folder with a CMakeLists.txt, it is built for the torch that is there"
    )


def _taken(path: Path, reason: str) -> StageError:
    """Return the error for a library that ends the process: most often, a name is taken."""
    hint = "load one of the two; a process cannot load a library anew, not even a newer build of it"
    found = _NAMESPACE_TAKEN.search(reason)
    if found is not None:
        space = found.group(1)
        earlier = _EARLIER.search(reason)
        at = f" ({earlier.group(1)})" if earlier is not None else ""
        what = f"the namespace '{space}', as {_who(space)}{at} did before"
        hint += "; libraries that share a namespace say TORCH_LIBRARY_FRAGMENT"
    elif (found := _CLASS_TAKEN.search(reason) or _OPERATOR_TAKEN.search(reason)) is not None:
        what = f"'{found.group(1)}', as {_who(found.group(1))} did before"
    else:
        found = _ENDED.match(reason)
        why = None if found is None else _ENDS[found.group(1)]
        return StageError(f"library {path} cannot be loaded: {reason}", stage=STAGE, hint=why)
    return StageError(f"library {path} registers {what}", stage=STAGE, hint=hint)


def _who(name: str) -> str:
    """Return who registered a name, or something in a namespace."""
    for library in _loaded.values():
        names = (*library.classes, *library.operators)
        if name in names or name in {re.split(r"\.|::", full)[0] for full in names}:
            return str(library.path)
    return "something else in this process"
