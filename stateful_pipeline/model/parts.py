"""Tensors of a module that are parts of one buffer: views that share its memory.

Where one tensor covers the others, it is the state, and they are made from it anew whenever it is
put into the module: what is written to one is then seen through all, as in eager PyTorch.  A part
is described by operators (``select``, ``narrow``, or ``view`` of a stretch of the flat buffer), so
that it follows an axis along which it takes everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

_MOST_COMPARED = 10_000_000
"""The number of elements up to which it is found out whether two tensors overlap."""


@dataclass(frozen=True)
class Step:
    """One operator: ``select`` or ``narrow`` along ``dim``, or ``permute`` or ``view``."""

    kind: str
    dim: int = 0
    start: int = 0
    length: int = 0
    shape: tuple[int, ...] = ()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the view of ``tensor``."""
        if self.kind == "select":
            return tensor.select(self.dim, self.start)
        if self.kind == "narrow":
            return tensor.narrow(self.dim, self.start, self.length)
        return tensor.permute(self.shape) if self.kind == "permute" else tensor.view(self.shape)


@dataclass(frozen=True)
class Part:
    """A tensor that is a part of a state: where the module holds it, and how it is made."""

    paths: tuple[str, ...]
    steps: tuple[Step, ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the part of ``whole``."""
        for step in self.steps:
            whole = step(whole)
        return whole


def covering(tensors: Sequence[torch.Tensor]) -> int | None:
    """Return the position of the tensor of which all ``tensors`` are parts, or None."""
    for index, whole in enumerate(tensors):
        if all(part is whole or steps_to(whole, part) is not None for part in tensors):
            return index
    return None


def steps_to(whole: torch.Tensor, part: torch.Tensor) -> tuple[Step, ...] | None:
    """Return the operators that make ``part`` of ``whole``, or None if there are none."""
    if whole.dtype != part.dtype:
        return None
    for steps in (_along_dims(whole, part), _of_the_flat_one(whole, part)):
        if steps is not None and _is_same(Part((), steps), whole, part):
            return steps
    return None


def _along_dims(whole: torch.Tensor, part: torch.Tensor) -> tuple[Step, ...] | None:
    """Return ``select`` and ``narrow`` along the dimensions of ``whole``, in the part's order."""
    starts = _starts(whole, part)
    if starts is None:
        return None
    strides = [int(stride) for stride in part.stride()]
    steps: list[Step] = []
    kept: list[int] = []  # the dimension of the part that each dimension of the result is
    for dim, stride in enumerate(map(int, whole.stride())):
        left = [d for d, own in enumerate(strides) if own == stride and d not in kept]
        if not left:
            steps.append(Step("select", len(kept), starts[dim]))
            continue
        if part.shape[left[0]] != whole.shape[dim]:
            steps.append(Step("narrow", len(kept), starts[dim], int(part.shape[left[0]])))
        kept.append(left[0])
    if len(kept) != part.dim():
        return None
    if kept != sorted(kept):
        steps.append(Step("permute", shape=tuple(kept.index(d) for d in range(part.dim()))))
    return tuple(steps)


def _starts(whole: torch.Tensor, part: torch.Tensor) -> list[int] | None:
    """Return where in each dimension of ``whole`` the first element of ``part`` lies."""
    rest = int(part.storage_offset() - whole.storage_offset())
    starts = [0] * whole.dim()
    strides = [int(stride) for stride in whole.stride()]
    for dim in sorted(range(whole.dim()), key=lambda d: strides[d], reverse=True):
        if strides[dim]:
            starts[dim], rest = divmod(rest, strides[dim])
    inside = all(0 <= start < max(whole.shape[dim], 1) for dim, start in enumerate(starts))
    return starts if inside and rest == 0 else None


def _of_the_flat_one(whole: torch.Tensor, part: torch.Tensor) -> tuple[Step, ...] | None:
    """Return the steps to a stretch of all elements in their order, in another shape."""
    if not whole.is_contiguous() or not part.is_contiguous():
        return None
    start = int(part.storage_offset() - whole.storage_offset())
    if not 0 <= start <= whole.numel() - part.numel():
        return None
    flat = Step("view", shape=(whole.numel(),))
    stretch = Step("narrow", 0, start, part.numel())
    return flat, stretch, Step("view", shape=tuple(part.shape))


def _is_same(part: Part, whole: torch.Tensor, wanted: torch.Tensor) -> bool:
    try:
        made = part.of(whole.detach())
    except RuntimeError:
        return False
    return (made.shape, made.stride(), made.storage_offset()) == (
        wanted.shape,
        wanted.stride(),
        wanted.storage_offset(),
    )


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may have an element in common, whoever made the storages below them."""
    if a.device != b.device or not (_has_memory(a) and _has_memory(b)):
        return False
    if a.untyped_storage()._cdata == b.untyped_storage()._cdata:
        return overlap(a, b)
    if a.numel() == 0 or b.numel() == 0:
        return False
    starts = [t.untyped_storage().data_ptr() for t in (a, b)]
    spans = [
        (start + _span(t)[0], start + _span(t)[1]) for start, t in zip(starts, (a, b), strict=True)
    ]
    return all(starts) and spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]


def _has_memory(tensor: torch.Tensor) -> bool:
    return not is_lazy(tensor) and not tensor.is_nested and tensor.layout == torch.strided


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage may have an element in common."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    spans = [_span(tensor) for tensor in (a, b)]
    if spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]:
        return False
    if max(end - start for start, end in spans) > _MOST_COMPARED:
        return True
    taken = [set(_positions(tensor).tolist()) for tensor in (a, b)]
    return not taken[0].isdisjoint(taken[1])


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and the last byte of a tensor in its storage."""
    size = tensor.element_size()
    first = int(tensor.storage_offset())
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    last = first + sum((int(count) - 1) * int(stride) for count, stride in dims)
    return first * size, (last + 1) * size - 1


def _positions(tensor: torch.Tensor) -> torch.Tensor:
    """Return the byte at which each element of a tensor begins, and the others that it has."""
    _, last = _span(tensor)
    size = tensor.element_size()
    places = torch.arange(math.ceil((last + 1) / size))
    taken = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1)
    return (taken[:, None] * size + torch.arange(size)).reshape(-1)
