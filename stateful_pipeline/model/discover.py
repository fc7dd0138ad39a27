"""Finds a module's states, reconciles them with what the user declared, and gives the reference.

Order of precedence for an initial value: the declared ``init``, then what the module holds (its
``reset`` method, its weights and its constructor, whichever came last).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import Place, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.cpp_equality import check_form_calls, check_form_steps
from stateful_pipeline.model.cpp_forms import with_explicit_forms
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.created_states import with_created
from stateful_pipeline.model.first_run import OBSERVED_STEPS, first_run
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.modes import refuse_opaque, refuse_training
from stateful_pipeline.model.observe import Observation
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.reference import Call, Reference, Tensors
from stateful_pipeline.model.replay import check_replay
from stateful_pipeline.model.scripted import is_scripted
from stateful_pipeline.model.scripted_places import place_of_code
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.settled_states import Setting, settled_states
from stateful_pipeline.model.sizes import corner_sizes


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
        discovery = _discover(module, call, plan, axes, wishes)
        sizes = corner_sizes(axes)[:2]
        check_form_calls(discovery.reference, plan, sizes)
        unseen = _stored_by_forms(discovery.reference, plan, axes, wishes)
        if unseen:
            wishes = {**dict.fromkeys(unseen, Wish()), **wishes}
            discovery = _discover(module, call, plan, axes, wishes)
        check_form_steps(discovery.reference, plan, sizes)
        return discovery
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
    setting, place = Setting(call, plan, axes, wishes), _class_place(module)
    observation, first = first_run(module, call, plan, axes, wishes)
    shapes: Mapping[str, Shape] = {}
    if observation.may_create(setting.ignored):
        created = with_created(module, observation, setting, first, place)
        if isinstance(created, PhasedReference):
            return Discovery(created, setting.ignored)
        if created is not None:
            warmed, observation = created
            module, shapes = warmed.module, warmed.shapes
    reference, tracked = settled_states(module, observation, setting, shapes)
    check_replay(reference, tracked, first, place, shapes)
    return Discovery(reference, setting.ignored)


def _stored_by_forms(
    reference: Reference, plan: InputPlan, axes: Sequence[Axis], wishes: Mapping[str, Wish]
) -> list[str]:
    """Return what explicit forms store to in C++ objects, though it was not seen to change.

    What an object pickles says nothing of what was stored with the same value.
    """
    explicit = with_explicit_forms(reference, plan)
    if explicit is reference:
        return []
    observation = observe_anew(explicit.module, explicit.call, plan, axes, wishes)
    inside = tuple(f"{path}." for path in cpp_objects(reference.module))
    known = {place for state in reference.states for place in state.places}
    found = [state.name for state in observation.tracked if state.name.startswith(inside)]
    return [name for name in found if name not in known]


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
