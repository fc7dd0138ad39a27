"""Finds a module's states, reconciles them with what the user declared, and gives the reference.

Order of precedence for an initial value: the declared ``init``, then what the module holds (its
``reset`` method, its weights and its constructor, whichever came last).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import PipelineError, Place, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.first_calls import runs_of, shape_after, unlike_runs
from stateful_pipeline.model.first_run import OBSERVED_STEPS, first_run
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.lazy import Warmed, warm
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.modes import refuse_opaque, refuse_training
from stateful_pipeline.model.observe import Observation, Tracked, observe
from stateful_pipeline.model.phase_states import (
    created_tensors,
    refuse_passing,
    settled_numbers,
    settled_structure,
    with_phase,
)
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.phases import Phase, find_phases
from stateful_pipeline.model.reference import Call, Reference, Tensors
from stateful_pipeline.model.replay import FirstRun, check_replay, observe_varying
from stateful_pipeline.model.same_graph import is_proven
from stateful_pipeline.model.scripted import is_scripted
from stateful_pipeline.model.scripted_places import place_of_code
from stateful_pipeline.model.settle import Wish, declared_only, settle


@dataclass(frozen=True)
class Discovery:
    """A module's states: the reference to drive, and what the user left out."""

    reference: Reference
    ignored: tuple[str, ...] = field(default=())


def discover(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
) -> Discovery:
    """Observe ``module`` and return its states.

    Args:
        module: The module, in the mode in which it is to be exported; left as it was.
        call: Calls its entry point.
        plan: The inputs.
        axes: The dynamic axes.
        wishes: What the user declared, by state name.

    Raises:
        StateError: Something changes that cannot be made a state; with the line that changes it,
            where Python accounts for it.
        SpecError: A declared state is not there.
        StageError: The module itself raises.
    """
    refuse_opaque(module)
    refuse_training(module)
    try:
        return _discover(module, call, plan, axes, wishes)
    except StateError as error:
        if error.place is None and error.attribute is not None:
            places = places_of_changes(module, call, plan, axes, [error.attribute])
            error.place = places.get(error.attribute)
        raise


def _discover(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
) -> Discovery:
    observation, first = first_run(module, call, plan, axes, wishes)
    shapes: Mapping[str, Shape] = {}
    if observation.may_create(_ignored(wishes)):
        refusal: StateError | None = None
        created: tuple[Warmed, Observation] | None = None
        try:
            created = _with_created(module, call, plan, axes, wishes, first)
        except StateError as error:
            refusal = error
        if created is not None:
            phased = _unless_proven(module, created[0], call, plan, axes, wishes, first)
            if phased is not None:
                return phased
            warmed, observation = created
            module, shapes = warmed.module, warmed.shapes
        elif (
            refusal is not None
            or observation.refusal(_ignored(wishes)) is not None
            or observation.may_begin_otherwise()
        ):
            phases = find_phases(module, call, plan, first.sizes)
            phased = _in_phases(module, call, plan, axes, wishes, first, phases.each)
            if phased is not None:
                return phased
            refusal = refusal or observation.refusal(_ignored(wishes), phases.trouble)
            if refusal is not None:
                raise refusal
    reference, tracked = _settled(module, observation, call, plan, axes, wishes, shapes)
    check_replay(reference, tracked, first, _class_place(module), shapes)
    return Discovery(reference, _ignored(wishes))


def _with_created(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    first: FirstRun,
) -> tuple[Warmed, Observation] | None:
    """Return a copy that holds what the first call creates, and what its calls change.

    Raises:
        StateError: No initial values do what the first call does, or later calls create more.
    """
    warmed = warm(module, call, plan, axes, first.sizes, wishes)
    if warmed is None:
        return None
    observation, _ = first_run(warmed.module, call, plan, axes, wishes)
    observation.raise_refused(_ignored(wishes))
    return warmed, observation


def _unless_proven(
    module: nn.Module,
    warmed: Warmed,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    first: FirstRun,
) -> Discovery | None:
    """Return the module in phases if what was tried as initial values is not sure to be right.

    Returns:
        None if it is proven for all inputs, or nothing can be said: a value is empty, there are
        branches on values, or the module cannot be taken apart into phases.
    """
    values = {path: read(warmed.module, path) for path in warmed.shapes}
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in values.values()):
        return None
    phases = find_phases(module, call, plan, first.sizes).each
    try:
        phased = _in_phases(module, call, plan, axes, wishes, first, phases)
    except PipelineError:
        return None
    if phased is None or not isinstance(phased.reference, PhasedReference):
        return None
    if phased.reference.transient > 1:  # later calls differ from each other, too
        return phased
    initial = {
        state.name: values[path]
        for state in phased.reference.states
        for path in state.places
        if path in values
    }
    fixed = [dim for value in plan.inputs for dim in value.shape if isinstance(dim, int)]
    proven = is_proven(phased.reference, initial, plan, probe_sizes(axes, fixed))
    return phased if proven is False else None


def _ignored(wishes: Mapping[str, Wish]) -> tuple[str, ...]:
    return tuple(name for name, wish in wishes.items() if wish.ignore)


def _settled(
    module: nn.Module,
    observation: Observation,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    shapes: Mapping[str, Shape],
    more: Sequence[str] = (),
) -> tuple[Reference, list[Tracked]]:
    """Return the module with the states that were observed, and the states with their own values.

    Args:
        module: The module.
        observation: What its calls did to it.
        call: Calls its entry point.
        plan: The inputs.
        axes: The dynamic axes.
        wishes: What the user declared, by state name.
        shapes: The shapes of states that are known, beside those that the user declared.
        more: Tensors that are states too, if they are not known as such.
    """
    ignored = _ignored(wishes)
    observation.raise_refused(ignored)
    known = {path for state in observation.tracked for path in state.places}
    known |= {refused.path for refused in observation.refused}
    tracked = [state for state in observation.tracked if not set(state.paths) & set(ignored)]
    tracked += [declared_only(module, name) for name in wishes if name not in known]
    for path in more:
        if not any(path in state.places for state in tracked):
            tracked.append(replace(declared_only(module, path), exercised=True))
    renamed = [_under_declared_name(state, wishes) for state in tracked]
    scratch = tuple(
        path for s in observation.tracked if set(s.paths) & set(ignored) for path in s.paths
    )
    reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    late = observe_varying(reference, plan, ignored)
    if late:
        renamed += [_under_declared_name(state, wishes) for state in late]
        reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    return reference, renamed


def _in_phases(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    first: FirstRun,
    phases: Sequence[Phase],
) -> Discovery | None:
    """Return the states of a module that holds other things in its first calls than later.

    Returns:
        None if what it holds does not settle, or the user declared what it holds at first.
    """
    if len(phases) < 2:
        return None
    ignored = _ignored(wishes)
    created = [path for path in created_tensors(phases) if path not in ignored]
    if any(path in wishes and not wishes[path].is_own for path in created):
        return None
    calls, numbers = len(phases) - 1, list(phases[-1].numbers)
    runs = list(runs_of(module, created, call, plan, axes, first.sizes, calls))
    shapes = {
        path: shape_after(
            path, runs, axes, wish.shape if (wish := wishes.get(path)) else None, calls
        )
        for path in created
    }
    steps = [(given,) for given in plan.steps(first.sizes, 0, calls + 2)]
    all_calls = observe(module, lambda given: call(module, given), steps)
    changed = [s.name for s in all_calls.tracked if not s.number and s.name not in ignored]
    refuse_passing(phases, changed)
    changed = [path for path in changed if phases[0].holds(path, phases[-1].structure)]
    like = plan.steps(first.sizes, 0, calls)
    others = unlike_runs(module, numbers, call, like, first.sizes, calls)
    changed += [path for path in settled_numbers(phases, others) if path not in ignored]
    with settled_structure(module, phases, shapes, axes):
        steady, _ = first_run(module, call, plan, axes, wishes)
        settled, tracked = _settled(
            module, steady, call, plan, axes, wishes, shapes, [*created, *changed]
        )
    states = with_phase(settled.states, phases, shapes, axes, wishes, [v.name for v in plan.inputs])
    reference = PhasedReference(module, states, call, axes, settled.scratch, phases, first.sizes)
    # What a call replaces in the first calls alone has no value of its own in the last structure.
    names = {state.name for state in states if set(state.places) & {*created, states[0].name}}
    names |= {state.name for state in states if state.number and state.name not in wishes}
    check_replay(reference, tracked, first, _class_place(module), names)
    return Discovery(reference, ignored)


def places_of_changes(
    module: nn.Module, call: Call, plan: InputPlan, axes: Sequence[Axis], paths: Sequence[str]
) -> dict[str, Place]:
    """Return the line that changes each of ``paths``, for those where one can be found."""
    found: dict[str, Place] = {}
    call = getattr(call, "unchecked", lambda: call)()  # a change that is refused is looked for too
    for sizes in ({a.name: max(a.min, 1) for a in axes}, probe_sizes(axes)):
        wanted = [path for path in paths if path not in found]
        if not wanted:
            break
        try:
            steps = plan.steps(sizes, 0, OBSERVED_STEPS)
            found |= change_places(module, _calls(module, call, steps), wanted)
        except Exception:  # noqa: BLE001, S112 - it may raise at sizes that do not fit
            continue
    return found


def _calls(module: nn.Module, call: Call, steps: Sequence[Tensors]) -> Callable[[], None]:
    def make() -> None:
        for given in steps:
            call(module, given)

    return make


def observe_anew(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
) -> Observation:
    """Observe at the sizes that the module's own states have, which are 1 along dynamic axes."""
    return first_run(module, call, plan, axes, wishes)[0]


def _under_declared_name(state: Tracked, wishes: Mapping[str, Wish]) -> Tracked:
    """Return ``state`` named as the user named it, where it is known under several paths."""
    for path in state.paths:
        if path in wishes:
            return replace(state, name=path, paths=(path, *(p for p in state.paths if p != path)))
    return state


def _class_place(module: nn.Module) -> Place | None:
    """Return where the module's class is written, if that is in a file."""
    if is_scripted(module):
        return place_of_code(module)
    try:
        _, line = inspect.getsourcelines(type(module))
        file = inspect.getsourcefile(type(module))
    except (OSError, TypeError):
        return None
    return None if file is None else Place(file, line)
