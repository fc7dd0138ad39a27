"""Walks everything in a module that can hold state, and reads and writes it by path.

A *holder* is what has other values in it: a module (its parameters, buffers, submodules, hooks and
plain attributes), a list, a tuple, a dict, a set, a deque, a partial function, a function (the
variables that it encloses), a generator, a weak reference, or an object with attributes.  A *leaf*
is any value below a module: a tensor, a number, a string, but also a holder itself, for its
length or its keys are state too.

A leaf's path joins the keys from the module down to it with dots, as in ``encoder.cells.0.h`` or
``memory.fast``; for registered tensors that is PyTorch's fully qualified name.  Each holder is
entered once, by the first path that reaches it, so that cycles end; where it is met again the leaf
names that first path as its ``alias``.  Python modules and library internals are not entered, and
C++ objects by the explicit forms of their classes (see :mod:`.cpp_objects`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model.cpp_objects import form_of, is_cpp_object, written
from stateful_pipeline.model.entries import (
    BLOCKS,
    CONSTANTS,
    NUMBERS,
    PLAIN,
    Attribute,
    Entry,
    attributes,
    entries,
    of_tensor,
)
from stateful_pipeline.model.lookup import first_entry
from stateful_pipeline.model.scripted import Slot, set_attribute
from stateful_pipeline.model.scripted_items import Dict, List, set_item

WRITABLE = frozenset({"buffer", "parameter", "attribute", "item", "module"})
"""The kinds of places into which another value can be put."""


@dataclass(frozen=True)
class Leaf:
    """A value, the path that leads to it and how it is held.

    ``kind`` is ``buffer``, ``parameter``, ``attribute`` (of a module or an object), ``item`` (of
    a list, tuple, dict or deque), ``module``, or the name of a place that cannot be written to
    (not in :data:`WRITABLE`); ``owner`` is the nearest module around it; ``alias`` the first path
    of a holder that was met before.
    """

    path: str
    value: Any
    kind: str
    owner: nn.Module
    alias: str | None = None


class Visit(NamedTuple):
    """A value that a walk has still to look at."""

    path: str
    value: Any
    kind: str
    owner: nn.Module


def is_number(value: object) -> bool:
    """Whether ``value`` is a Python number (bool, int, float or complex)."""
    return isinstance(value, NUMBERS)


def children(holder: object) -> list[tuple[str, Any, str]] | None:
    """Return ``(key, value, kind)`` for what ``holder`` holds, or None if it is no holder.

    The order is that of registration or insertion, with registered tensors first.
    """
    found = entries(holder)
    return None if found is None else [(name, value, kind) for name, value, kind, _ in found]


def holders(root: nn.Module) -> Iterator[object]:
    """Yield ``root`` and every holder below it, each once, without recursion."""
    seen: dict[int, tuple[str, object]] = {}
    for _ in walk([Visit("", root, "module", root)], seen):
        pass
    yield from (holder for _, holder in seen.values())


def leaves(root: nn.Module) -> Iterator[Leaf]:
    """Yield the values below ``root`` that can be replaced: no holder, and nothing outside it.

    A value that is held in several places comes several times.
    """
    for leaf in walk([Visit("", root, "module", root)], {}):
        if leaf.kind in WRITABLE and is_leaf(leaf):
            yield leaf


def is_leaf(leaf: Leaf) -> bool:
    """Whether the value is one of its own, and not a container, a function or an object."""
    return isinstance(leaf.value, (torch.Tensor, *PLAIN, *CONSTANTS, *BLOCKS))


def walk(
    pending: list[Visit],
    seen: dict[int, tuple[str, object]],
    enter: Callable[[Any], bool] | None = None,
) -> Iterator[Leaf]:
    """Yield a leaf for each of ``pending`` and for everything below, without recursion.

    Args:
        pending: Where to start; emptied.
        seen: The holders that were entered, with their paths, by identity; added to.
        enter: For what lies outside the module: which holders to enter.  What is below them has
            the kind of the place where it starts.
    """
    while pending:
        path, value, kind, owner = pending.pop()
        if isinstance(value, PLAIN):
            yield Leaf(path, value, kind, owner)
            continue
        if id(value) in seen and (enter is None or enter(value)):
            yield Leaf(path, value, kind, owner, alias=seen[id(value)][0])
            continue
        yield Leaf(path, value, kind, owner)
        below = _below(value, enter)
        if below is None:
            continue
        if not isinstance(value, torch.Tensor):
            seen[id(value)] = (path, value)
        inner = value if isinstance(value, nn.Module) else owner
        # A tuple in a place that holds for good cannot be made anew.
        fixed = enter is not None or kind == "cached"
        fixed = fixed or (isinstance(value, tuple) and kind not in WRITABLE)
        for entry in reversed(below):
            name = f"{path}.{entry.name}" if path else entry.name
            inherited = kind if fixed and entry.kind != "cached" else entry.kind
            pending.append(Visit(name, entry.value, inherited, inner))


def _below(value: Any, enter: Callable[[Any], bool] | None) -> list[Entry] | None:
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    return entries(value) if enter is None or enter(value) else None


def read(root: Any, path: str) -> Any:
    """Return the value at ``path``, or raise ``KeyError`` if nothing is there any more."""
    value: Any = root
    for _, entry in _steps(root, path):
        value = entry.value
    return value


def write(root: nn.Module, path: str, value: Any) -> None:
    """Put ``value`` at ``path``, without ``__setattr__`` and its checks; tuples are made anew."""
    steps = list(_steps(root, path))
    for holder, entry in reversed(steps):
        if not isinstance(holder, tuple):
            _put(form_of(holder) if is_cpp_object(holder) else holder, entry.key, value)
            break
        items = [*holder[: entry.key], value, *holder[entry.key + 1 :]]
        value = type(holder)(*items) if hasattr(holder, "_fields") else type(holder)(items)
    for holder, _ in steps:
        if is_cpp_object(holder):
            written(holder)


def _put(holder: Any, key: Any, value: Any) -> None:
    """Put ``value`` under the :class:`Entry`'s ``key`` of ``holder``."""
    if isinstance(key, Slot):
        set_attribute(holder, key.name, value)
    elif isinstance(key, Attribute):
        key.space[key.name] = value
    elif isinstance(holder, List | Dict):
        set_item(holder, key, value)
    elif isinstance(holder, nn.Module):
        registry, name = key
        (holder.__dict__[registry] if registry else holder.__dict__)[name] = value
    elif isinstance(key, types.MemberDescriptorType):
        key.__set__(holder, value)
    elif isinstance(key, types.CellType):
        key.cell_contents = value
    elif isinstance(holder, functools.partial) and isinstance(key, str):
        kept = {"func": holder.func, "args": holder.args, "keywords": holder.keywords, key: value}
        holder.__setstate__((*kept.values(), attributes(holder)))  # type: ignore[attr-defined]
    elif isinstance(holder, np.ndarray):
        holder.flat[key] = value
    else:
        holder[key] = value


def _steps(root: Any, path: str) -> Iterator[tuple[Any, Entry]]:
    """Yield ``(holder, entry)`` along ``path``; a name may itself hold dots, as dict keys can."""
    holder, rest = root, path
    while rest:
        entry = first_entry(holder, rest)
        if entry is None:
            raise KeyError(path)
        yield holder, entry
        holder = entry.value
        rest = rest[len(entry.name) + 1 :]
