"""Finds the state of a module by running it and looking at everything that can hold any.

Everything that a call could change (see :mod:`.survey`) is followed from call to call (see
:mod:`.history`).  What is stored to is state, also where the value has not changed yet: it may at
step 100.  A tensor that is held where another can be put is a :class:`Tracked` state; anything else
is :class:`Refused`.

Tensors that are one object under several paths (a cache helper that holds the very buffer) are one
:class:`Tracked` state with aliases.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.history import History
from stateful_pipeline.model.holders import Leaf, is_leaf
from stateful_pipeline.model.refusals import Refused, refuse_tensor, refuse_value
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import survey

__all__ = ["Observation", "Refused", "Tracked", "observe"]


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
    _refuse_lazy(survey(module).leaves)
    with Snapshot(module), torch.no_grad():
        history = {leaf.path: History.start(leaf) for leaf in survey(module).leaves}
        outputs = []
        for arguments in steps:
            outputs.append(call(*arguments))
            now = {leaf.path: leaf for leaf in survey(module).leaves}
            for path, past in history.items():
                past.compare(now.get(path))
            for path, leaf in now.items():
                if path not in history:
                    history[path] = History.appeared(leaf)
    return _conclude(history, tuple(outputs))


def _conclude(history: dict[str, History], outputs: tuple[Any, ...]) -> Observation:
    groups: dict[int, list[History]] = {}
    for past in history.values():
        if isinstance(past.first.value, torch.Tensor):
            groups.setdefault(id(past.first.value), []).append(past)
    stored = [group for group in groups.values() if any(past.stored for past in group)]
    tracked = [_tracked(group) for group in stored]
    refused = _shared_storage(history, tracked)
    for state, group in zip(tracked, stored, strict=True):
        refusal = refuse_tensor(group, state.name, state.kind)
        if refusal is not None:
            refused[state.name] = refusal
    for path, past in history.items():
        if past.stored and not isinstance(past.first.value, torch.Tensor):
            refused[path] = refuse_value(past)
    _leave_out_holders(refused, history)
    kept = tuple(state for state in tracked if state.name not in refused)
    return Observation(kept, tuple(refused.values()), outputs)


def _leave_out_holders(refused: dict[str, Refused], history: dict[str, History]) -> None:
    """Drop the refusal of a container's length where what it holds is refused itself."""
    for path in list(refused):
        parent = path.rpartition(".")[0]
        if parent not in refused or parent not in history or is_leaf(history[parent].first):
            continue
        # Which method is held says more than its parts do.
        method = isinstance(history[parent].first.value, types.MethodType)
        refused.pop(path if method else parent, None)


def _refuse_lazy(leaves: Iterable[Leaf]) -> None:
    for leaf in leaves:
        if is_lazy(leaf.value):
            raise StateError(
                "has no shape before the first call",
                attribute=leaf.path,
                hint="call the module once before you export it",
            )


def _tracked(group: list[History]) -> Tracked:
    rank = {"buffer": 0, "parameter": 1, "attribute": 2, "item": 3}
    ordered = sorted(group, key=lambda past: rank.get(past.first.kind, len(rank)))
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


def _shared_storage(history: dict[str, History], tracked: list[Tracked]) -> dict[str, Refused]:
    """Refuse states that share memory with another tensor of the module (views of one buffer)."""
    users: dict[int, set[int]] = {}
    for past in history.values():
        start = past.first.value
        if isinstance(start, torch.Tensor) and start.layout == torch.strided and start.numel():
            users.setdefault(start.untyped_storage().data_ptr(), set()).add(id(start))
    refused = {}
    for state in tracked:
        start = history[state.name].first.value
        if start.layout != torch.strided or not start.numel():
            continue
        if len(users.get(start.untyped_storage().data_ptr(), ())) > 1:
            refused[state.name] = Refused(
                state.name,
                state.kind,
                "shares memory with another tensor of the module, which is not supported yet",
                "make one of them in forward, as a view of the other",
            )
    return refused
