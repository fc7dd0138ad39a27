"""Saves scripted modules whose state is in C++ objects, and checks that it comes back.

A C++ class says by ``def_pickle`` what is saved of its objects.  Where it does not, or forgets a
part, the file would lose state.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.libraries.toolchain import STAGE
from stateful_pipeline.model.cpp_objects import same_state
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.scripted import core, members, submodules

_UNSAVABLE = re.compile(
    r"Cannot serialize custom bound C\+\+ class __torch__\.torch\.classes\.([\w.]*\w)"
)


def save(module: torch.jit.ScriptModule, path: Path) -> None:
    """Write a module for ``torch.jit.load``; whatever fails leaves ``path`` as it was.

    Raises:
        StateError: Part of its state cannot be saved, or does not come back: which, and what to do.
        StageError: It cannot be saved for another reason.
    """
    # The file's own name is in the file, so that it is the folder that is another at first.
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        with quiet_scripting():
            _write(module, partial)
            again: Any = torch.jit.load(partial)  # type: ignore[no-untyped-call]
        lost = next(_lost(module, again, ""), None)
        if lost is not None:
            raise StateError(
                "is another after saving and loading",
                attribute=lost,
                hint="its class's def_pickle has to give, and to take back, all that it holds",
            )
        os.replace(partial, path)


def _write(module: torch.jit.ScriptModule, path: Path) -> None:
    try:
        torch.jit.save(module, path)
    except RuntimeError as error:
        found = _UNSAVABLE.search(str(error))
        if found is None:
            message = f"the module cannot be saved: {str(error).strip()}"
            raise StageError(message, stage=STAGE) from error
        name = found.group(1)
        raise StateError(
            f"the C++ class {name} does not say how it is saved",
            attribute=next(_holders(module, name, ""), None),
            hint=f"add .def_pickle(get_state, set_state) where {name} is registered",
        ) from error


def _holders(module: Any, name: str, path: str) -> Iterator[str]:
    """Yield the attributes that hold an object of the C++ class ``name``."""
    for own, _, kind in members(module):
        if kind != "module" and any(o.endswith(f".{name}") for o in _classes(_value(module, own))):
            yield f"{path}{own}"
    for child, inner in submodules(module).items():
        yield from _holders(inner, name, f"{path}{child}.")


def _value(module: Any, name: str) -> Any:
    return core(module)._c.getattr(name)


def _classes(value: Any) -> Iterator[str]:
    """Yield the names of the classes of the objects in a value."""
    if isinstance(value, torch.ScriptObject):
        yield str(value._type())
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _classes(item)


def _lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the attributes in which two modules of one class differ."""
    for name, _, kind in members(before):
        if kind != "module" and not same_state(_value(before, name), _value(after, name)):
            yield f"{path}{name}"
    others = submodules(after)
    for name, inner in submodules(before).items():
        yield from _lost(inner, others[name], f"{path}{name}.")
