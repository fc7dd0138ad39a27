"""Lets TorchScript compile modules that keep state in plain objects and named tuples.

TorchScript knows modules and their attributes.  A helper object, such as a cache with an ``update``
method or a dataclass, stands in for one: while the module is compiled, a module with the same
attributes and the same methods is in its place, under the same path.  Of a named tuple, TorchScript
would see a tuple; an annotation tells it the class.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has."""


@contextmanager
def scriptable(module: nn.Module) -> Iterator[None]:
    """Put modules in the places of the objects that ``module`` and its submodules hold."""
    put: list[tuple[nn.Module, str, Any]] = []
    shells: dict[int, nn.Module] = {}
    annotated: list[nn.Module] = []
    try:
        for inner in list(module.modules()):
            tuples = _named_tuples(inner)
            if tuples and "__annotations__" not in vars(inner):
                vars(inner).update(__annotations__={**_annotations(type(inner)), **tuples})
                annotated.append(inner)
            for name, value in list(vars(inner).items()):
                if name not in _OWN and _is_plain_object(value):
                    put.append((inner, name, value))
                    del inner.__dict__[name]
                    inner._modules[name] = _shell(value, shells)
        yield
    finally:
        for inner, name, value in put:
            inner._modules.pop(name, None)
            inner.__dict__[name] = value
        for inner in annotated:
            vars(inner).pop("__annotations__")


def _named_tuples(module: nn.Module) -> dict[str, type]:
    return {
        name: type(value)
        for name, value in vars(module).items()
        if isinstance(value, tuple) and hasattr(value, "_fields")
    }


def _annotations(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = getattr(cls, "__annotations__", {})
    return found


def _is_plain_object(value: Any) -> bool:
    """Whether a value is an object of a class of the user's, with attributes and methods."""
    cls = type(value)
    if isinstance(value, nn.Module | torch.Tensor | torch.ScriptObject | enum.Enum | type | tuple):
        return False
    if isinstance(value, list | dict | set) or not hasattr(value, "__dict__") or callable(value):
        return False
    if hasattr(cls, "forward"):
        return False  # as a module, it would be called where submodules are
    return cls.__module__.partition(".")[0] not in ("builtins", "torch", "numpy", "collections")


def _shell(value: Any, made: dict[int, nn.Module]) -> nn.Module:
    """Return a module with the attributes and the methods of an object."""
    if id(value) not in made:
        cls = type(value)
        methods = {
            name: function
            for base in reversed(cls.__mro__)
            for name, function in vars(base).items()
            if isinstance(function, types.FunctionType) and not name.startswith("__")
        }
        names = {"__module__": cls.__module__, "__annotations__": _annotations(cls)}
        shell: nn.Module = type(cls.__name__, (nn.Module,), {**methods, **names})()
        made[id(value)] = shell
        for name, held in vars(value).items():
            if _is_plain_object(held):
                shell._modules[name] = _shell(held, made)
            else:
                shell.__dict__[name] = held
    return made[id(value)]
