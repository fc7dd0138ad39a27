"""Walks everything in a module that can hold state, and reads and writes it by path.

A *leaf* is a value that can survive between calls: a tensor, a number, a string, ``None``, a numpy
array, a set or a ``bytearray``.  A *holder* is what has leaves or other holders in it: a module
(its parameters, buffers, submodules and plain attributes), a list, a tuple, a dict, a deque, or an
object with attributes.  A leaf's path joins the keys from the module down to it with dots, as in
``encoder.cells.0.h`` or ``memory.fast``; for registered tensors that is PyTorch's fully qualified
name.

Hooks, and the variables that a function encloses, are entered.  Classes, Python modules and opaque
C++ objects are not.  Each holder is entered
once, by the first path that reaches it, so that cycles end.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

_OPAQUE = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.Generator,
    torch.Size,
    enum.Enum,
)
_NUMBERS = (bool, int, float, complex)
MUTABLE_LEAVES = (np.ndarray, set, bytearray)
"""Leaves that can change without being replaced."""
_LEAVES = (torch.Tensor, *_NUMBERS, str, bytes, type(None), frozenset, np.generic, *MUTABLE_LEAVES)
# What nn.Module keeps for itself: registries are walked as such, hooks and flags hold no state.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_MODULE_INTERNALS = frozenset(nn.Module().__dict__) | {"_is_full_backward_hook"}


@dataclass(frozen=True)
class Leaf:
    """A value, the path that leads to it and how it is held.

    ``kind`` is ``buffer``, ``parameter``, ``attribute`` (of a module or an object) or ``item`` (of
    a list, tuple, dict or deque); ``owner`` is the nearest module around it.
    """

    path: str
    value: Any
    kind: str
    owner: nn.Module


def is_number(value: object) -> bool:
    """Whether ``value`` is a Python number (bool, int, float or complex)."""
    return isinstance(value, _NUMBERS)


def children(holder: object) -> list[tuple[str, Any, str]] | None:
    """Return ``(key, value, kind)`` for what ``holder`` holds, or None if it is no holder.

    The order is that of registration or insertion, with registered tensors first.
    """
    if isinstance(holder, (*_LEAVES, *_OPAQUE, torch.jit.ScriptModule)):
        return None
    if isinstance(holder, nn.Module):
        return _in_module(holder)
    if isinstance(holder, dict):
        return [(str(key), value, "item") for key, value in holder.items()]
    if isinstance(holder, list | tuple | collections.deque):
        return [(str(index), value, "item") for index, value in enumerate(holder)]
    if isinstance(holder, types.MethodType):
        return [("__self__", holder.__self__, "attribute")]
    if isinstance(holder, types.FunctionType):
        return [(key, cell.cell_contents, "attribute") for key, cell in cells(holder).items()]
    return _attributes(holder)


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


def _in_module(module: nn.Module) -> list[tuple[str, Any, str]]:
    registries = (("parameter", "_parameters"), ("buffer", "_buffers"), ("module", "_modules"))
    own = module.__dict__
    found = [(k, value, kind) for kind, name in registries for k, value in own[name].items()]
    found += [(k, value, "attribute") for k, value in own.items() if k not in _MODULE_INTERNALS]
    return found + [(name, own[name], "attribute") for name in _HOOKS if own.get(name)]


def _attributes(holder: object) -> list[tuple[str, Any, str]] | None:
    if type(holder).__module__.split(".")[0] in ("builtins", "torch", "numpy"):
        return None
    slots = [
        name
        for cls in type(holder).__mro__
        for name in _as_names(cls.__dict__.get("__slots__", ()))
        if hasattr(holder, name) and name not in ("__dict__", "__weakref__")
    ]
    values = {**{name: getattr(holder, name) for name in slots}, **getattr(holder, "__dict__", {})}
    if not values:
        return None
    return [(key, value, "attribute") for key, value in values.items()]


def _as_names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)  # type: ignore[arg-type]


def holders(root: nn.Module) -> Iterator[object]:
    """Yield ``root`` and every holder below it, each once, without recursion."""
    seen: set[int] = set()
    pending: list[object] = [root]
    while pending:
        holder = pending.pop()
        below = children(holder)
        if below is None or id(holder) in seen:
            continue
        seen.add(id(holder))
        yield holder
        pending.extend(value for _, value, _ in reversed(below))


def leaves(root: nn.Module) -> Iterator[Leaf]:
    """Yield every leaf below ``root``; one that is held in several places comes several times."""
    seen: set[int] = set()
    pending: list[tuple[str, Any, str, nn.Module]] = [("", root, "module", root)]
    while pending:
        path, value, kind, owner = pending.pop()
        if isinstance(value, _LEAVES):
            yield Leaf(path, value, kind, owner)
            continue
        below = children(value)
        if below is None or id(value) in seen:
            continue
        seen.add(id(value))
        inner = value if isinstance(value, nn.Module) else owner
        for key, child, child_kind in reversed(below):
            pending.append((f"{path}.{key}" if path else key, child, child_kind, inner))


def read(root: nn.Module, path: str) -> Any:
    """Return the value at ``path``, or raise ``KeyError`` if nothing is there any more."""
    value: Any = root
    for holder_key in _split(root, path):
        value = _get(value, holder_key)
    return value


def write(root: nn.Module, path: str, value: Any) -> None:
    """Put ``value`` at ``path``, without ``__setattr__`` and its checks; tuples are made anew."""
    keys = _split(root, path)
    chain: list[Any] = [root]
    for key in keys[:-1]:
        chain.append(_get(chain[-1], key))
    for holder, key in zip(reversed(chain), reversed(keys), strict=True):
        if not isinstance(holder, tuple):
            _put(holder, key, value)
            return
        items = [*holder[: int(key)], value, *holder[int(key) + 1 :]]
        value = type(holder)(*items) if hasattr(holder, "_fields") else type(holder)(items)


def _split(root: nn.Module, path: str) -> list[str]:
    """Split ``path`` into keys; a key may itself hold dots, as dict keys can."""
    keys: list[str] = []
    value: Any = root
    rest = path
    while rest:
        names = {key for key, _, _ in children(value) or ()}
        parts = rest.split(".")
        options = (".".join(parts[: n + 1]) for n in range(len(parts)))
        key = next((option for option in options if option in names), None)
        if key is None:
            raise KeyError(path)
        keys.append(key)
        value = _get(value, key)
        rest = rest[len(key) + 1 :]
    return keys


def _get(holder: Any, key: str) -> Any:
    for name, value, _ in children(holder) or ():
        if name == key:
            return value
    raise KeyError(key)


def _put(holder: Any, key: str, value: Any) -> None:
    if isinstance(holder, nn.Module):
        for registry in ("_parameters", "_buffers", "_modules"):
            if key in holder.__dict__[registry]:
                holder.__dict__[registry][key] = value
                return
        holder.__dict__[key] = value
    elif isinstance(holder, dict):
        original = next(k for k in holder if str(k) == key)
        holder[original] = value
    elif isinstance(holder, list | collections.deque):
        holder[int(key)] = value
    elif isinstance(holder, types.FunctionType):
        cells(holder)[key].cell_contents = value
    else:
        object.__setattr__(holder, key, value)
