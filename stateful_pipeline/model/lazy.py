"""States that a module creates in its first call: nothing, None or an empty tensor before that.

A graph takes and gives tensors of one shape, so such a state needs a place and an initial value of
the shape that it has after the first call, with which the first call does what it does without.
The module is copied, and the copy called once, so that all that it creates is there; then each
value is put back to what it was, and what was created gets a value to begin with:

* what was declared under ``states`` as ``init``;
* length zero along what grows from call to call, and zeros;
* what the module makes of numbers alone in its first call (``torch.full(...)``).

* what was there: a number in the place of which there is a tensor from then on.

Values are taken if outputs and states of several calls are those of the module as it was
constructed, at two sets of sizes: for inputs like the example, and for floats that are small and
large, of either sign, and all alike, so that a first value that depends on them shows.  The user's
module itself stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import PipelineError, StateError
from stateful_pipeline.model.cpp_places import copied_module
from stateful_pipeline.model.entries import PLAIN
from stateful_pipeline.model.equal_tensors import equal_tensors
from stateful_pipeline.model.first_calls import Run, runs_of, shape_after, unlike_runs
from stateful_pipeline.model.holders import leaves, read, write
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Tracked
from stateful_pipeline.model.python_state import carrying
from stateful_pipeline.model.reference import Call, Reference, StateDef, Tensors
from stateful_pipeline.model.replay import alike
from stateful_pipeline.model.settle import Wish, initial_value
from stateful_pipeline.model.snapshot import Snapshot

_MOST_TRIALS = 64
_TOLERANCE = 1e-6
"""Kernels may round otherwise for another memory layout; relative to the size of a value."""


@dataclass(frozen=True)
class Warmed:
    """A copy of a module in which all is there that its first call creates.

    Attributes:
        module: The copy.
        shapes: The shapes of the states that were created, with named axes.
    """

    module: nn.Module
    shapes: Mapping[str, Shape]


def warm(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    sizes: Mapping[str, int],
    wishes: Mapping[str, Wish],
) -> Warmed | None:
    """Return a copy that holds what the first call creates, or None if that is nothing.

    Args:
        module: The module, as it was constructed; left as it was.
        call: Calls its entry point.
        plan: The inputs.
        axes: The dynamic axes.
        sizes: Sizes at which the module runs.
        wishes: What the user declared, by state name.

    Raises:
        StateError: No initial values do what the module does in its first call.
    """
    with Snapshot(module), torch.no_grad():
        try:
            copied, pristine = copied_module(module), copied_module(module)
            call(copied, plan.step(sizes, 0, 0))
            again = copied_module(copied)
            call(again, plan.step(sizes, 0, 1))
        except Exception:  # noqa: BLE001 - it cannot be copied, or a copy is not like it
            return None
        if _paths(again) != _paths(copied):
            return None  # it goes on changing
        also = _changed(copied, pristine)
        created = _put_back(copied, pristine)
    if not created:
        return None
    watched = [*created, *(path for path in also if path not in created)]
    runs = list(runs_of(module, watched, call, plan, axes, sizes))
    like = plan.steps(sizes, 0, len(runs[0].inputs))
    runs += unlike_runs(module, watched, call, like, sizes)
    shapes = {
        path: shape_after(path, runs, axes, wish.shape if (wish := wishes.get(path)) else None)
        for path in created
    }
    known = {axis.name for axis in axes}
    options = [
        list(_candidates(path, first, shapes[path], known, runs[0], wishes.get(path), axes))
        for path, first in created.items()
    ]
    for values in itertools.islice(itertools.product(*options), _MOST_TRIALS):
        for path, value in zip(created, values, strict=True):
            write(copied, path, value)
        if _same(copied, dict(zip(created, values, strict=True)), shapes, call, axes, runs):
            return Warmed(copied, shapes)
    raise StateError(
        f"{' and '.join(created)} {'is' if len(created) == 1 else 'are'} created in the first "
        "call, and no initial value does what that call does: it depends on the inputs",
        attribute=next(iter(created)),
        hint="create it in the constructor, with a flag (a buffer) that says whether it is set; or "
        f"declare its value under `states`: `{next(iter(created))}: {{shape: [...], init: zeros}}`",
    )


def _paths(module: nn.Module) -> set[str]:
    return {leaf.path for leaf in leaves(module)}


def _changed(copied: nn.Module, pristine: nn.Module) -> list[str]:
    """Return what a call changed of what was there before, and every number and text.

    Weights are left out, of which each run would keep copies.
    """
    now = {leaf.path: leaf.value for leaf in leaves(copied)}
    return [
        leaf.path
        for leaf in leaves(pristine)
        if leaf.path in now
        and (isinstance(leaf.value, PLAIN) or not _untouched(now[leaf.path], leaf.value))
    ]


def _untouched(now: Any, before: Any) -> bool:
    if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
        return bool(equal_tensors(now, before))
    return type(now) is type(before)


def _put_back(copied: nn.Module, pristine: nn.Module) -> dict[str, Any]:
    """Put each value back to what it was before a call; return the paths of what is new.

    Returns:
        What was there before, by path.
    """
    before = {leaf.path: leaf.value for leaf in leaves(pristine)}
    created = {}
    for leaf in list(leaves(copied)):
        first = before.get(leaf.path)
        if _is_new(first, leaf.value):
            created[leaf.path] = first
        elif leaf.path in before:
            write(copied, leaf.path, first)
    return created


def _is_new(before: Any, now: Any) -> bool:
    """Whether a state is there now, and nothing, None or an empty tensor of other form before."""
    if before is None:
        return isinstance(now, torch.Tensor) or carrying([now]) is not None
    if carrying([before]) is not None and isinstance(now, torch.Tensor):
        return True
    both = isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor)
    return both and before.numel() == 0 and _changes_form(before.shape, now.shape)


def _changes_form(before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether an empty tensor is no more the beginning of one that grows along one dimension."""
    if len(before) != len(now):
        return True
    return any(a != b for a, b in zip(before, now, strict=True) if a != 0)


def _candidates(
    path: str,
    first: Any,
    shape: Shape,
    known: set[str],
    run: Run,
    wish: Wish | None,
    axes: Sequence[Axis],
) -> Iterator[Any]:
    """Yield initial values to try, of size 1 along dynamic axes, and 0 along what grows."""
    now = run.held[0][path]
    if not isinstance(now, torch.Tensor):
        yield from dict.fromkeys((type(now)(0), now))
        return
    own = [d if isinstance(d, int) else 1 if d in known else 0 for d in shape]
    zeros = torch.zeros(own, dtype=now.dtype)
    if wish is not None and not wish.is_own:
        yield initial_value(_state(path, zeros), wish, axes)
        return
    if carrying([first]) is not None:
        yield torch.full(own, first, dtype=now.dtype)
    yield zeros
    if 0 in own:
        return
    seen = {0.0}
    for tensor in run.made:
        number = tensor.reshape(-1)[0].item()
        if tensor.dtype == now.dtype and number not in seen and number == number:
            seen.add(number)
            yield torch.full(own, number, dtype=now.dtype)


def _state(path: str, initial: torch.Tensor) -> Tracked:
    return Tracked(path, (path,), "attribute", initial, (tuple(initial.shape),), True, True)


def _same(
    module: nn.Module,
    initial: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    call: Call,
    axes: Sequence[Axis],
    runs: Sequence[Run],
) -> bool:
    """Whether a module with these initial values does what the other did from its own start."""
    known = {axis.name for axis in axes}
    states = [
        StateDef(
            path,
            (path,),
            shapes[path],
            value,
            frozenset(d for d in shapes[path] if isinstance(d, str) and d not in known),
        )
        for path, value in initial.items()
        if isinstance(value, torch.Tensor)
    ]
    reference = Reference(module, states, call, axes)
    for run in runs:
        try:
            for step in reference.rollout(run.sizes, run.inputs):
                held = {state.name: run.held[step.index][state.name] for state in states}
                if not _all_alike(run.outputs[step.index], step.outputs):
                    return False
                if not _all_alike(held, step.after):
                    return False
                others = run.held[step.index].items()
                if not all(_alike(read(module, p), v) for p, v in others if p not in held):
                    return False  # the first call does something else, too
        except PipelineError:  # it does not run with such a value
            return False
    return True


def _alike(now: Any, expected: Any) -> bool:
    """Whether the module holds what it would hold had it begun as it was constructed."""
    if isinstance(expected, torch.Tensor):
        return isinstance(now, torch.Tensor) and alike(expected, now, _TOLERANCE)
    if isinstance(expected, PLAIN):
        return type(now) is type(expected) and bool(now == expected or now != now)
    return type(now) is type(expected)


def _all_alike(expected: Tensors, got: Tensors) -> bool:
    if expected.keys() != got.keys():
        return False
    return all(alike(value, got[name], _TOLERANCE) for name, value in expected.items())
