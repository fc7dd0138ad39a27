"""Compiles a module to TorchScript that is deployed as it is, with its states inside it.

Python's source goes through the same forms as in the TorchScript front end, so that it means in
C++ what it means in Python.  Everything happens on copies: a module's C++ objects hold states that
calls change, and so do the calls by which types are learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model import compiling, jit
from stateful_pipeline.model.cpp_objects import give_written, same_state
from stateful_pipeline.model.cpp_places import own_copy
from stateful_pipeline.model.dropped import refuse_dropped_writes
from stateful_pipeline.model.holders import write
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call, StateDef, exact_kernels, put
from stateful_pipeline.model.scripted import is_scripted, members, methods, submodules
from stateful_pipeline.model.scripting import compiled, refusal, refuse_uncompiled
from stateful_pipeline.model.seen_attributes import before_call, note_attributes
from stateful_pipeline.model.seen_types import SeenTypes, watching
from stateful_pipeline.model.settle import declared_only, initial_value
from stateful_pipeline.model.shells import scriptable
from stateful_pipeline.model.subject import Subject

_WATCHED_STEPS = 4


@dataclass(frozen=True)
class Deployable:
    """A module's TorchScript.

    Attributes:
        module: It shares nothing with the module that it was made from, unless it is that one.
        reset: The method that restores the initial state; None if it has none.
        without_reset: Why it has none, though there is one in Python.
    """

    module: torch.jit.ScriptModule
    reset: str | None = None
    without_reset: str | None = None


@dataclass
class _Watched:
    """What a few calls have shown.

    Attributes:
        seen: The types.
        numbers: Attributes that are whole numbers at first and others later, by path: as floats.
    """

    seen: SeenTypes = field(default_factory=SeenTypes)
    numbers: dict[str, float] = field(default_factory=dict)


def deployable(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
    reset: str | None = None,
) -> Deployable:
    """Compile ``module``, and leave it as it was; a ScriptModule is taken as it is.

    Args:
        module: In the mode and the state in which it is to be deployed.
        call: Calls its entry point.
        plan: The inputs.
        sizes: Sizes of the axes; where the module runs at none of them, nothing is learnt of types.
        reset: The method that restores the initial state; left out where it does not compile.

    Raises:
        StageError: It has no TorchScript; with the compiler's reason and the user's line.
        StateError: A statement would not write where it does in Python.
    """
    method = getattr(call, "method", "forward")
    if is_scripted(module):
        return Deployable(module, reset if reset in methods(module) else None)
    jit.require_supported()
    compiling.require_supported()
    watched = _watched(module, call, plan, sizes)
    if reset is None:
        return Deployable(_compile(module, method, (method,), watched))
    try:
        made = _compile(module, method, (method, reset), watched)
        reason = _not_restored(made, reset, call, plan, sizes)
    except PipelineError as error:  # where it is not because of the reset, the same comes again
        reason = error.message
    if reason is None:
        return Deployable(made, reset)
    return Deployable(_compile(module, method, (method,), watched), without_reset=reason)


def initial_module(subject: Subject) -> nn.Module:
    """Return the module in the initial state that the user declares: a copy, where it is another.

    Raises:
        SpecError: A declared state is not there.
        StateError: A declared value does not fit its state.
        StageError: The module cannot be copied.
    """
    declared = {n: w for n, w in subject.wishes.items() if not (w.is_own or w.ignore)}
    if not declared:
        return subject.module
    copied = own_copy(subject.module)
    for name, wish in declared.items():
        held = declared_only(copied, name)
        if held.number and isinstance(wish.value, float):  # it may hold a whole number until then
            write(copied, name, wish.value)
            continue
        value = initial_value(held, wish, subject.axes)
        shape, kind, number = tuple(value.shape), held.kind, held.number
        put(copied, StateDef(name, held.paths, shape, value, kind=kind, number=number), value)
    give_written()
    return copied


def _watched(
    module: nn.Module, call: Call, plan: InputPlan, sizes: Sequence[Mapping[str, int]]
) -> _Watched:
    """Call copies of the module at each of ``sizes`` until one runs; return what that shows."""
    for each in sizes:
        copied = own_copy(module)
        before = before_call(copied)
        first, *others = plan.steps(each, 0, _WATCHED_STEPS)
        with torch.no_grad(), exact_kernels(), watching() as seen:
            if not _runs(copied, call, [first]):
                continue
            note_attributes(seen, before, copied)
            after = before_call(copied)
            _runs(copied, call, others)
        numbers = {
            path: float(value)
            for path, value in before.items()
            if type(value) is int and type(after.get(path)) is float
        }
        return _Watched(seen, numbers)
    return _Watched()


def _runs(module: nn.Module, call: Call, steps: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """Take some steps; return whether all of them could be taken."""
    try:
        for given in steps:
            call(module, given)
    except Exception:  # noqa: BLE001 - any module may raise anything at sizes that do not fit it
        return False
    return True


def _compile(
    module: nn.Module, method: str, exports: Sequence[str], watched: _Watched
) -> torch.jit.ScriptModule:
    copied = own_copy(module)
    for path, number in watched.numbers.items():
        write(copied, path, number)
    try:
        with compiling.exported(type(copied), exports), scriptable(copied, watched.seen) as shells:
            made = compiled(copied, watched.seen, shells)
            refuse_uncompiled(copied, made, method)
            refuse_dropped_writes(copied, method, jit.inlined_graph(made, method))
    except PipelineError:
        raise
    except Exception as error:  # the compiler raises what it likes, and runs the user's code
        raise refusal(error) from error
    for path, limit in shells.limits.items():
        raise StageError(
            f"'{path}' is a deque of at most {limit} items; TorchScript has lists, which keep all",
            stage="script",
            hint="use a list, and remove the first item yourself",
        )
    return made


def _not_restored(
    made: torch.jit.ScriptModule,
    reset: str,
    call: Call,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
) -> str | None:
    """Return why the method ``reset`` is no way back to the initial state, or None if it is.

    TorchScript may compile it to something else.  It gives each set of attributes of a class a
    type of its own, and ``isinstance(layer, Class)`` holds for the type alone that this process
    compiled first: where others are asked for, the branch is dropped (torch 2.13).
    """
    reason = f"'{reset}' could not be tried: the module runs at no sizes with the state it has"
    for each in sizes:
        copied = own_copy(made)
        if not _runs(copied, call, plan.steps(each, 0, _WATCHED_STEPS)):
            continue
        try:
            getattr(copied, reset)()
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            reason = f"'{reset}' raises in TorchScript: {type(error).__name__}: {error}"
            continue
        pairs = zip(_values(made), _values(copied), strict=True)
        others = [path for (path, old), (_, new) in pairs if not same_state(old, new)]
        if not others:
            return None
        reason = f"'{reset}' does not restore '{others[0]}' in TorchScript"
    return reason


def _values(module: nn.Module, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a ScriptModule holds, with its path."""
    for name, value, kind in members(module):
        if kind != "module":
            yield f"{path}{name}", value
    for name, inner in submodules(module).items():
        yield from _values(inner, f"{path}{name}.")
