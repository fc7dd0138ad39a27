"""Keeps ``x[i]`` and ``x[i] = v`` in the graph where ``i`` is a 0-d integer tensor.

Eager PyTorch turns such an index into a Python number first, which a tracer cannot follow.  The
same elements are reached by ``index_select`` (to read) and ``index_put_`` (to write), which take
the tensor itself:

    x[a, i, b]      ==  x[a, :, b].index_select(d, i.reshape(1)).squeeze(d)
    x[a, i, b] = v  ==  x[a, :, b].index_put_((None, .., i), v)

for numbers, slices, ``None`` and ``...`` in ``a`` and ``b``, where d is the dimension that ``:``
kept.  An index with other tensors or lists in it is left as it is.

``x[:, i:j] = v`` takes as many positions from ``i`` on as ``v`` has there, by ``index_put_`` too;
reading ``x[:, i:j]`` is left to the tracer, which refuses a shape that depends on a value.

``x[i]`` is a view in eager PyTorch and a copy here.  What is written to the copy in place, as in
``x[i].add_(v)``, is therefore written back to ``x`` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_AUGMENTED = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # uint8 is a mask, as bool is


Dims = list[tuple[int, torch.Tensor]]


@dataclass(frozen=True)
class _Read:
    """A copy that stands for a view: ``copy`` is ``view`` at the indices ``dims``."""

    copy: torch.Tensor
    view: torch.Tensor
    dims: Dims


class TensorIndices(TorchFunctionMode):
    """While active, indexing with 0-d integer tensors is traced instead of evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: list[_Read] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Redirect ``Tensor.__getitem__`` and ``Tensor.__setitem__`` where it is needed."""
        if func is torch.Tensor.__setitem__ and isinstance(args[2], torch.Tensor):
            window = _window(args[0], args[1], args[2])
            if window is not None:
                torch.ops.aten.index_put_(*window, _fitted(args[2], window[0]))
                self._write_back(args[0])
                return None
        if func is torch.Tensor.__getitem__ or func is torch.Tensor.__setitem__:
            split = _split(args[0], args[1])
            if split is not None:
                basic, dims = split
                view = args[0] if _keeps_all(basic) else args[0][basic]
                if func is torch.Tensor.__getitem__:
                    copy = _read(view, dims)
                    self._reads.append(_Read(copy, view, dims))
                    return copy
                _write(view, dims, args[2])
                self._write_back(view)
                return None
        result = func(*args, **(kwargs or {}))
        for written in _written(func, args, kwargs or {}):
            self._write_back(written)
        return result

    def _write_back(self, tensor: torch.Tensor) -> None:
        for read in self._reads:
            if _base(read.copy) is _base(tensor):
                _write(read.view, read.dims, read.copy)
                self._write_back(read.view)
                return


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _written(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of ``func`` has written to."""
    out = kwargs.get("out")
    outputs = out if isinstance(out, tuple | list) else [out]
    yield from (value for value in outputs if isinstance(value, torch.Tensor))
    name = getattr(func, "__name__", "")
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    in_place = in_place or (name.startswith("__i") and name[3:-2] in _AUGMENTED)
    if in_place and args and isinstance(args[0], torch.Tensor):
        yield args[0]


def _window(
    tensor: torch.Tensor, index: Any, value: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor | None]] | None:
    """Return a view and the positions in it, where one slice of ``index`` starts at a tensor."""
    items = list(index) if isinstance(index, tuple) else [index]
    moving = [i for i, item in enumerate(items) if _starts_at_tensor(item)]
    if len(moving) != 1 or not all(_is_fixed(i) for n, i in enumerate(items) if n != moving[0]):
        return None
    start = items[moving[0]].start
    items[moving[0]] = slice(None)
    plain = _without_ellipsis(items, tensor.ndim)
    before_ellipsis = Ellipsis not in items[: moving[0]]
    at = moving[0] if before_ellipsis else moving[0] + len(plain) - len(items)
    dim = sum(not isinstance(item, int | torch.SymInt) for item in plain[:at])
    view = tensor if _keeps_all(tuple(plain)) else tensor[tuple(plain)]
    if value.ndim < view.ndim - dim:
        return None
    length = value.shape[value.ndim - (view.ndim - dim)]
    return view, [*[None] * dim, start.to(torch.int64) + torch.arange(length)]


def _starts_at_tensor(item: object) -> bool:
    return isinstance(item, slice) and _is_scalar_index(item.start) and item.step in (None, 1)


def _is_fixed(item: object) -> bool:
    """Whether ``item`` is a number, None, ``...`` or a slice with no tensor in it."""
    bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    return _is_plain(item) and not any(isinstance(bound, torch.Tensor) for bound in bounds)


def _is_scalar_index(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.ndim == 0 and item.dtype in _INTEGERS


def _keeps_all(basic: tuple[Any, ...]) -> bool:
    return all(isinstance(item, slice) and item == slice(None) for item in basic)


def _split(tensor: torch.Tensor, index: Any) -> tuple[tuple[Any, ...], Dims] | None:
    """Return the basic part of ``index`` and ``(dimension, tensor)`` for its 0-d tensors."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(_is_scalar_index(item) for item in items) or not all(map(_is_plain, items)):
        return None
    basic: list[Any] = []
    dims: Dims = []
    kept = 0
    for item in _without_ellipsis(items, tensor.ndim):
        if _is_scalar_index(item):
            dims.append((kept, item))
            basic.append(slice(None))
        else:
            basic.append(item)
        kept += not isinstance(item, int | torch.SymInt)
    return tuple(basic), dims


def _is_plain(item: object) -> bool:
    """Whether ``item`` is a number, a slice, None, ``...`` or a 0-d integer tensor."""
    basic = int | torch.SymInt | slice | type(None) | type(Ellipsis)
    return _is_scalar_index(item) or (isinstance(item, basic) and not isinstance(item, bool))


def _without_ellipsis(items: list[Any], rank: int) -> list[Any]:
    at = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if at is None:
        return items
    consumed = sum(item is not None and item is not Ellipsis for item in items)
    return [*items[:at], *[slice(None)] * (rank - consumed), *items[at + 1 :]]


def _read(view: torch.Tensor, dims: Dims) -> torch.Tensor:
    for dim, index in reversed(dims):
        index = index.to(torch.int64)
        # index_select takes no negative numbers; Python's indexing counts them from the end.
        index = torch.where(index < 0, index + view.shape[dim], index)
        view = view.index_select(dim, index.reshape(1)).squeeze(dim)
    return view


def _write(view: torch.Tensor, dims: Dims, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value, dtype=view.dtype)
    indices: list[torch.Tensor | None] = [None] * (dims[-1][0] + 1)
    for dim, index in dims:
        indices[dim] = index.to(torch.int64)
    torch.ops.aten.index_put_(view, indices, _fitted(value, view, view.ndim - len(dims)))


def _fitted(value: torch.Tensor, view: torch.Tensor, rank: int | None = None) -> torch.Tensor:
    """Return ``value`` in the dtype of ``view``, without leading 1s past ``rank``, or its own."""
    rank = view.ndim if rank is None else rank
    while value.ndim > rank and value.shape[0] == 1:
        value = value.squeeze(0)
    return value.to(view.dtype)
