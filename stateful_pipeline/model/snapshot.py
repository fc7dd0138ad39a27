"""Takes a module's whole state apart and puts it back, bit for bit and object for object.

A snapshot keeps, for every holder that :mod:`.holders` finds, what it held (the very objects), and
for every storage below a tensor its bytes.  Restoring puts both back, so that whatever ``forward``
did, even if it raised half-way, leaves no trace: the same tensors are in the same places, with the
same values, and views still share memory with what they are views of.
"""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model.holders import MUTABLE_LEAVES, cells, holders, leaves

_REGISTRIES = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks")


def _contents(holder: Any) -> Any:
    """Return a shallow copy of what ``holder`` holds, enough for :func:`_refill`."""
    if isinstance(holder, nn.Module):
        copied = dict(holder.__dict__)
        for registry in _REGISTRIES:
            copied[registry] = dict(holder.__dict__[registry])
        return copied
    if isinstance(holder, dict):
        return dict(holder)
    if isinstance(holder, list | collections.deque):
        return list(holder)
    if isinstance(holder, tuple | types.MethodType):
        return None
    if isinstance(holder, types.FunctionType):
        return {name: cell.cell_contents for name, cell in cells(holder).items()}
    names = [n for cls in type(holder).__mro__ for n in _slots(cls) if hasattr(holder, n)]
    return {**{n: getattr(holder, n) for n in names}, **getattr(holder, "__dict__", {})}


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _refill(holder: Any, contents: Any) -> None:
    """Put ``contents`` back into ``holder``, which keeps its identity."""
    if isinstance(holder, nn.Module):
        _refill_module(holder, contents)
    elif isinstance(holder, dict):
        _refill_dict(holder, contents)
    elif isinstance(holder, list):
        holder[:] = contents
    elif isinstance(holder, collections.deque):
        holder.clear()
        holder.extend(contents)
    elif isinstance(holder, types.FunctionType):
        for name, cell in cells(holder).items():
            if cell.cell_contents is not contents[name]:
                cell.cell_contents = contents[name]
    else:
        _refill_object(holder, contents)


def _refill_module(module: nn.Module, contents: dict[str, Any]) -> None:
    for name in [n for n in module.__dict__ if n not in contents]:
        del module.__dict__[name]
    for name, value in contents.items():
        if name in _REGISTRIES:
            _refill_dict(module.__dict__[name], value)
        else:
            module.__dict__[name] = value


def _refill_dict(holder: dict[Any, Any], saved: dict[Any, Any]) -> None:
    if list(holder) != list(saved) or any(holder[key] is not saved[key] for key in saved):
        holder.clear()
        holder.update(saved)


def _refill_object(holder: object, contents: dict[str, Any]) -> None:
    names = [name for cls in type(holder).__mro__ for name in _slots(cls) if hasattr(holder, name)]
    names += list(getattr(holder, "__dict__", {}))
    for name in [n for n in names if n not in contents]:
        object.__delattr__(holder, name)
    for name, value in contents.items():
        object.__setattr__(holder, name, value)


@dataclass(frozen=True)
class _Saved:
    """A tensor: where its elements lie, and the bytes of the storage below it."""

    tensor: torch.Tensor
    view: torch.Tensor  # an alias: the same storage, layout and dtype, whatever the tensor becomes
    storage: torch.UntypedStorage
    data: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None


def _save_tensors(module: nn.Module) -> list[_Saved]:
    copies: dict[int, torch.Tensor] = {}
    saved: list[_Saved] = []
    seen: set[int] = set()
    for leaf in leaves(module):
        tensor = leaf.value
        if not isinstance(tensor, torch.Tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.layout != torch.strided:
            continue  # sparse tensors are not written in place; their identity is kept above
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or id(tensor)
        if key not in copies:
            copies[key] = _bytes(storage).clone()
        grad = tensor.grad if tensor.is_leaf else None
        alias = tensor.detach()
        saved.append(_Saved(tensor, alias, storage, copies[key], tensor.requires_grad, grad))
    return saved


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Snapshot:
    """The state of a module at one moment; use as a context manager to restore it at the end.

    ``with Snapshot(module): ...`` leaves the module as it was, whatever happens inside.

    Args:
        module: The module.
        bytes_too: Whether to keep and restore the bytes of tensors, or only which object is where.
    """

    def __init__(self, module: nn.Module, *, bytes_too: bool = True) -> None:
        self._holders = [(holder, _contents(holder)) for holder in holders(module)]
        self._tensors: list[_Saved] = _save_tensors(module) if bytes_too else []
        values = [leaf.value for leaf in leaves(module) if isinstance(leaf.value, MUTABLE_LEAVES)]
        self._mutable = [(value, value.copy()) for value in values]

    def restore(self) -> None:
        """Put every holder's contents and every tensor's bytes back."""
        for holder, contents in self._holders:
            if contents is not None:
                _refill(holder, contents)
        for value, copy in self._mutable:
            _restore_mutable(value, copy)
        restored: set[int] = set()
        with torch.no_grad():
            for saved in self._tensors:
                _restore_tensor(saved, restored)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()


def _restore_mutable(value: Any, copy: Any) -> None:
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = copy
    elif isinstance(value, set):
        value.clear()
        value.update(copy)
    else:
        value[:] = copy


def _restore_tensor(saved: _Saved, restored: set[int]) -> None:
    tensor, view = saved.tensor, saved.view
    if not _same_place(tensor, view):
        tensor.data = view
    if id(saved.data) not in restored:
        restored.add(id(saved.data))
        if saved.storage.nbytes() != saved.data.numel():
            saved.storage.resize_(saved.data.numel())
        _bytes(saved.storage).copy_(saved.data)
    if tensor.is_leaf:
        tensor.requires_grad_(saved.requires_grad)
        tensor.grad = saved.grad


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.size() == b.size()
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )
