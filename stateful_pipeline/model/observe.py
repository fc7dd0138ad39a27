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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.history import History
from stateful_pipeline.model.holders import WRITABLE, Leaf, is_leaf
from stateful_pipeline.model.parts import Part, covering, overlap, steps_to
from stateful_pipeline.model.python_state import as_tensor, carrying
from stateful_pipeline.model.refusals import Refused, refuse_tensor, refuse_value
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import survey

__all__ = ["Observation", "Refused", "Tracked", "observe"]


_RANK = {"buffer": 0, "parameter": 1, "attribute": 2, "item": 3}
"""Which place names a tensor that is held in several."""


@dataclass(frozen=True)
class Tracked:
    """A tensor or a Python number of the module that a call stores to.

    Attributes:
        name: The path that a reader of the class would use: that of the registration, if any.
        paths: Every path under which the module holds it, ``name`` first.
        kind: How ``name`` is held: ``buffer``, ``parameter``, ``attribute`` or ``item``.
        initial: Its value before the first call, detached and cloned.
        shapes: Its shape before the first observed call and after each.
        exercised: Whether its value was seen to change.
        reassigned: Whether another object was seen in its place.
        number: Whether it is a Python number, of which ``initial`` is the 0-d tensor.
        parts: Tensors of the module that are views of it.
    """

    name: str
    paths: tuple[str, ...]
    kind: str
    initial: torch.Tensor
    shapes: tuple[tuple[int, ...], ...]
    exercised: bool
    reassigned: bool
    number: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Every path under which the module holds it, or a part of it."""
        return self.paths + tuple(path for part in self.parts for path in part.paths)


@dataclass(frozen=True)
class Observation:
    """What several calls of a module did to it."""

    tracked: tuple[Tracked, ...]
    refused: tuple[Refused, ...]
    outputs: tuple[Any, ...]

    def may_create(self, ignored: Iterable[str] = ()) -> bool:
        """Whether the first call may have created something that cannot be a state as it is."""
        left_out = set(ignored)
        if any(refused.path not in left_out for refused in self.refused):
            return True
        return any(
            0 in state.initial.shape and len(set(state.shapes)) > 1 for state in self.tracked
        )

    def may_begin_otherwise(self) -> bool:
        """Whether an empty tensor is replaced in the first call by one that keeps its shape."""
        return any(
            0 in state.initial.shape and len(set(state.shapes[1:])) == 1 < len(set(state.shapes))
            for state in self.tracked
        )

    def refusal(self, ignored: Iterable[str] = (), hint: str | None = None) -> StateError | None:
        """Return the error for the first leaf that cannot be made a state, or None.

        Args:
            ignored: Leaves that are left out.
            hint: What to do about what appears or changes its length, if that is known better.
        """
        left_out = set(ignored)
        for refused in self.refused:
            if refused.path not in left_out:
                return StateError(
                    refused.reason,
                    attribute=refused.path,
                    hint=(refused.is_structural and hint) or refused.hint,
                )
        return None

    def raise_refused(self, ignored: Iterable[str] = ()) -> None:
        """Raise :class:`StateError` for the first leaf that cannot be made a state."""
        refusal = self.refusal(ignored)
        if refusal is not None:
            raise refusal


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
    stored = [group for group in _by_tensor(history) if any(past.stored for past in group)]
    tracked = [_tracked(group) for group in stored]
    refusals = [
        refuse_tensor(group, state.name, state.kind)
        for state, group in zip(tracked, stored, strict=True)
    ]
    tracked, refused = _with_parts(history, tracked)
    refused |= {refusal.path: refusal for refusal in refusals if refusal is not None}
    for path, past in history.items():
        if past.stored and not isinstance(past.first.value, torch.Tensor):
            number = _tracked_number(past)
            if number is None:
                refused[path] = refuse_value(past)
            else:
                tracked.append(number)
    _leave_out_holders(refused, history)
    kept = tuple(state for state in tracked if state.name not in refused)
    return Observation(kept, tuple(refused.values()), outputs)


def _tracked_number(past: History) -> Tracked | None:
    """Return the state that a changing Python number is, or None if it cannot be one."""
    dtype = carrying(past.numbers)
    if past.problem is not None or past.first.kind not in WRITABLE or dtype is None:
        return None
    path, value = past.first.path, past.first.value
    return Tracked(
        name=path,
        paths=(path,),
        kind=past.first.kind,
        initial=as_tensor(value, dtype, path),
        shapes=((),),
        exercised=past.exercised,
        reassigned=True,
        number=True,
    )


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
    ordered = sorted(group, key=lambda past: _RANK.get(past.first.kind, len(_RANK)))
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


def _by_tensor(history: dict[str, History]) -> list[list[History]]:
    """Return the places that hold one tensor, together.

    Places that a call gives other tensors, without a write to the one that they began with, are
    apart from the start: ``[torch.zeros(3)] * n``, of which one item after the other is replaced.
    """
    groups: dict[int, list[History]] = {}
    for past in history.values():
        if isinstance(past.first.value, torch.Tensor):
            groups.setdefault(id(past.first.value), []).append(past)
    found = []
    for group in groups.values():
        parted = len({id(past.last) for past in group}) > 1
        if parted and not any(past.in_place for past in group):
            found += [[past] for past in group]
        else:
            found.append(group)
    return found


def _with_parts(
    history: dict[str, History], tracked: list[Tracked]
) -> tuple[list[Tracked], dict[str, Refused]]:
    """Make one state of tensors that overlap in memory: the one of which the others are parts."""
    groups = _by_storage(history)
    refused: dict[str, Refused] = {}
    parts: dict[str, tuple[Part, ...]] = {}
    left_out: set[str] = set()
    states = {state.name for state in tracked}
    for group in groups:
        names = [members[0].first.path for members in group]
        if not states & {past.first.path for members in group for past in members}:
            continue
        tensors = [members[0].first.value for members in group]
        whole = covering(tensors)
        moved = any(past.reassigned for members in group for past in members)
        if whole is None or moved:
            refused[names[0]] = _apart(names, group[0][0].first.kind, moved=moved)
            continue
        made = [
            (tuple(past.first.path for past in members), steps_to(tensors[whole], tensor))
            for members, tensor in zip(group, tensors, strict=True)
        ]
        parts[names[whole]] = tuple(
            Part(paths, steps or ()) for i, (paths, steps) in enumerate(made) if i != whole
        )
        left_out |= {path for i, (paths, _) in enumerate(made) if i != whole for path in paths}
    kept = [state for state in tracked if state.name not in left_out]
    return [replace(state, parts=parts.get(state.name, ())) for state in kept], refused


def _apart(names: list[str], kind: str, *, moved: bool) -> Refused:
    others = " and ".join(f"'{name}'" for name in names[1:])
    why = "one of them is replaced by another tensor" if moved else "none of them covers the rest"
    hint = "make one of them in forward, as a view of the other"
    return Refused(names[0], kind, f"shares memory with {others}, and {why}", hint)


def _by_storage(history: dict[str, History]) -> list[list[list[History]]]:
    """Return the tensors that overlap in memory, together; each with all places that hold it."""
    storages: dict[int, dict[int, list[History]]] = {}
    for past in history.values():
        start = past.first.value
        if isinstance(start, torch.Tensor) and start.layout == torch.strided and start.numel():
            places = storages.setdefault(start.untyped_storage().data_ptr(), {})
            places.setdefault(id(start), []).append(past)
    found: list[list[list[History]]] = []
    for places in storages.values():
        together: list[list[list[History]]] = []
        for members in places.values():
            tensor = members[0].first.value
            ranked = sorted(members, key=lambda past: _RANK.get(past.first.kind, len(_RANK)))
            met = [g for g in together if any(overlap(tensor, o[0].first.value) for o in g)]
            together = [g for g in together if g not in met]
            together.append([*(other for g in met for other in g), ranked])
        found += [group for group in together if len(group) > 1]
    return found
