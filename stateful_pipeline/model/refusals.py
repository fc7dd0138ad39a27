"""Says, in words, why something that a call changes cannot be made a state, and what to do."""

from __future__ import annotations

import collections
import random
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stateful_pipeline.model.history import History, type_of
from stateful_pipeline.model.holders import WRITABLE, is_number
from stateful_pipeline.model.surroundings import RANDOM

_BUFFER = "hold what must survive in a registered buffer"
_NO_NOISE = "make the noise an input of forward; for dropout, call module.eval() first"
_STRUCTURAL = ("appears during", "is gone after", "from None to", "whose length", "whose keys")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


@dataclass(frozen=True)
class Refused:
    """A leaf that is stored to and that cannot be made a state, with the reason."""

    path: str
    kind: str
    reason: str
    hint: str

    @property
    def is_structural(self) -> bool:
        """Whether something is there, or has a length, that it has not before the call."""
        return any(mark in self.reason for mark in _STRUCTURAL)


def refuse_tensor(group: list[History], path: str, kind: str) -> Refused | None:
    """Refuse the tensor that is held at the places of ``group``, if it cannot be a state."""
    reason = next((past.problem for past in group if past.problem), None)
    hint = "make it a registered buffer that has its final dtype from the start"
    fixed = [past for past in group if past.first.kind not in WRITABLE]
    if reason is None and len(fixed) == len(group):
        reason = f"a tensor that a call changes is held in {_place(fixed[0].first.kind)}"
        hint = "hold it in a registered buffer"
    elif reason is None and fixed:
        where = fixed[0].first
        reason = (
            f"is also held by '{where.path}' ({_place(where.kind)}), "
            "which cannot follow its replacement"
        )
        hint = "let that place refer to the module, and read the tensor from it in forward"
    reason = reason or _divergence(group)
    return None if reason is None else Refused(path, kind, reason, hint)


def _divergence(group: list[History]) -> str | None:
    """Say how paths that began as one tensor ended as several, or None if they did not."""
    if len({id(past.last) for past in group}) == 1:
        return None
    names = " and ".join(f"'{past.first.path}'" for past in group)
    return f"{names} are one tensor before the call and two after it"


def refuse_value(past: History) -> Refused:
    """Refuse what is no tensor and changes from call to call."""
    leaf = past.first
    path = leaf.path or "<the module>"
    if leaf.kind == RANDOM:
        whose = leaf.path.strip("<>").rpartition(" ")[2]
        reason = f"forward draws random numbers from the generator of {whose}, a hidden state"
        return Refused(path, leaf.kind, reason, _NO_NOISE)
    if past.problem is not None:
        reason = f"{past.problem}, which"
        hint = "give it its final type and shape in the constructor"
    elif is_number(leaf.value):
        reason = f"a Python {type_of(leaf)} that changes from call to call"
        hint = "hold it in a 0-d tensor: self.register_buffer(name, torch.tensor(value))"
    else:
        reason, hint = _what_changes(leaf.value, leaf.alias), _what_helps(leaf.value)
    if leaf.kind not in WRITABLE:
        reason = f"is held in {_place(leaf.kind)}: {reason}"
        hint = "hold it in a registered buffer"
    return Refused(path, leaf.kind, f"{reason} is not supported yet", hint)


def _what_changes(value: Any, alias: str | None) -> str:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    if alias is not None:
        return f"{article} {kind} that is replaced by another one"
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return f"{article} {kind} that is another one from call to call"
    if isinstance(value, dict):
        return f"{article} {kind} whose keys or their order change from call to call"
    if isinstance(value, list | tuple | collections.deque):
        return f"{article} {kind} whose length changes from call to call"
    if isinstance(value, torch.nn.Module):
        return f"{article} {kind} whose mode or submodules change from call to call"
    if isinstance(value, _GENERATORS):
        return f"a random generator ({kind}) that is drawn from"
    if hasattr(type(value), "__next__"):
        return f"an iterator ({kind}) that advances from call to call"
    return f"{article} {kind} that changes from call to call"


def _what_helps(value: Any) -> str:
    if isinstance(value, _GENERATORS):
        return _NO_NOISE
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return "hold a tensor that says which one it is, and choose with torch.where"
    return _BUFFER


def _place(kind: str) -> str:
    places = {
        "global": "a global variable",
        "class attribute": "a class attribute",
        "default": "a default argument",
        "closure": "a variable that a function encloses",
        "cached": "the cache of a function",
        "key": "the keys of a dict",
        "generator": "the variables of a generator",
        "member of a set": "a set",
        "read-only item": "a read-only dict",
    }
    return places.get(kind, f"a {kind}" if kind[0] not in "aeiou" else f"an {kind}")
