"""Says what each kind of holder holds, and under which names.

Names are distinct within a holder, so that each path through holders leads to one place.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import gc
import io
import random
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model.cpp_objects import (
    is_cpp_object,
    is_pickled,
    usable_form,
)
from stateful_pipeline.model.scripted import (
    FIXED_TUPLE,
    INTERNALS,
    Slot,
    core,
    in_code,
    is_scripted,
    members,
)
from stateful_pipeline.model.scripted_items import Dict, List, holds_container

NUMBERS = (bool, int, float, complex)
PLAIN = (*NUMBERS, str, bytes, type(None), np.generic)
"""Immutable values that compare by value."""
CONSTANTS = (enum.Enum, torch.Size, torch.dtype, torch.device, range, slice)
BLOCKS = (np.ndarray, set, frozenset, bytearray, array.array)
_NOT_ENTERED = (
    *PLAIN,
    *CONSTANTS,
    bytearray,
    array.array,
    memoryview,
    torch.Tensor,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.Generator,
    random.Random,
    io.IOBase,
)
# Packages whose objects keep caches, locks and handles that are no state of a model.
_INTERNAL = frozenset(
    [
        "builtins",
        "torch",
        "numpy",
        "logging",
        "warnings",
        "pathlib",
        "re",
        "importlib",
        "asyncio",
        "concurrent",
        "multiprocessing",
        "subprocess",
        "abc",
        "inspect",
        "itertools",
        "operator",
    ]
)
REGISTRIES = (("parameter", "_parameters"), ("buffer", "_buffers"), ("module", "_modules"))
"""The kinds of what ``nn.Module`` registers, and where it does."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# What nn.Module keeps for itself: registries and hooks are walked as such, flags hold no state.
_MODULE_INTERNALS = frozenset(nn.Module().__dict__) | {
    "_is_full_backward_hook",
    "_flat_weight_refs",
}


class Entry(NamedTuple):
    """What a holder holds under one key: ``name`` is the key in paths, ``key`` the holder's own."""

    name: str
    value: Any
    kind: str
    key: Any


@dataclass(frozen=True)
class Attribute:
    """The key of an attribute: its name in ``space``, a dict of attributes."""

    name: str
    space: dict[str, Any]


def entries(holder: Any) -> list[Entry] | None:
    """Return what ``holder`` holds, each under a name of its own, or None if it is no holder."""
    if isinstance(holder, nn.Module):
        return _distinct(_in_scripted(holder) if is_scripted(holder) else _in_module(holder))
    if isinstance(holder, List | Dict):
        return _distinct(_in_items(holder))
    if is_cpp_object(holder):
        return _in_cpp_object(holder)
    if isinstance(holder, _NOT_ENTERED):
        return None
    if type(holder) in (list, tuple):
        return [Entry(str(i), value, "item", i) for i, value in enumerate(holder)]
    for types_, found in _ENTERED:
        if isinstance(holder, types_):
            own = () if type(holder).__module__ == "builtins" else _in_object(holder)
            return _distinct((*found(holder), *own))
    if type(holder).__module__.partition(".")[0] in _INTERNAL:
        return None
    return _distinct(_in_object(holder))


def _distinct(found: Iterable[Entry]) -> list[Entry]:
    """Number the names that come twice, so that each path leads to one place."""
    entries_, names = list(found), set()
    for index, entry in enumerate(entries_):
        name, count = entry.name, 1
        while name in names:
            count += 1
            name = f"{entry.name}#{count}"
        names.add(name)
        if count > 1:
            entries_[index] = entry._replace(name=name)
    return entries_


def _in_module(module: nn.Module) -> Iterator[Entry]:
    own = module.__dict__
    for kind, registry in REGISTRIES:
        for name, value in own[registry].items():
            yield Entry(name, value, kind, (registry, name))
    for name, value in own.items():
        if name not in _MODULE_INTERNALS:
            yield Entry(name, value, "attribute", (None, name))
    yield from _in_hooks(module)


def _in_hooks(module: nn.Module) -> Iterator[Entry]:
    for registry in _HOOKS:  # by position: their keys count the hooks of the whole process
        for index, (key, hook) in enumerate((module.__dict__.get(registry) or {}).items()):
            yield Entry(f"{registry}.{index}", hook, "attribute", (registry, key))


def _in_scripted(module: nn.Module) -> Iterator[Entry]:
    for name, value, kind in members(module):
        yield Entry(name, value, kind, Slot(name))
    spaces = (module.__dict__, core(module).__dict__)
    for space in spaces[: 1 if core(module) is module else 2]:
        for name, value in space.items():
            inner = name in _MODULE_INTERNALS or name in INTERNALS or name.startswith("__")
            if not inner and not isinstance(value, torch._C.ScriptMethod):
                yield Entry(name, value, "attribute", Attribute(name, space))
    yield from _in_hooks(module)
    for name, value, kind in in_code(module):
        yield Entry(name, value, kind, None)


def _in_cpp_object(holder: Any) -> list[Entry] | None:
    """Return what the explicit form of an object holds; nothing for a class that has none."""
    if not is_pickled(holder):
        return None
    form = usable_form(holder)
    return [] if form is None else entries(form)


def _in_items(holder: List | Dict) -> Iterator[Entry]:
    for entry in _in_dict(holder) if isinstance(holder, Dict) else _in_sequence(holder):
        kind = FIXED_TUPLE if holds_container(entry.value) else entry.kind
        yield entry._replace(kind=kind)


def _in_sequence(holder: Iterable[Any]) -> Iterator[Entry]:
    for index, value in enumerate(holder):
        yield Entry(str(index), value, "item", index)


def _in_dict(holder: dict[Any, Any], kind: str = "item") -> Iterator[Entry]:
    texts = collections.Counter(map(str, holder))
    for index, (key, value) in enumerate(holder.items()):
        yield Entry(_key_name(key, index, texts), value, kind, key)
        if not _is_plain_key(key):
            yield Entry(f"<key {index}>", key, "key", None)


def _is_plain_key(key: object) -> bool:
    if isinstance(key, tuple | frozenset):
        return all(_is_plain_key(item) for item in key)
    return isinstance(key, (*PLAIN, *CONSTANTS, type))


def _key_name(key: Any, index: int, texts: collections.Counter[str]) -> str:
    """Return the name of ``key`` in paths: its text, unless that could be taken for another's."""
    if not _is_plain_key(key):
        return f"<value {index}>"
    text = str(key)
    parts = text.split(".")
    prefixed = any(".".join(parts[:n]) in texts for n in range(1, len(parts)))
    if prefixed or (texts[text] > 1 and not isinstance(key, str)):
        return f"[{key!r}]"
    return text


def _in_set(holder: set[Any]) -> Iterator[Entry]:
    for index, value in enumerate(holder):
        if not _is_plain_key(value):
            yield Entry(f"<member {index}>", value, "member of a set", None)


def _in_array(holder: np.ndarray[Any, Any]) -> Iterator[Entry]:
    if holder.dtype == object:
        for index, value in enumerate(holder.ravel().tolist()):
            yield Entry(str(index), value, "item", index)


def _in_method(holder: types.MethodType) -> Iterator[Entry]:
    yield Entry("__self__", holder.__self__, "attribute", None)
    yield Entry("__func__", holder.__func__, "attribute", None)


def _in_function(holder: types.FunctionType) -> Iterator[Entry]:
    for name, cell in cells(holder).items():
        yield Entry(name, cell.cell_contents, "attribute", cell)


def _in_partial(holder: functools.partial[Any]) -> Iterator[Entry]:
    yield Entry("func", holder.func, "attribute", "func")
    yield Entry("args", holder.args, "attribute", "args")
    yield Entry("keywords", holder.keywords, "attribute", "keywords")


def _in_reference(holder: weakref.ref[Any]) -> Iterator[Entry]:
    target = holder()
    if target is not None:
        yield Entry("<referent>", target, "weak reference", None)


def _in_generator(holder: types.GeneratorType[Any, Any, Any]) -> Iterator[Entry]:
    if holder.gi_frame is not None:
        for name, value in holder.gi_frame.f_locals.items():
            yield Entry(name, value, "generator", None)


def _in_lru_cache(holder: Any) -> Iterator[Entry]:
    """Yield the tensors that a ``functools.lru_cache`` has kept: they can be stored to.

    They have no place that is theirs for good, so that they go by their identity.
    """
    yield Entry("__wrapped__", holder.__wrapped__, "cached", None)
    kept: list[Any] = []
    for value in gc.get_referents(holder):
        if value is not attributes(holder):
            kept += value.values() if isinstance(value, dict) else [value]
    for value in {id(value): value for value in kept}.values():
        if isinstance(value, torch.Tensor | list | dict | tuple):
            yield Entry(f"<cached {id(value)}>", value, "cached", None)


def _in_object(holder: object) -> Iterator[Entry]:
    for name, descriptor in slots(holder).items():
        try:
            value = descriptor.__get__(holder)
        except AttributeError:
            continue  # a slot that has no value
        yield Entry(name, value, "attribute", descriptor)
    for name, value in attributes(holder).items():
        yield Entry(str(name), value, "attribute", Attribute(name, attributes(holder)))


_ENTERED: tuple[tuple[Any, Callable[[Any], Iterable[Entry]]], ...] = (
    (list | tuple | collections.deque, _in_sequence),
    (dict, _in_dict),
    (types.MappingProxyType, lambda holder: _in_dict(holder, "read-only item")),
    (set | frozenset, _in_set),
    (np.ndarray, _in_array),
    (types.MethodType, _in_method),
    (types.FunctionType, _in_function),
    (functools.partial, _in_partial),
    (weakref.ref, _in_reference),
    (types.GeneratorType, _in_generator),
    (type(functools.lru_cache(len)), _in_lru_cache),
)


def cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the variables that ``function`` encloses and that have a value, by name."""
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in named if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is the only way to know
    except ValueError:
        return False
    return True


def slots(holder: Any) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of ``holder``'s class, by their real names (private ones are mangled)."""
    cls: Any = type(holder)
    return _slots_of(cls)


@functools.lru_cache(maxsize=4096)
def _slots_of(cls: Any) -> dict[str, types.MemberDescriptorType]:
    return {
        name: value
        for base in reversed(cls.__mro__)
        if "__slots__" in base.__dict__
        for name, value in base.__dict__.items()
        if isinstance(value, types.MemberDescriptorType)
    }


def attributes(holder: object) -> dict[str, Any]:
    """Return the live dict of ``holder``'s attributes, or an empty one if it has none."""
    found = getattr(holder, "__dict__", None)
    return found if isinstance(found, dict) else {}


def of_tensor(tensor: torch.Tensor) -> list[Entry]:
    """Return the Python attributes of a tensor."""
    return [
        Entry(name, value, "attribute of a tensor", None)
        for name, value in attributes(tensor).items()
    ]
