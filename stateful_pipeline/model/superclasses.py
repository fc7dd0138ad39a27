"""Gives the methods that a class's code calls by ``super()`` names of their own.

TorchScript does not know ``super()``.  A call of ``super().update(x)`` in a method of ``Child`` is
compiled as a call of ``self._super_Child_update(x)``, and a method of that name is what ``update``
means after ``Child`` in the order of an object's classes.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any


def super_name(cls: type, method: str) -> str:
    """Return the name of what ``super().method`` is in the code of ``cls``."""
    return "_super_" + re.sub(r"\W", "_", f"{cls.__module__}.{cls.__qualname__}.{method}")


def super_methods(cls: type) -> dict[str, types.FunctionType]:
    """Return the methods that the code of ``cls`` and its bases calls by ``super()``, by name."""
    found = {}
    for index, base in enumerate(cls.__mro__):
        for method in sorted(_named_with_super(base)):
            later = (vars(after).get(method) for after in cls.__mro__[index + 1 :])
            function = next((f for f in later if f is not None), None)
            if isinstance(function, types.FunctionType):
                name = super_name(base, method)
                found[name] = renamed(function, name)
    return found


def class_of(function: types.FunctionType) -> type | None:
    """Return the class in whose body a method that names ``super`` was written."""
    names = function.__code__.co_freevars
    if "__class__" not in names or function.__closure__ is None:
        return None
    found = function.__closure__[names.index("__class__")].cell_contents
    return found if isinstance(found, type) else None


def _named_with_super(cls: type) -> Iterator[str]:
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, types.FunctionType) and class_of(function) is cls:
            yield from (n for n in function.__code__.co_names if not n.startswith("__"))


def renamed(function: types.FunctionType, name: str) -> types.FunctionType:
    """Return a copy of a function with another name, under which it is compiled."""
    made: Any = types.FunctionType(
        function.__code__,
        function.__globals__,
        name,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__, made.__module__ = function.__kwdefaults__, function.__module__
    made.__annotations__ = dict(function.__annotations__)
    result: types.FunctionType = made
    return result
