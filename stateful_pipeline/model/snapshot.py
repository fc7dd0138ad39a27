"""Takes a module's whole state apart and puts it back, bit for bit and object for object.

A snapshot keeps, for every holder in the module and in what its code refers to (see
:mod:`.survey`), what it held (the very objects), for every storage below a tensor or its gradient
the bytes, the state of every random generator, the process's own included, and PyTorch's own
settings.  Restoring puts all of it back, so that whatever ``forward`` did, even if it raised
half-way, leaves no trace: the same tensors are in the same places, with the same values, and views
still share memory with what they are views of.  What interrupts it waits until all is back.

Python allows no more for some iterators: counters and iterators over sequences are replaced by
copies that stand where they stood, but a generator that was advanced stays so.
"""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stateful_pipeline.model.contents import (
    BLOCKS,
    contents,
    copy_block,
    refill,
    restore_block,
)
from stateful_pipeline.model.fingerprints import fingerprint, random_state
from stateful_pipeline.model.holders import WRITABLE, Leaf, write
from stateful_pipeline.model.surroundings import Binding
from stateful_pipeline.model.survey import survey

_RANDOM = (
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
)
# Those that ``copy.copy`` copies without sharing anything that advances.
_COPIED: tuple[Any, ...] = (
    itertools.count,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter("")),
)
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)
"""Getters and setters of what ``forward`` may set for good; sessions keep the other settings."""
_MOST_TRIES = 3
_ABSENT = object()


@dataclass(frozen=True)
class _Saved:
    """A tensor: where its elements lie, and the bytes of the storage below it."""

    tensor: torch.Tensor
    view: torch.Tensor  # an alias: the same storage, layout and dtype, whatever the tensor becomes
    storage: torch.UntypedStorage
    data: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None


def _save_tensors(leaves: Iterable[Leaf]) -> list[_Saved]:
    copies: dict[int, torch.Tensor] = {}
    saved: list[_Saved] = []
    for tensor in _tensors(leaves):
        if tensor.layout != torch.strided:
            continue  # sparse tensors are not written in place; their identity is kept above
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or id(tensor)
        if key not in copies:
            copies[key] = _bytes(storage).clone()
        alias, grad = tensor.detach(), _grad(tensor)
        saved.append(_Saved(tensor, alias, storage, copies[key], tensor.requires_grad, grad))
    return saved


def _tensors(leaves: Iterable[Leaf]) -> Iterator[torch.Tensor]:
    """Yield each tensor once, with its gradient."""
    seen: set[int] = set()
    for leaf in leaves:
        tensor = leaf.value
        while isinstance(tensor, torch.Tensor) and id(tensor) not in seen and not is_lazy(tensor):
            seen.add(id(tensor))
            yield tensor
            tensor = _grad(tensor)


def _grad(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


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
        found = survey(module)
        self._module = module
        self._holders = [(holder, contents(holder)) for holder in found.holders]
        self._kinds = [(h, type(h)) for h in found.holders if isinstance(h, nn.Module)]
        self._bindings = [(binding, _bound(binding)) for binding in found.bindings]
        self._classes = [(cls, frozenset(vars(cls))) for cls in found.classes]
        distinct = {id(leaf.value): leaf for leaf in reversed(found.leaves)}.values()
        self._blocks = [
            (leaf.value, copy_block(leaf.value))
            for leaf in distinct
            if isinstance(leaf.value, BLOCKS)
        ]
        self._iterators = [
            (leaf, fingerprint(leaf.value), _copied(leaf.value))
            for leaf in found.leaves
            if isinstance(leaf.value, _COPIED)
        ]
        self._settings = [(read, change, read()) for read, change in _SETTINGS]
        self._random: list[tuple[Any, Any]] = []
        self._tensors: list[_Saved] = []
        if bytes_too:
            generators = [leaf.value for leaf in distinct if isinstance(leaf.value, _RANDOM)]
            self._random = [(value, random_state(value)) for value in generators]
            self._tensors = _save_tensors(found.leaves)

    def restore(self) -> None:
        """Put everything back; what a signal's handler raises meanwhile is raised after that."""
        interrupts: list[BaseException] = []
        while len(interrupts) < _MOST_TRIES:
            try:
                self._restore()
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupts.append(error)
        if interrupts:
            raise interrupts[0]

    def _restore(self) -> None:
        for read, change, value in self._settings:
            if read() != value:
                change(value)
        self._restore_holders()
        self._restore_bindings()
        for value, elements in self._blocks:
            restore_block(value, elements)
        for leaf, mark, copied in self._iterators:
            if fingerprint(leaf.value) != mark:
                self._replace(leaf, copied)
        for generator, state in self._random:
            _set_random_state(generator, state)
        restored: set[int] = set()
        with torch.no_grad():
            for saved in self._tensors:
                _restore_tensor(saved, restored)

    def _restore_holders(self) -> None:
        for module, cls in self._kinds:
            if type(module) is not cls:
                module.__class__ = cls
        for holder, held in self._holders:
            refill(holder, held)

    def _restore_bindings(self) -> None:
        for cls, names in self._classes:
            for name in vars(cls).keys() - names:
                if not name.startswith("__"):
                    delattr(cls, name)
        for binding, value in self._bindings:
            if value is _ABSENT:
                binding.delete()
            elif _bound(binding) is not value:
                binding.write(value)

    def _replace(self, leaf: Leaf, copied: Any) -> None:
        """Put a copy of an iterator that was advanced where the iterator is held."""
        if leaf.kind in WRITABLE:
            write(self._module, leaf.path, copied)
        for binding, value in self._bindings:
            if value is leaf.value:
                binding.write(copied)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()


def _bound(binding: Binding) -> Any:
    try:
        return binding.read()
    except KeyError:
        return _ABSENT


def _copied(iterator: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # copying of itertools, from 3.12 on
        return copy.copy(iterator)


def _set_random_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        if state is not None:
            generator.setstate(state)
    elif isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.state = state


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
