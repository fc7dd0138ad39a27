"""Follows one place in or around a module from call to call: was it stored to, did it change?

A tensor is *stored to* when, after a call, another object is in its place, its version counter
moved, its bits differ, or its dtype or shape does; anything else when its fingerprint differs.  It
is *exercised* when its value was ever seen to differ.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import torch

from stateful_pipeline.model.equal_tensors import equal_tensors
from stateful_pipeline.model.fingerprints import fingerprint
from stateful_pipeline.model.holders import Leaf, is_number

_MAY_APPEAR = ("cached",)
_MAY_GO = ("cached", "attribute of a tensor")


@dataclass
class History:
    """What was seen at one path.

    Attributes:
        first: The leaf as it was found.
        last: The tensor that was seen there last, or None if it is none.
        mark: The fingerprint of what is no tensor.
        version: The version counter of ``last``.
        value: The value of ``last``, cloned.
        shapes: The shape of the tensor before the first call and after each.
        stored: Whether it was stored to.
        exercised: Whether its value was seen to change.
        reassigned: Whether another tensor was seen in its place.
        in_place: Whether the tensor itself was written to.
        problem: Why it cannot be a state.
        numbers: The Python numbers that were seen there, one for each call and one before.
    """

    first: Leaf
    last: torch.Tensor | None
    mark: tuple[Any, ...] | None
    version: int
    value: torch.Tensor | None
    shapes: list[tuple[int, ...]]
    stored: bool = False
    exercised: bool = False
    reassigned: bool = False
    in_place: bool = False
    problem: str | None = None
    numbers: list[Any] = field(default_factory=list)

    @classmethod
    def start(cls, leaf: Leaf) -> History:
        """Begin with what is there now."""
        if not isinstance(leaf.value, torch.Tensor):
            numbers = [leaf.value] if is_number(leaf.value) else []
            return cls(leaf, None, _mark(leaf), 0, None, [], numbers=numbers)
        tensor = leaf.value
        clone = tensor.detach().clone()
        return cls(leaf, tensor, None, _version(tensor), clone, [tuple(tensor.shape)])

    @classmethod
    def appeared(cls, leaf: Leaf) -> History:
        """Begin with what was not there before a call."""
        past = cls.start(leaf)
        if leaf.kind not in _MAY_APPEAR and not _is_code(leaf):
            past.stored = True
            past.problem = "appears during a call; it is not there before the first"
        return past

    def compare(self, leaf: Leaf | None) -> None:
        """Take in what is there after a call, or None if the path leads nowhere any more."""
        if leaf is None:
            self._gone()
        elif isinstance(leaf.value, torch.Tensor) and self.last is not None:
            self._compare_tensors(self.last, leaf.value)
        else:
            self._compare_marks(leaf)

    def _gone(self) -> None:
        if self.first.kind not in _MAY_GO:
            self.stored = self.exercised = True
            self.problem = self.problem or "is gone after a call"

    def _compare_marks(self, leaf: Leaf) -> None:
        tensor = leaf.value if isinstance(leaf.value, torch.Tensor) else None
        mark = None if tensor is not None else _mark(leaf)
        if mark == self.mark and tensor is None:
            return
        self.stored = self.exercised = True
        if is_number(leaf.value):
            self.numbers.append(leaf.value)
        if is_number(leaf.value) and is_number(self.first.value):
            self.mark = mark
            return
        if tensor is not None or self.last is not None or type_of(leaf) != type_of(self.first):
            change = f"changes from {type_of(self.first)} to {type_of(leaf)}"
            self.problem = self.problem or change
        self.last, self.mark = tensor, mark
        if tensor is not None:
            self.version, self.value = _version(tensor), tensor.detach().clone()

    def _compare_tensors(self, last: torch.Tensor, tensor: torch.Tensor) -> None:
        before = self.value
        assert before is not None  # every tensor's history starts with its value
        if tensor is not last:
            self.stored = self.reassigned = True
        elif _version(tensor) != self.version:
            self.stored = self.in_place = True
        same = equal_tensors(tensor, before)
        if tensor.layout != torch.strided and self.stored:
            self.problem = self.problem or f"is stored to and has the layout {tensor.layout}"
        if not same:
            self.stored = self.exercised = True
            self.value = tensor.detach().clone()
        if tensor.dtype != before.dtype:
            change = f"changes its dtype from {before.dtype} to {tensor.dtype}"
            self.problem = self.problem or change
        self.last, self.version = tensor, _version(tensor)
        self.shapes.append(tuple(tensor.shape))


def _mark(leaf: Leaf) -> tuple[Any, ...]:
    return fingerprint(leaf.value) if leaf.alias is None else ("the same as", leaf.alias)


def _version(tensor: torch.Tensor) -> int:
    """Return the tensor's version counter, which those made in inference mode do not have."""
    return 0 if tensor.is_inference() else tensor._version


def type_of(leaf: Leaf) -> str:
    """Return the name of the type of the leaf's value."""
    return "None" if leaf.value is None else type(leaf.value).__name__


def _is_code(leaf: Leaf) -> bool:
    """Whether a global is what an import brings in, which happens at the first call."""
    code = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
    return leaf.kind == "global" and isinstance(leaf.value, code)
