"""Where a module holds C++ objects, and copies of modules that share none of their state."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from stateful_pipeline.errors import PipelineError, StageError, StateError
from stateful_pipeline.model.cpp_objects import (
    cpp_class,
    is_cpp_object,
    is_pickled,
    put_state,
    state_of,
)
from stateful_pipeline.model.holders import Visit, walk


def cpp_objects(module: nn.Module) -> dict[str, Any]:
    """Return the C++ objects that a module holds, each once, by the first path that leads there."""
    return {path: held[0] for path, held in _places(module).items()}


def cpp_places(module: nn.Module) -> dict[str, str]:
    """Return the first path of each C++ object, by each of its paths."""
    return {path: first for first, (_, *paths) in _places(module).items() for path in paths}


def _places(module: nn.Module) -> dict[str, list[Any]]:
    """Return each object with all its paths, by the first of them."""
    first: dict[int, str] = {}
    found: dict[str, list[Any]] = {}
    for leaf in walk([Visit("", module, "module", module)], {}):
        if is_cpp_object(leaf.value):
            path = first.setdefault(id(leaf.value), leaf.path)
            found.setdefault(path, [leaf.value]).append(leaf.path)
    return found


def copied_module(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy that shares nothing with a module, whose C++ objects are copied, too.

    Pickling alone is no copy: a class may give its own tensors and take those that it is given.

    Args:
        module: The module.
        memo: What is put into the places of some values, by their identity.

    Raises:
        StateError: A function holds an object, which no copy then has for itself.
    """
    theirs = {id(value) for value in cpp_objects(module).values()}
    copied = copy.deepcopy(module, {} if memo is None else memo)
    for path, value in cpp_objects(copied).items():
        if id(value) in theirs:
            raise StateError(
                f"is an object of the C++ class {cpp_class(value)} that a function holds, of which "
                "no copy of the module has one for itself",
                attribute=path,
                hint="hold it in an attribute of the module",
            )
        if is_pickled(value):
            put_state(value, state_of(value))
    return copied


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy that shares nothing; C++ objects are copied as their classes pickle them.

    Raises:
        StageError: It cannot be copied.
        StateError: A function holds a C++ object.
    """
    try:
        return copied_module(module)
    except PipelineError:
        raise
    except Exception as error:  # what the module holds may raise anything
        first = str(error).partition("\n")[0]
        raise StageError(
            f"the module cannot be copied: {type(error).__name__}: {first}",
            stage="script",
            hint="a C++ class says by def_pickle what is copied; Python's by __deepcopy__",
        ) from error
