"""Finds state that a module keeps outside of itself, in what the user's code refers to.

Four places, for the classes of the module and of its helper objects, and for the functions that
their methods name:

- global variables that the code names (``global calls; calls += 1``),
- class attributes (``Counter.frames += 1``),
- default arguments and attributes of functions (``def forward(self, x, seen=[])``),
- variables that functions enclose (``nonlocal count``).

And one for all: the random generators of ``random``, numpy and torch.  Only the user's code is
looked at: of classes that are installed as libraries just the class attributes, of torch, numpy
and the standard library nothing.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model.entries import PLAIN, cells
from stateful_pipeline.model.user_code import is_user_file

RANDOM = "random"
"""The kind of the generators that the whole process shares."""


@dataclass(frozen=True)
class Binding:
    """A name outside the module: ``key`` of ``space``, a namespace, a class or a cell.

    Where ``space`` is None, ``fixed`` is the value itself, which can only change inside.
    """

    path: str
    kind: str
    space: Any = None
    key: str = ""
    fixed: Any = None

    def read(self) -> Any:
        """Return the value, or raise ``KeyError`` if the name has none (any more)."""
        if self.space is None:
            return self.fixed
        if isinstance(self.space, types.CellType):
            try:
                return self.space.cell_contents
            except ValueError as error:
                raise KeyError(self.path) from error
        return vars(self.space)[self.key] if isinstance(self.space, type) else self.space[self.key]

    def write(self, value: Any) -> None:
        """Bind the name to ``value`` again."""
        if isinstance(self.space, types.CellType):
            self.space.cell_contents = value
        elif isinstance(self.space, type):
            setattr(self.space, self.key, value)
        elif self.space is not None:
            self.space[self.key] = value

    def delete(self) -> None:
        """Take the name away."""
        if isinstance(self.space, dict):
            self.space.pop(self.key, None)
        elif isinstance(self.space, type) and self.key in vars(self.space):
            delattr(self.space, self.key)
        elif isinstance(self.space, types.CellType):
            del self.space.cell_contents


def random_generators() -> Iterator[Binding]:
    """Yield the generators that the whole process shares."""
    yield Binding("<random generator of torch>", RANDOM, fixed=torch.default_generator)
    yield Binding("<random generator of numpy>", RANDOM, fixed=np.random.mtrand._rand)
    yield Binding("<random generator of Python>", RANDOM, fixed=random._inst)


class Surroundings:
    """Collects bindings while a walk meets classes and functions; each is looked at once."""

    def __init__(self) -> None:
        self.classes: list[type] = []
        self.namespaces: list[dict[str, Any]] = []
        self._seen: set[type] = set()
        self._functions: set[int] = set()
        self._cells: set[int] = set()
        self._paths: set[str] = set()
        self._new: list[Binding] = []

    def take(self) -> list[Binding]:
        """Return the bindings that were found since the last call."""
        found, self._new = self._new, []
        return found

    def meet(self, value: Any, *, outside: bool) -> None:
        """Look at the class of ``value``, and at ``value`` itself if it is a function or class."""
        if isinstance(value, types.FunctionType):
            if not outside:  # the walk enters what it encloses
                self._cells |= {id(cell) for cell in cells(value).values()}
            self.add_function(value)
        elif not isinstance(value, (*PLAIN, type, torch.Tensor)):
            self.add_class(type(value))

    def add_class(self, cls: type) -> None:
        """Find the attributes of ``cls`` and of its bases, and what their methods name."""
        if cls in self._seen or issubclass(cls, enum.Enum):
            return
        for base in cls.__mro__:
            whose = origin(base.__module__)
            if base in self._seen:
                continue
            self._seen.add(base)
            if whose == "user" or (whose == "library" and issubclass(base, nn.Module)):
                self.classes.append(base)
                self._in_class(base, whose)

    def _in_class(self, cls: type, whose: str) -> None:
        for name, value in list(vars(cls).items()):
            if whose == "user":
                for function in _functions(value):
                    self.add_function(function)
            if not _is_dunder(name) and not isinstance(value, types.MemberDescriptorType):
                self._add(f"<class {_plain_name(cls)}>.{name}", "class attribute", cls, name)

    def add_function(self, function: Any) -> None:
        """Find the defaults, attributes, enclosed variables and globals of ``function``."""
        if not isinstance(function, types.FunctionType):
            return
        self.add_function(getattr(function, "__wrapped__", None))
        space = function.__globals__
        if id(function) in self._functions or origin(space.get("__name__", "")) != "user":
            return
        self._functions.add(id(function))
        called = _plain_name(function)
        self.namespaces.append(function.__dict__)
        for name, value in _defaults(function).items():
            if not isinstance(value, PLAIN):
                path = f"<default of {called}>.{name}"
                self._new.append(Binding(self._free(path), "default", fixed=value))
        for name in function.__dict__:
            if not _is_dunder(name):
                path = f"<function {called}>.{name}"
                self._add(path, "function attribute", function.__dict__, name)
        for name, cell in cells(function).items():
            if id(cell) not in self._cells and not _is_dunder(name):
                self._cells.add(id(cell))
                self._add(f"<closure of {called}>.{name}", "closure", cell, name)
        self._in_globals(function)

    def _in_globals(self, function: types.FunctionType) -> None:
        names = names_in(function.__code__)
        space = function.__globals__
        for name in names.globals:
            if name in space or name in names.stored:
                self._global(space, name, names)
        for imported in names.imported:
            if imported in sys.modules:
                self._in_python_module(sys.modules[imported], names)

    def _global(self, space: dict[str, Any], name: str, names: Names) -> None:
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            self._in_python_module(value, names)
        elif isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, type):
            if origin(value.__module__) == "user":
                self.add_class(value)
        elif isinstance(value, _LRU_CACHE):
            self.add_function(value.__wrapped__)
        if not _is_dunder(name) and not isinstance(value, types.ModuleType):
            self._add(f"<global {space.get('__name__')}.{name}>", "global", space, name)

    def _in_python_module(self, module: types.ModuleType, names: Names) -> None:
        if origin(module.__name__) == "user":
            for name in names.attributes & vars(module).keys():
                self._global(vars(module), name, names)

    def _add(self, path: str, kind: str, space: Any, key: str) -> None:
        identity = f"{id(space)}.{key}"
        if identity not in self._paths:
            self._paths.add(identity)
            self._new.append(Binding(self._free(path), kind, space, key))

    def _free(self, path: str) -> str:
        """Return ``path``, numbered if two classes or functions have the same name."""
        free, count = path, 1
        while free in self._paths:
            count += 1
            free = f"{path}#{count}"
        self._paths.add(free)
        return free


def _plain_name(named: Any) -> str:
    return str(named.__qualname__).rpartition("<locals>.")[2]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions behind an attribute of a class: a method, a property, a decorated one."""
    for name in ("__func__", "fget", "fset", "fdel", "func", "__wrapped__"):
        inner = None if isinstance(value, types.FunctionType) else _static(value, name)
        if isinstance(inner, types.FunctionType):
            yield inner
    if isinstance(value, types.FunctionType):
        yield value


def _static(value: Any, name: str) -> Any:
    kinds = (staticmethod, classmethod, property, functools.cached_property, _LRU_CACHE)
    return getattr(value, name, None) if isinstance(value, kinds) else None


_LRU_CACHE: Any = type(functools.lru_cache(len))


@functools.lru_cache(maxsize=4096)
def origin(module: str) -> Literal["user", "library", "internal"]:
    """Say whose code the Python module of that name is.

    ``internal`` are torch, numpy, the standard library and this package but for its models;
    ``library`` is what else is installed.
    """
    if module.partition(".")[0] in ("builtins", "torch", "numpy", "functorch"):
        return "internal"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        builtin = module.partition(".")[0] in sys.builtin_module_names
        return "internal" if builtin else "user"
    if not is_user_file(file):
        return "internal"
    return "library" if "site-packages" in file else "user"


@dataclass(frozen=True)
class Names:
    """What a piece of code names: globals, those that it stores, attributes, imported modules."""

    globals: frozenset[str]
    stored: frozenset[str]
    attributes: frozenset[str]
    imported: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """Return what ``code`` and the functions written inside it name."""
    found: dict[str, set[str]] = {"GLOBAL": set(), "STORE_GLOBAL": set(), "IMPORT_NAME": set()}
    attributes: set[str] = set()
    pending = [code]
    while pending:
        current = pending.pop()
        attributes.update(current.co_names)
        pending += [inner for inner in current.co_consts if isinstance(inner, types.CodeType)]
        for step in dis.get_instructions(current):
            name = step.opname
            if name in found:
                found[name].add(str(step.argval))
            if name.endswith("_GLOBAL"):
                found["GLOBAL"].add(str(step.argval))
    return Names(
        frozenset(found["GLOBAL"]),
        frozenset(found["STORE_GLOBAL"]),
        frozenset(attributes),
        frozenset(found["IMPORT_NAME"]),
    )


def is_open(value: Any) -> bool:
    """Whether a walk outside the module enters ``value``.

    It enters containers, modules and objects of the user's classes; functions are looked at by
    :class:`Surroundings`, and the insides of libraries' objects are the libraries'.
    """
    if isinstance(value, types.FunctionType):
        return False
    return (
        isinstance(value, (*_OPEN, torch.ScriptObject)) or origin(type(value).__module__) == "user"
    )


_OPEN = (
    nn.Module,
    types.SimpleNamespace,
    threading.local,
    weakref.ref,
    weakref.WeakValueDictionary,
    weakref.WeakKeyDictionary,
    weakref.WeakSet,
    collections.deque,
    collections.UserDict,
    collections.UserList,
    list,
    tuple,
    dict,
    set,
    frozenset,
    types.MappingProxyType,
    types.MethodType,
    types.GeneratorType,
    functools.partial,
    np.ndarray,
    _LRU_CACHE,
)
