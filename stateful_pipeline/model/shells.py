"""Lets TorchScript compile what it does not know: helper objects, deques, class attributes.

TorchScript knows modules and their attributes.  While a module is compiled,

- a module with the same attributes and methods is in the place of each helper object (a cache with
  an ``update`` method, a dataclass), under the same path, and a ``ModuleList`` or ``ModuleDict`` in
  that of a list or dict of them,
- a list is in the place of a deque,
- the constants of a module's class are attributes of the module,
- what a method calls by ``super()`` is a method of its own,
- what is None or empty before the first call has the type that it was seen to have after it, and a
  named tuple that of its class.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stateful_pipeline.model.annotated import (
    annotations_of,
    is_named_tuple,
    is_optional,
    named_type,
    resolved_annotations,
)
from stateful_pipeline.model.seen_types import EMPTY, SeenTypes, type_of
from stateful_pipeline.model.source_expressions import NO_NAMING, Naming
from stateful_pipeline.model.superclasses import renamed, super_methods
from stateful_pipeline.model.surroundings import origin

_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has."""
_NO_OBJECTS = (
    *(nn.Module, torch.Tensor, torch.ScriptObject, enum.Enum, type, tuple, list, dict, set),
    *(types.FunctionType, types.MethodType, types.ModuleType),
)

_LISTINGS = frozenset({"children", "named_children", "modules", "named_modules"})
"""Methods that list modules, among which an object's stand-in is one."""
_WRITERS = frozenset({"__setattr__", "__delattr__"})
_OF_DEQUES = ("popleft", "appendleft", "rotate")
_SPECIAL = frozenset({"__len__", "__contains__", "__getitem__", "__setitem__"})
"""The special methods that TorchScript calls."""


@dataclass
class Shells:
    """What is in the places of what TorchScript does not know.

    Attributes:
        paths: The first path of each module, by each path that it has.
        limits: The most items that a deque keeps, by its path.
        naming: What the names of attributes mean.
    """

    paths: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    naming: Naming = NO_NAMING


@contextmanager
def scriptable(module: nn.Module, seen: SeenTypes | None = None) -> Iterator[Shells]:
    """Put what TorchScript knows in the places of what it does not, in ``module`` and below.

    Args:
        module: The module; it is restored at the end.
        seen: The types that were seen while it ran.
    """
    with ExitStack() as undo:
        work = _Work(undo, seen or SeenTypes())
        work.enter("", module)
        undo.enter_context(resolved_annotations({type(inner) for inner in module.modules()}))
        first: dict[int, str] = {}
        work.shells.paths = {
            path: first.setdefault(id(inner), path)
            for path, inner in module.named_modules(remove_duplicate=False)
        }
        work.shells.naming = work.naming()
        yield work.shells


class _Work:
    """Replaces what is below a module, and notes how to put it back."""

    def __init__(self, undo: ExitStack, seen: SeenTypes) -> None:
        self._undo, self._seen = undo, seen
        self.shells = Shells()
        self._entered: set[int] = set()
        self._open: set[int] = set()
        self._made: dict[int, nn.Module] = {}
        self._classes: set[type] = set()
        self._has_deques = self._unlimited = False
        self._optional: set[str] = set()
        codes = {code for code, _ in seen.arguments}
        self._called = {id(code) for code in codes}
        self._lists_modules = any(_LISTINGS & set(code.co_names) for code in codes)

    def naming(self) -> Naming:
        """Return what the names of attributes mean."""
        theirs = any(hasattr(cls, name) for cls in self._classes for name in _OF_DEQUES)
        created = frozenset(path.rpartition(".")[2] for path in self._seen.created)
        nones = {
            path.rpartition(".")[2]
            for path, kind in self._seen.attributes.items()
            if kind.startswith("Optional")
        }
        limits = set(self.shells.limits.values())
        return Naming(
            self._has_deques and not theirs,
            created,
            created | nones,
            created | nones | self._optional,
            next(iter(limits)) if len(limits) == 1 and not self._unlimited else None,
        )

    def enter(self, path: str, module: nn.Module) -> None:
        """Replace what ``module`` and the modules below it hold."""
        if id(module) in self._entered or isinstance(module, torch.jit.ScriptModule):
            return
        self._entered.add(id(module))
        self._open.add(id(module))
        for held in (vars(module), module._modules):
            self._undo.callback(_restore, held, dict(held))
        for name, value in list(vars(module).items()):
            if name not in _OWN:
                self._replace(_join(path, name), module, name, value)
        constants = _class_constants(module)
        vars(module).update(constants)
        self._annotate(path, module)
        self._let_call_super(type(module))
        for name, child in list(module._modules.items()):
            if child is not None:
                self.enter(_join(path, name), child)
        self._open.discard(id(module))

    def _replace(self, path: str, module: nn.Module, name: str, value: Any) -> None:
        stand_in = self._stand_in(path, value)
        if isinstance(stand_in, nn.Module) and not isinstance(value, nn.Module):
            del vars(module)[name]
            module._modules[name] = stand_in
        elif stand_in is not value:
            vars(module)[name] = stand_in

    def _stand_in(self, path: str, value: Any) -> Any:
        """Return what is in the place of ``value``: itself, where TorchScript knows it."""
        if id(value) in self._open:
            return value
        if _is_plain_object(value) and not (self._lists_modules and _is_called(value)):
            return self._shell(path, value)
        if isinstance(value, collections.deque):
            self._has_deques = True
            if value.maxlen is not None:
                self.shells.limits[path] = value.maxlen
            self._unlimited = self._unlimited or value.maxlen is None
            return [self._stand_in(_join(path, str(i)), item) for i, item in enumerate(value)]
        if type(value) in (list, tuple, dict):
            return self._container(path, value)
        return value

    def _container(self, path: str, value: Any) -> Any:
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        items = {key: self._stand_in(_join(path, str(key)), item) for key, item in pairs}
        each = items.values()
        if items and all(isinstance(item, nn.Module) for item in each):
            made: nn.Module = nn.ModuleDict() if isinstance(value, dict) else nn.ModuleList()
            made._modules.update({str(key): item for key, item in items.items()})
            return made
        if all(items[key] is item for key, item in pairs):
            return value
        return items if isinstance(value, dict) else type(value)(each)

    def _shell(self, path: str, value: Any) -> nn.Module:
        """Return a module with the attributes and the methods of an object."""
        if id(value) in self._made:
            return self._made[id(value)]
        cls = type(value)
        self._classes.add(cls)
        names = {"__module__": cls.__module__, "__annotations__": annotations_of(cls)}
        shell: nn.Module = type(cls.__name__, (nn.Module,), {**self._members(cls), **names})()
        self._made[id(value)] = shell
        self._entered.add(id(shell))
        self._open.add(id(value))
        for name, held in {**_constants_of(cls), **_attributes(value)}.items():
            if not isinstance(held, nn.Module):
                vars(shell)[name] = held
                self._replace(_join(path, name), shell, name, held)
            elif id(held) not in self._open:  # a module has no module above itself in it
                shell._modules[name] = held
                self.enter(_join(path, name), held)
        self._annotate(path, shell)
        self._open.discard(id(value))
        return shell

    def _members(self, cls: type) -> dict[str, Any]:
        """Return what a shell's class has: methods, those of superclasses, and properties."""
        kinds = (types.FunctionType, staticmethod, property)
        every = {n: v for base in reversed(cls.__mro__) for n, v in vars(base).items()}
        found: dict[str, Any] = {
            n: v for n, v in every.items() if isinstance(v, kinds) and n[:2] != "__"
        }
        for name in _SPECIAL & every.keys():
            if self._was_called(every[name]):
                found[name] = torch.jit.export(renamed(every[name], name))
        if isinstance(every.get("__call__"), types.FunctionType):
            found["forward"] = every["__call__"]
        properties = [n for n, v in found.items() if isinstance(v, property)]
        unused = [name for name in properties if not self._was_called(found[name].fget)]
        return {**super_methods(cls), **found, "__jit_unused_properties__": unused}

    def _was_called(self, function: Any) -> bool:
        return id(getattr(function, "__code__", None)) in self._called

    def _annotate(self, path: str, module: nn.Module) -> None:
        """Declare the types that TorchScript cannot see in the values."""
        prefix = _join(path, "")
        created = {
            place.removeprefix(prefix): kind
            for place, kind in self._seen.created.items()
            if _join(path, place.rpartition(".")[2]) == place
        }
        vars(module).update(dict.fromkeys(created))
        known = annotations_of(type(module))
        self._optional |= {name for name, kind in known.items() if is_optional(kind)}
        found = {name: named_type(kind) for name, kind in created.items()}
        for name, value in {**module._parameters, **module._buffers, **vars(module)}.items():
            kind = self._seen.attributes.get(_join(path, name))
            if is_named_tuple(type(value)):
                found[name] = type(value)
            elif kind is not None and name not in known:
                found[name] = named_type(kind)
        if found:
            vars(module)["__annotations__"] = {**known, **found}

    def _let_call_super(self, cls: type) -> None:
        if cls in self._classes:
            return
        self._classes.add(cls)
        for name, function in super_methods(cls).items():
            setattr(cls, name, function)
            self._undo.callback(delattr, cls, name)


def _restore(held: dict[str, Any], before: dict[str, Any]) -> None:
    held.clear()
    held.update(before)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_plain_object(value: Any) -> bool:
    """Whether a value is an object of a class of the user's, with attributes and methods."""
    cls = type(value)
    if isinstance(value, _NO_OBJECTS) or origin(cls.__module__) == "internal":
        return False
    if not (hasattr(value, "__dict__") or hasattr(cls, "__slots__")) or _is_magic(cls):
        return False
    # A module is called where it has both: what is called would not be what is called in Python.
    return not (hasattr(cls, "forward") and callable(value))


def _is_magic(cls: type) -> bool:
    """Whether attributes are read and written by code, which a module would not run."""
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    names = {"__getattr__", "__getattribute__"} | (set() if frozen else _WRITERS)
    return any(names & vars(base).keys() for base in cls.__mro__ if base is not object)


def _is_called(value: Any) -> bool:
    """Whether an object is called as modules are."""
    return callable(value) or hasattr(value, "forward")


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    slots = {
        name: getattr(value, name)
        for base in reversed(type(value).__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and hasattr(value, name)
    }
    return {**slots, **getattr(value, "__dict__", {})}


def _class_constants(module: nn.Module) -> dict[str, Any]:
    """Return the constants of a module's class that no attribute of the module hides."""
    held = {*vars(module), *module._parameters, *module._buffers, *module._modules}
    held |= set(getattr(type(module), "__constants__", ()))
    return {n: value for n, value in _constants_of(type(module)).items() if n not in held}


def _constants_of(cls: type) -> dict[str, Any]:
    """Return what the user's classes hold that is a constant to TorchScript."""
    bases = [base for base in reversed(cls.__mro__) if origin(base.__module__) != "internal"]
    every = {name: value for base in bases for name, value in vars(base).items()}
    return {
        name: value
        for name, value in every.items()
        if not name.startswith("__") and type_of(value) not in (None, EMPTY)
    }
