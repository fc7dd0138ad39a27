"""Copies what one holder holds, and puts it back into the very same holder."""

from __future__ import annotations

import array
import collections
import functools
import io
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from stateful_pipeline.model.cpp_objects import is_cpp_object, restore_state, state_of
from stateful_pipeline.model.entries import attributes, cells, slots
from stateful_pipeline.model.scripted import core, is_scripted, keep
from stateful_pipeline.model.scripted_items import Dict, List, keep_items

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_REGISTRIES = ("_parameters", "_buffers", "_modules", *_HOOKS)
_ABSENT = object()
BLOCKS = (np.ndarray, bytearray, array.array, io.BytesIO, io.StringIO)
"""Values of one block of elements, which are changed in place."""


def contents(holder: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return what ``holder`` holds: items, attributes and slots, each copied one level deep."""
    own = attributes(holder)
    slotted = {name: _slot(holder, descriptor) for name, descriptor in slots(holder).items()}
    return _items(holder), dict(own), slotted


def _slot(holder: Any, descriptor: types.MemberDescriptorType) -> Any:
    try:
        return descriptor.__get__(holder)
    except AttributeError:
        return _ABSENT


def _items(holder: Any) -> Any:
    if isinstance(holder, List | Dict):
        return keep_items(holder)
    if isinstance(holder, nn.Module):
        return _in_module(holder)
    if is_cpp_object(holder):
        return (state_of(holder),)  # what is pickled may be None
    if isinstance(holder, dict | set):
        return holder.copy() if type(holder) in (dict, set) else _plain_copy(holder)
    if isinstance(holder, list | collections.deque):
        return list(holder)
    if isinstance(holder, functools.partial):
        return (holder.func, holder.args, holder.keywords)
    if isinstance(holder, types.FunctionType):
        return {name: cell.cell_contents for name, cell in cells(holder).items()}
    if isinstance(holder, np.ndarray):
        return holder.copy()
    return None


def _in_module(module: nn.Module) -> Any:
    registries = _HOOKS if is_scripted(module) else _REGISTRIES
    copies = {name: dict(module.__dict__[name]) for name in registries}
    if not is_scripted(module):
        return copies, None, None
    return copies, dict(attributes(core(module))), keep(module)


def _plain_copy(holder: Any) -> Any:
    return dict(holder.items()) if isinstance(holder, dict) else set(holder)


def refill(holder: Any, saved: tuple[Any, dict[str, Any], dict[str, Any]]) -> None:
    """Put what :func:`contents` returned back into ``holder``, which keeps its identity."""
    items, own, slotted = saved
    refill_dict(attributes(holder), own)
    for name, descriptor in slots(holder).items():
        if slotted[name] is not _slot(holder, descriptor):
            if slotted[name] is _ABSENT:
                descriptor.__delete__(holder)
            else:
                descriptor.__set__(holder, slotted[name])
    if items is not None:
        _refill_items(holder, items)


def _refill_items(holder: Any, items: Any) -> None:
    if isinstance(holder, List | Dict):
        items()
    elif isinstance(holder, nn.Module):
        _refill_module(holder, *items)
    elif is_cpp_object(holder):
        restore_state(holder, *items)
    elif isinstance(holder, dict):
        refill_dict(holder, items)
    elif isinstance(holder, list | collections.deque | set):
        if not _identical(holder, items):
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(items)
    elif isinstance(holder, functools.partial):
        if not _identical((holder.func, holder.args, holder.keywords), items):
            holder.__setstate__((*items, attributes(holder)))  # type: ignore[attr-defined]
    elif isinstance(holder, np.ndarray):
        holder[...] = items
    else:
        _refill_cells(holder, items)


def _refill_module(
    module: nn.Module,
    registries: dict[str, Any],
    inner: dict[str, Any] | None,
    restore: Callable[[], None] | None,
) -> None:
    for name, registry in registries.items():
        refill_dict(module.__dict__[name], registry)
    if inner is not None:
        refill_dict(attributes(core(module)), inner)
    if restore is not None:
        restore()


def _refill_cells(function: types.FunctionType, values: dict[str, Any]) -> None:
    for name, cell in cells(function).items():
        if name in values and cell.cell_contents is not values[name]:
            cell.cell_contents = values[name]


def refill_dict(holder: dict[Any, Any], saved: dict[Any, Any]) -> None:
    """Give ``holder`` the keys and values of ``saved`` in its order; untouched if it has them."""
    if _identical(holder, saved) and _identical(holder.values(), saved.values()):
        return
    base: Any = collections.OrderedDict if isinstance(holder, collections.OrderedDict) else dict
    base.clear(holder)
    for key, value in saved.items():
        base.__setitem__(holder, key, value)


def _identical(now: Any, before: Any) -> bool:
    """Whether two collections hold the very same objects in the same order."""
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def copy_block(value: Any) -> Any:
    """Return a copy of the elements of one of :data:`BLOCKS`."""
    if isinstance(value, io.BytesIO | io.StringIO):
        return None if value.closed else (value.tell(), value.getvalue())
    return value[:] if isinstance(value, array.array) else value.copy()


def restore_block(value: Any, saved: Any) -> None:
    """Put the elements that :func:`copy_block` returned back."""
    if isinstance(value, io.BytesIO | io.StringIO):
        if saved is not None and not value.closed:
            value.seek(0)
            value.truncate()
            value.write(saved[1])
            value.seek(saved[0])
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = saved
    else:
        value[:] = saved
