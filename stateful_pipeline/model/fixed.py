"""Attributes that the user fixes to constants, so that the branches that test them fold away.

A fixed attribute is set before the module is called for the first time.  It is no state: each call
has to leave the constant there, whatever it stores on the way (a reset within ``forward`` may store
0 first).  A call that leaves something else is refused, in eager mode as in a captured graph.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import SpecError, StateError
from stateful_pipeline.model.entries import PLAIN
from stateful_pipeline.model.holders import Visit, read, walk, write
from stateful_pipeline.model.scripted import class_name, constant, is_scripted

_ABSENT = object()
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (bool, int, float, str)


def fix_attribute(module: nn.Module, path: str, value: Any) -> Any:
    """Set the attribute at ``path`` to a constant, and return the constant as it is held.

    Args:
        module: The module; changed.
        path: The attribute, dotted where it is a submodule's.
        value: A number, a string, a flag, None, or a list of them.

    Raises:
        SpecError: There is no such attribute, or the constant does not fit it.
    """
    held = _held(module, path)
    fitted = _fitted(path, held, value)
    try:
        write(module, path, fitted)
    except (RuntimeError, TypeError) as error:  # the compiled class has another type there
        text = f"the compiled {class_name(module)} has another type there than that of {value!r}"
        raise _unfit(path, text) from error
    return copy.deepcopy(fitted)


def refuse_other_values(module: nn.Module, fixed: Mapping[str, Any]) -> None:
    """Check that a call has left the constants of fixed attributes where they were.

    Args:
        module: The module, after a call.
        fixed: The constant of each fixed attribute, by path.

    Raises:
        StateError: It holds something else in one of them.
    """
    for path, value in fixed.items():
        try:
            now = read(module, path)
        except KeyError:
            now = _ABSENT
        if not _is_same(now, value):
            raise other_value(path, value, _words(now))


def other_value(path: str, value: Any, what: str) -> StateError:
    """Return the error to raise where a call leaves ``what`` in a fixed attribute."""
    return StateError(
        f"is fixed to {value!r} under `attributes`, and a call leaves {what} there",
        attribute=path,
        hint="fix what decides it too (`inputs: {sr: {value: ...}}`, or the size of an axis), or "
        "leave it out of `attributes`, so that it is a state",
    )


def _held(module: nn.Module, path: str) -> Any:
    """Return what is at ``path``; an attribute of the class becomes one of the object."""
    try:
        return read(module, path)
    except KeyError:
        pass
    above, _, name = path.rpartition(".")
    try:
        holder = read(module, above)
    except KeyError:
        raise _unknown(module, path) from None
    if is_scripted(holder) and constant(holder, name, _ABSENT) is not _ABSENT:
        raise _unfit(path, "is a constant of the compiled code, which cannot be changed any more")
    value = getattr(type(holder), name, _ABSENT)
    if is_scripted(holder) or not isinstance(value, _PLAIN) or not hasattr(holder, "__dict__"):
        raise _unknown(module, path)
    vars(holder)[name] = value
    return value


def _fitted(path: str, held: Any, value: Any) -> Any:
    """Return ``value`` as one of the type that is there now."""
    if isinstance(held, torch.Tensor):
        hint = f"`states: {{{path}: {{init: {{value: ...}}}}}}` gives it another initial value"
        raise _unfit(path, "is a tensor; only numbers, strings and the like are fixed", hint)
    if isinstance(held, list | tuple):
        if isinstance(value, list | tuple):
            items = [_fitted(path, held[0], item) if held else item for item in value]
            return tuple(items) if isinstance(held, tuple) else items
    elif held is None or (value is None and isinstance(held, _PLAIN)):
        return list(value) if isinstance(value, tuple) else value
    elif type(held) is float and type(value) is int:
        return float(value)
    elif type(held) in _PLAIN and type(value) is type(held):
        return value
    raise _unfit(path, f"holds {_words(held)}, which {value!r} cannot stand for")


def _unfit(path: str, message: str, hint: str | None = None) -> SpecError:
    key = _key(path)
    return SpecError(f"{key}: '{path}' {message}", key=key, hint=hint)


def _unknown(module: nn.Module, path: str) -> SpecError:
    known = [
        leaf.path
        for leaf in walk([Visit("", module, "module", module)], {})
        if isinstance(leaf.value, (*PLAIN, list, tuple)) and not leaf.path.startswith("_forward")
    ]
    key, near = _key(path), difflib.get_close_matches(path, known, 1)
    there = f"there are: {', '.join(known[:12])}" if known else "it has no number and no string"
    hint = f"did you mean '{near[0]}'?" if near else there
    return SpecError(f"{key}: {class_name(module)} has no attribute '{path}'", key=key, hint=hint)


def _key(path: str) -> str:
    return f'attributes["{path}"]' if "." in path else f"attributes.{path}"


def _words(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, _SYMBOLIC):
        return "a number that depends on the size of an axis"
    return repr(value) if value is None or isinstance(value, _PLAIN) else type(value).__name__


def _is_same(now: Any, value: Any) -> bool:
    if isinstance(value, list | tuple):
        if not isinstance(now, list | tuple) or len(now) != len(value):
            return False
        return all(map(_is_same, now, value))
    return type(now) is type(value) and bool(now == value or (now != now and value != value))
