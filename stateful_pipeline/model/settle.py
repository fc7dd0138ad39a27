"""Settles the shapes and the initial values of a module's states.

A tensor that no call stores to may have to follow an axis too: a speaker embedding of batch 1, or
the cache of a convolution that needs none (``[1, C, 0]``), is concatenated with what has the
batch's size.  Where the module does not run otherwise, such tensors become states that stay as they
are.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import PipelineError, SpecError, StateError
from stateful_pipeline.model.axes import ShapeFinder
from stateful_pipeline.model.holders import WRITABLE, leaves
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Tracked
from stateful_pipeline.model.python_state import as_tensor, carrying
from stateful_pipeline.model.reference import Call, Reference
from stateful_pipeline.model.sizes import fix_axes, fixed_sizes


@dataclass(frozen=True)
class Wish:
    """What the user declared about one state.

    Attributes:
        shape: Its shape with named axes, or None to find it.
        out_shape: Its shape after a step, for one that grows; checked against the graph.
        dtype: The dtype that it must have, or None.
        value: Its initial value: ``"buffer"``, ``"zeros"``, a number, or an array.
        ignore: Leave it out: it keeps its initial value.
    """

    shape: Shape | None = None
    out_shape: Shape | None = None
    dtype: str | None = None
    value: Any = "buffer"
    ignore: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the initial value is what the module holds."""
        return isinstance(self.value, str) and self.value == "buffer"


def settle(
    module: nn.Module,
    tracked: Sequence[Tracked],
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    scratch: Sequence[str],
    shapes: Mapping[str, Shape],
) -> Reference:
    """Return the module with its states, shapes and initial values settled.

    Args:
        module: The module.
        tracked: The states that were observed or declared.
        call: Calls its entry point.
        plan: The inputs.
        axes: The dynamic axes.
        wishes: What the user declared, by state name.
        scratch: Paths of tensors that change and that nobody reads.
        shapes: The shapes of states that are known, beside those that the user declared.

    Raises:
        StateError: No choice of shapes lets the module run at sizes other than its own.
        StageError: The module itself raises.
    """
    try:
        return _settled(module, tracked, call, plan, axes, wishes, scratch, shapes)
    except PipelineError as error:
        known = {path for state in tracked for path in state.places} | set(scratch)
        more = _that_may_follow(module, known)
        if not axes or not more:
            raise
        refused = _naming(error, more)

    def settled(extra: Sequence[Tracked]) -> Reference | None:
        try:
            return _settled(module, [*tracked, *extra], call, plan, axes, wishes, scratch, shapes)
        except PipelineError:
            return None

    found = settled(more)
    if found is None:
        raise refused
    follow = {s.name for s in found.states if any(isinstance(dim, str) for dim in s.shape)}
    needed = [state for state in more if state.name in follow]
    for state in list(needed):
        fewer = [other for other in needed if other is not state]
        if (without := settled(fewer)) is not None:
            found, needed = without, fewer
    return settled(needed) or found


def _that_may_follow(module: nn.Module, known: set[str]) -> list[Tracked]:
    """Return the tensors, parameters left out, that no call stores to and that have a size of 1."""
    found = [
        leaf.path
        for leaf in leaves(module)
        if isinstance(leaf.value, torch.Tensor)
        and leaf.kind in WRITABLE
        and not isinstance(leaf.value, nn.Parameter)
        and leaf.path not in known
        and 1 in leaf.value.shape
    ]
    made: dict[str, Tracked] = {}
    for path in found:
        if not any(path in state.paths for state in made.values()):
            made[path] = declared_only(module, path)
    return list(made.values())


def _naming(error: PipelineError, more: Sequence[Tracked]) -> PipelineError:
    """Return ``error`` with the names of tensors that may be to blame."""
    names = ", ".join(f"{state.name}{list(state.initial.shape)}" for state in more[:6])
    error.hint = (
        f"{error.hint or 'declare shapes under `states`'}; these may follow an axis too: {names}"
    )
    return error


def _settled(
    module: nn.Module,
    tracked: Sequence[Tracked],
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    scratch: Sequence[str],
    shapes: Mapping[str, Shape],
) -> Reference:
    """Return the module with the states ``tracked``, their shapes and initial values settled."""
    declared = {n: w.shape for n, w in wishes.items() if w.shape is not None and not w.ignore}
    initial = {s.name: initial_value(s, wishes.get(s.name), axes) for s in tracked}
    states = ShapeFinder(module, tracked, call, plan, axes, {**shapes, **declared}, initial).find()
    states = tuple(
        replace(state, out_shape=_out_shape(wishes.get(state.name), axes)) for state in states
    )
    return Reference(module, states, call, axes, scratch)


def _out_shape(wish: Wish | None, axes: Sequence[Axis]) -> Shape | None:
    if wish is None or wish.out_shape is None:
        return None
    return fix_axes(wish.out_shape, fixed_sizes(axes))


def declared_only(module: nn.Module, name: str) -> Tracked:
    """Return a state that the user declares and no call was seen to store to."""
    found = {leaf.path: leaf for leaf in leaves(module)}
    tensors = {path: leaf for path, leaf in found.items() if isinstance(leaf.value, torch.Tensor)}
    leaf = tensors.get(name)
    if leaf is None and name in found and (dtype := carrying([found[name].value])) is not None:
        return Tracked(
            name=name,
            paths=(name,),
            kind=found[name].kind,
            initial=as_tensor(found[name].value, dtype, name),
            shapes=((),),
            exercised=False,
            reassigned=False,
            number=True,
        )
    if leaf is None:
        close = difflib.get_close_matches(name, tensors, 1)
        raise SpecError(
            f"the model has no tensor and no number called '{name}'",
            key=_key(name),
            hint=f"did you mean '{close[0]}'?" if close else "`pipeline inspect` lists its states",
        )
    paths = tuple(path for path, other in tensors.items() if other.value is leaf.value)
    return Tracked(
        name=name,
        paths=(name, *(path for path in paths if path != name)),
        kind=leaf.kind,
        initial=leaf.value.detach().clone(),
        shapes=(tuple(leaf.value.shape),),
        exercised=False,
        reassigned=False,
    )


def initial_value(state: Tracked, wish: Wish | None, axes: Sequence[Axis]) -> torch.Tensor:
    """Return the value of a state before the first call: what the user declared, or its own.

    Raises:
        StateError: What is declared does not fit the state.
    """
    if wish is None:
        return state.initial
    held = state.initial
    if wish.dtype is not None and str(held.dtype) != f"torch.{wish.dtype}":
        raise StateError(
            f"is declared as {wish.dtype}, the model holds {str(held.dtype)[6:]}",
            attribute=state.name,
        )
    shape = _stored_shape(state, wish, {axis.name for axis in axes})
    if wish.is_own:
        return held
    if isinstance(wish.value, str):
        return torch.zeros(shape, dtype=held.dtype)
    value = torch.as_tensor(np.asarray(wish.value)).to(held.dtype)
    if value.ndim == 0:
        return torch.full(shape, value.item(), dtype=held.dtype)
    if value.ndim != len(shape):
        raise StateError(
            f"the declared initial value has shape {list(value.shape)}, "
            f"the state {list(held.shape)}",
            attribute=state.name,
        )
    return value


def _stored_shape(state: Tracked, wish: Wish, known: set[str]) -> tuple[int, ...]:
    """Return the shape of a filled initial value: size 1 along named axes of the inputs."""
    held = tuple(state.initial.shape)
    if wish.shape is None:
        return held
    pairs = zip(wish.shape, held, strict=False)
    fits = all(isinstance(dim, str) or size in (1, dim) for dim, size in pairs)
    if len(wish.shape) != len(held) or (wish.is_own and not fits):
        said = ", ".join(str(dim) for dim in wish.shape)
        raise SpecError(
            f"state '{state.name}' is declared as [{said}], the model holds {list(held)}",
            key=_key(state.name),
            hint="a dimension is the size that it holds, or an axis where it holds size 1",
        )
    return tuple(
        dim if isinstance(dim, int) else 1 if dim in known else size
        for dim, size in zip(wish.shape, held, strict=True)
    )


def _key(name: str) -> str:
    return f'states["{name}"]' if "." in name else f"states.{name}"
