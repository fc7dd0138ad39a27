"""Finds the states of a module whose first calls create some: with constants, or in phases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, Place, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.first_calls import runs_of, shape_after, unlike_runs
from stateful_pipeline.model.first_run import first_run
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.lazy import Warmed, warm
from stateful_pipeline.model.observe import Observation, observe
from stateful_pipeline.model.phase_states import (
    created_tensors,
    refuse_passing,
    settled_numbers,
    settled_structure,
    with_phase,
)
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.phases import Phase, find_phases
from stateful_pipeline.model.replay import FirstRun, check_replay
from stateful_pipeline.model.same_graph import is_proven
from stateful_pipeline.model.settled_states import Setting, settled_states


def with_created(
    module: nn.Module,
    observation: Observation,
    setting: Setting,
    first: FirstRun,
    place: Place | None,
) -> PhasedReference | tuple[Warmed, Observation] | None:
    """Return what becomes of a module whose first calls may create states.

    Args:
        module: The module, as it was constructed.
        observation: What its first calls did to it.
        setting: How it is called, and what was declared.
        first: Its first calls.
        place: Where its class is written, for messages.

    Returns:
        The module in phases; or a copy in which all is there that the first call creates, with
        constants, and what its calls change; or None if nothing is created.

    Raises:
        StateError: What it holds does not settle, or an initial value that was declared does not do
            what the first call does.
    """
    refusal: StateError | None = None
    created: tuple[Warmed, Observation] | None = None
    try:
        created = _with_constants(module, setting, first)
    except StateError as error:
        refusal = error
    if created is not None:
        return _unless_proven(module, created[0], setting, first, place) or created
    refused = refusal is not None or observation.refusal(setting.ignored) is not None
    if not refused and not observation.may_begin_otherwise():
        return None
    phases = find_phases(module, setting.call, setting.plan, first.sizes)
    phased = _in_phases(module, setting, first, phases.each, place)
    refusal = refusal or observation.refusal(setting.ignored, phases.trouble)
    if phased is None and refusal is not None:
        raise refusal
    return phased


def _with_constants(
    module: nn.Module,
    setting: Setting,
    first: FirstRun,
) -> tuple[Warmed, Observation] | None:
    """Return a copy that holds what the first call creates, and what its calls change.

    Raises:
        StateError: No initial values do what the first call does, or later calls create more.
    """
    warmed = warm(module, setting.call, setting.plan, setting.axes, first.sizes, setting.wishes)
    if warmed is None:
        return None
    observation, _ = first_run(warmed.module, *setting.each)
    observation.raise_refused(setting.ignored)
    return warmed, observation


def _unless_proven(
    module: nn.Module,
    warmed: Warmed,
    setting: Setting,
    first: FirstRun,
    place: Place | None,
) -> PhasedReference | None:
    """Return the module in phases if what was tried as initial values is not sure to be right.

    Returns:
        None if it is proven for all inputs, or nothing can be said: a value is empty, there are
        branches on values, or the module cannot be taken apart into phases.
    """
    values = {path: read(warmed.module, path) for path in warmed.shapes}
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in values.values()):
        return None
    plan = setting.plan
    phases = find_phases(module, setting.call, plan, first.sizes).each
    try:
        phased = _in_phases(module, setting, first, phases, place)
    except PipelineError:
        return None
    if phased is None:
        return None
    if phased.transient > 1:  # later calls differ from each other, too
        return phased
    initial = {
        state.name: values[path]
        for state in phased.states
        for path in state.places
        if path in values
    }
    fixed = [dim for value in plan.inputs for dim in value.shape if isinstance(dim, int)]
    proven = is_proven(phased, initial, plan, probe_sizes(setting.axes, fixed))
    return phased if proven is False else None


def _in_phases(
    module: nn.Module,
    setting: Setting,
    first: FirstRun,
    phases: Sequence[Phase],
    place: Place | None,
) -> PhasedReference | None:
    """Return the states of a module that holds other things in its first calls than later.

    Returns:
        None if what it holds does not settle, or the user declared what it holds at first.
    """
    if len(phases) < 2:
        return None
    call, plan, axes, wishes = setting.each
    ignored = setting.ignored
    created = [path for path in created_tensors(phases) if path not in ignored]
    if any(path in wishes and not wishes[path].is_own for path in created):
        return None
    calls, numbers = len(phases) - 1, list(phases[-1].numbers)
    runs = list(runs_of(module, created, call, plan, axes, first.sizes, calls))
    shapes = {path: shape_after(path, runs, axes, setting.shape(path), calls) for path in created}
    steps = [(given,) for given in plan.steps(first.sizes, 0, calls + 2)]
    all_calls = observe(module, lambda given: call(module, given), steps)
    changed = [s.name for s in all_calls.tracked if not s.number and s.name not in ignored]
    refuse_passing(phases, changed)
    changed = [path for path in changed if phases[0].holds(path, phases[-1].structure)]
    like = plan.steps(first.sizes, 0, calls)
    others = unlike_runs(module, numbers, call, like, first.sizes, calls)
    changed += [path for path in settled_numbers(phases, others) if path not in ignored]
    with settled_structure(module, phases, shapes, axes):
        steady, _ = first_run(module, *setting.each)
        settled, tracked = settled_states(module, steady, setting, shapes, [*created, *changed])
    states = with_phase(settled.states, phases, shapes, axes, wishes, [v.name for v in plan.inputs])
    reference = PhasedReference(module, states, call, axes, settled.scratch, phases, first.sizes)
    # What a call replaces in the first calls alone has no value of its own in the last structure.
    names = {state.name for state in states if set(state.places) & {*created, states[0].name}}
    names |= {state.name for state in states if state.number and state.name not in wishes}
    check_replay(reference, tracked, first, place, names)
    return reference
