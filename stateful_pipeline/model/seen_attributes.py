"""Sees the types of attributes that show none before a call: None, an empty list, not there yet."""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from stateful_pipeline.model.holders import Leaf, Visit, read, walk
from stateful_pipeline.model.seen_types import EMPTY, SeenTypes, type_of, type_of_both

_HOLDERS = (list, dict, collections.deque)


def before_call(module: nn.Module) -> dict[str, Any]:
    """Return what is at each path, containers as they are now."""
    return {leaf.path: _kept(leaf.value) for leaf in _walked(module)}


def note_attributes(seen: SeenTypes, before: dict[str, Any], module: nn.Module) -> None:
    """Note the types of attributes that a call has shown.

    Args:
        seen: Where to note them.
        before: What :func:`before_call` gave before the call.
        module: The module after the call.
    """
    nones = {_name(path) for path, value in before.items() if value is None}
    for leaf in _walked(module):
        path, value = leaf.path, leaf.value
        if path in before:
            kind = type_of_both(before[path], value) if _has_no_type(before[path]) else None
            if kind not in (None, EMPTY):
                seen.attributes[path] = kind
        elif leaf.kind == "attribute" and _is_new(_holder(module, path), path, nones):
            kind = type_of(value)
            if kind not in (None, "None", EMPTY):
                seen.created[path] = f"Optional[{kind}]"


def _walked(module: nn.Module) -> Iterator[Leaf]:
    return walk([Visit("", module, "module", module)], {})


def _holder(module: nn.Module, path: str) -> Any:
    above, _, _ = path.rpartition(".")
    return read(module, above) if above else module


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _is_new(holder: Any, path: str, nones: set[str]) -> bool:
    """Whether an attribute that a call has made was not there before, in the class either.

    Args:
        holder: What has it.
        path: Its path.
        nones: Names of attributes that were there and None, which is not the same.
    """
    name = _name(path)
    inside = isinstance(holder, _HOLDERS)
    return not inside and name not in nones and not hasattr(type(holder), name)


def _kept(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, _HOLDERS) else value


def _has_no_type(value: Any) -> bool:
    if not isinstance(value, _HOLDERS):
        return value is None
    items = value.values() if isinstance(value, dict) else value
    return not items or any(item is None for item in items)
