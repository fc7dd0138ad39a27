"""Finds the state of a module by running it and looking at everything that can hold any.

A leaf (see :mod:`.holders`) is *stored to* when, after a call, another object is in its place, the
tensor's version counter moved, its bytes differ, or its dtype or shape does.  It is *exercised*
when its value was ever seen to differ.  What is stored to is state, also where the value has not
changed yet: it may at step 100.

Tensors that are one object under several paths (a cache helper that holds the very buffer) are one
:class:`Tracked` state with aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.holders import MUTABLE_LEAVES, Leaf, is_number, leaves
from stateful_pipeline.model.snapshot import Snapshot


@dataclass(frozen=True)
class Tracked:
    """A tensor of the module that a call stores to.

    Attributes:
        name: The path that a reader of the class would use: that of the registration, if any.
        paths: Every path under which the module holds it, ``name`` first.
        kind: How ``name`` is held: ``buffer``, ``parameter``, ``attribute`` or ``item``.
        initial: Its value before the first call, detached and cloned.
        shapes: Its shape before the first observed call and after each.
        exercised: Whether its value was seen to change.
        reassigned: Whether another object was seen in its place.
    """

    name: str
    paths: tuple[str, ...]
    kind: str
    initial: torch.Tensor
    shapes: tuple[tuple[int, ...], ...]
    exercised: bool
    reassigned: bool


@dataclass(frozen=True)
class Refused:
    """A leaf that is stored to and that cannot be made a state, with the reason."""

    path: str
    kind: str
    reason: str
    hint: str


@dataclass(frozen=True)
class Observation:
    """What several calls of a module did to it."""

    tracked: tuple[Tracked, ...]
    refused: tuple[Refused, ...]
    outputs: tuple[Any, ...]

    def raise_refused(self, ignored: Iterable[str] = ()) -> None:
        """Raise :class:`StateError` for the first leaf that cannot be made a state."""
        left_out = set(ignored)
        for refused in self.refused:
            if refused.path not in left_out:
                raise StateError(refused.reason, attribute=refused.path, hint=refused.hint)


@dataclass
class _History:
    first: Leaf
    version: int
    last: Any
    bytes_before: torch.Tensor | None
    shapes: list[tuple[int, ...]]
    stored: bool = False
    exercised: bool = False
    reassigned: bool = False
    problem: str | None = None


def observe(
    module: nn.Module, call: Callable[..., Any], steps: Sequence[tuple[Any, ...]]
) -> Observation:
    """Call ``call(*arguments)`` for each of ``steps`` and report what it changed in ``module``.

    The module is left as it was found, also when a call raises.

    Args:
        module: The module to watch.
        call: The entry point, usually ``module.forward`` or the module itself.
        steps: The arguments of each call.
    """
    with Snapshot(module), torch.no_grad():
        history = {leaf.path: _start(leaf) for leaf in leaves(module)}
        outputs = []
        for arguments in steps:
            outputs.append(call(*arguments))
            now = {leaf.path: leaf for leaf in leaves(module)}
            for path, past in history.items():
                _compare(past, now.get(path))
            for path in now.keys() - history.keys():
                history[path] = _appeared(now[path])
    return _conclude(history, tuple(outputs))


def _start(leaf: Leaf) -> _History:
    if not isinstance(leaf.value, torch.Tensor):
        return _History(leaf, 0, _kept(leaf.value), None, [])
    tensor = leaf.value
    value = tensor.detach().clone()
    return _History(leaf, _version(tensor), tensor, value, [tuple(tensor.shape)])


def _kept(value: Any) -> Any:
    """Return ``value``, or a copy of one that can change without being replaced."""
    return value.copy() if isinstance(value, MUTABLE_LEAVES) else value


def _version(tensor: torch.Tensor) -> int:
    """Return the tensor's version counter, which those made in inference mode do not have."""
    return 0 if tensor.is_inference() else tensor._version


def _appeared(leaf: Leaf) -> _History:
    past = _start(leaf)
    past.stored = True
    past.problem = "appears during a call; it is not there before the first"
    return past


def _compare(past: _History, leaf: Leaf | None) -> None:
    if leaf is None:
        past.stored = past.exercised = True
        past.problem = past.problem or "is gone after a call"
        return
    value = leaf.value
    if isinstance(past.last, torch.Tensor) and isinstance(value, torch.Tensor):
        _compare_tensors(past, value)
    elif not _same_value(past.last, value):
        past.stored = past.exercised = True
        if isinstance(value, torch.Tensor) or isinstance(past.last, torch.Tensor):
            past.problem = past.problem or f"changes from {_type(past.last)} to {_type(value)}"
        past.last = _kept(value)
        if isinstance(value, torch.Tensor):
            past.bytes_before, past.version = value.detach().clone(), _version(value)


def _same_value(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        same: bool = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return same
    return bool(a == b or (a != a and b != b))  # NaN is itself


def _compare_tensors(past: _History, value: torch.Tensor) -> None:
    before = past.bytes_before
    assert before is not None  # every tensor's history starts with its value
    if value is not past.last:
        past.stored = past.reassigned = True
    elif _version(value) != past.version:
        past.stored = True
    differs = value.dtype != before.dtype or not _equal(value, before)
    if differs:
        past.stored = past.exercised = True
        past.bytes_before = value.detach().clone()
    if value.dtype != before.dtype:
        past.problem = past.problem or f"changes its dtype from {before.dtype} to {value.dtype}"
    past.last = value
    past.version = _version(value)
    past.shapes.append(tuple(value.shape))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have the same shape and bits, so that NaN equals NaN."""
    if a.shape != b.shape or a.layout != b.layout:
        return False
    if a.layout != torch.strided or a.is_quantized:
        return torch.equal(a, b)
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def _type(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _conclude(history: dict[str, _History], outputs: tuple[Any, ...]) -> Observation:
    groups: dict[int, list[_History]] = {}
    for past in history.values():
        if isinstance(past.first.value, torch.Tensor):
            groups.setdefault(id(past.first.value), []).append(past)
    stored = [group for group in groups.values() if any(past.stored for past in group)]
    tracked = [_tracked(group) for group in stored]
    refused = _shared_storage(history, tracked)
    for state, group in zip(tracked, stored, strict=True):
        problem = next((past.problem for past in group if past.problem), None)
        problem = problem or _divergence(group)
        if problem is not None:
            hint = "make it a registered buffer that has its final dtype from the start"
            refused[state.name] = Refused(state.name, state.kind, problem, hint)
    for path, past in history.items():
        if past.stored and not isinstance(past.first.value, torch.Tensor):
            refused[path] = _not_a_tensor(path, past)
    kept = tuple(state for state in tracked if state.name not in refused)
    return Observation(kept, tuple(refused.values()), outputs)


def _tracked(group: list[_History]) -> Tracked:
    rank = {"buffer": 0, "parameter": 1, "attribute": 2, "item": 3}
    ordered = sorted(group, key=lambda past: rank[past.first.kind])
    first = ordered[0]
    start = first.first.value
    return Tracked(
        name=first.first.path,
        paths=tuple(past.first.path for past in ordered),
        kind=first.first.kind,
        # The snapshot has been restored by now, so the very tensor holds its first value again.
        initial=start.detach().clone(),
        shapes=tuple(first.shapes),
        exercised=any(past.exercised for past in group),
        reassigned=any(past.reassigned for past in group),
    )


def _divergence(group: list[_History]) -> str | None:
    """Say how paths that began as one tensor ended as several, or None if they did not."""
    if len({id(past.last) for past in group}) == 1:
        return None
    names = " and ".join(f"'{past.first.path}'" for past in group)
    return f"{names} are one tensor before the call and two after it"


def _not_a_tensor(path: str, past: _History) -> Refused:
    start = past.first.value
    if is_number(start):
        reason = f"a Python {type(start).__name__} that changes from call to call"
        hint = "hold it in a 0-d tensor: self.register_buffer(name, torch.tensor(value))"
    elif past.problem is not None:
        reason, hint = past.problem, "give it its final type and shape in the constructor"
    else:
        reason = f"a {_type(start)} that changes from call to call"
        hint = "hold what must survive in a registered buffer"
    return Refused(path, past.first.kind, f"{reason} is not supported yet", hint)


def _shared_storage(history: dict[str, _History], tracked: list[Tracked]) -> dict[str, Refused]:
    """Refuse states that share memory with another tensor of the module (views of one buffer)."""
    users: dict[int, set[int]] = {}
    for past in history.values():
        start = past.first.value
        if isinstance(start, torch.Tensor) and start.layout == torch.strided and start.numel():
            users.setdefault(start.untyped_storage().data_ptr(), set()).add(id(start))
    refused = {}
    for state in tracked:
        start = history[state.name].first.value
        if start.numel() and len(users.get(start.untyped_storage().data_ptr(), ())) > 1:
            refused[state.name] = Refused(
                state.name,
                state.kind,
                "shares memory with another tensor of the module, which is not supported yet",
                "make one of them in forward, as a view of the other",
            )
    return refused
