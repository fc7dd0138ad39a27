"""Finds a module's states, reconciles them with what the user declared, and gives the reference.

Order of precedence for an initial value: the declared ``init``, then what the module holds (its
``reset`` method, its weights and its constructor, whichever came last).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import PipelineError, Place, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.lazy import warm
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.modes import refuse_opaque, refuse_training
from stateful_pipeline.model.observe import Observation, Tracked, observe
from stateful_pipeline.model.reference import Call, Reference, StateDef, Tensors, module_raised
from stateful_pipeline.model.replay import FirstRun, check_replay, observe_varying, recording
from stateful_pipeline.model.scripted import is_scripted
from stateful_pipeline.model.scripted_places import place_of_code
from stateful_pipeline.model.settle import Wish, declared_only, settle

OBSERVED_STEPS = 4


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
    observation, first = _first_run(module, call, plan, axes, wishes)
    ignored = tuple(name for name, wish in wishes.items() if wish.ignore)
    shapes: Mapping[str, Shape] = {}
    if observation.may_create(ignored):
        warmed = warm(module, call, plan, axes, first.sizes, wishes)
        if warmed is not None:
            module, shapes = warmed.module, warmed.shapes
            observation, _ = _first_run(module, call, plan, axes, wishes)
    observation.raise_refused(ignored)
    known = {path for state in observation.tracked for path in state.places}
    known |= {refused.path for refused in observation.refused}
    tracked = [state for state in observation.tracked if not set(state.paths) & set(ignored)]
    tracked += [declared_only(module, name) for name in wishes if name not in known]
    renamed = [_under_declared_name(state, wishes) for state in tracked]
    scratch = tuple(
        path for s in observation.tracked if set(s.paths) & set(ignored) for path in s.paths
    )
    reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    late = observe_varying(reference, plan, ignored)
    if late:
        renamed += [_under_declared_name(state, wishes) for state in late]
        reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    check_replay(reference, renamed, first, _class_place(module), shapes)
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
    return _first_run(module, call, plan, axes, wishes)[0]


def _first_run(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
) -> tuple[Observation, FirstRun]:
    """Observe the module's first calls; return what changed, and inputs and outputs."""
    # Sizes first as the module's own states have them, then others, then 1 where only they fit.
    least = {axis.name: axis.min for axis in axes}
    tries = [least, probe_sizes(axes), {a.name: a.opt or 2 for a in axes}]
    tries += [{**least, axis.name: 1} for axis in axes if axis.min > 1]
    tries += [dict.fromkeys(least, 1)]
    failure: Exception | None = None
    for sizes in tries:
        steps = [(given,) for given in plan.steps(sizes, 0, OBSERVED_STEPS)]
        run = FirstRun(sizes)
        try:
            return observe(module, recording(module, call, run), steps), run
        except PipelineError:
            raise
        except Exception as error:  # noqa: BLE001 - any module may raise anything; raised below
            failure = failure or error
    assert failure is not None  # every try either returned or raised
    if wishes:
        sizes = probe_sizes(axes)
        run = FirstRun(sizes)
        return _observe_expanded(module, call, plan, sizes, wishes, failure, run), run
    raise module_raised(failure) from failure


def _observe_expanded(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    sizes: Mapping[str, int],
    wishes: Mapping[str, Wish],
    failure: Exception,
    run: FirstRun,
) -> Observation:
    """Observe with the declared states expanded first, for axes whose minimum is above 1."""
    declared = []
    for name, wish in wishes.items():
        if wish.shape is not None and not wish.ignore:
            state = declared_only(module, name)
            grows = frozenset(d for d in wish.shape if isinstance(d, str) and d not in sizes)
            definition = StateDef(name, state.paths, wish.shape, state.initial, grows)
            declared.append(replace(definition, number=state.number, parts=state.parts))
    reference = Reference(module, declared, call)
    with reference.session() as session:
        run.loaded = reference.initial(sizes)
        session.load(run.loaded)
        try:
            observation = observe(
                module,
                recording(module, call, run),
                [(given,) for given in plan.steps(sizes, 0, OBSERVED_STEPS)],
            )
        except Exception:  # noqa: BLE001 - the first failure, at the module's own sizes, says more
            raise module_raised(failure) from failure
    originals = {state.name: state.initial for state in declared}
    return replace(
        observation,
        tracked=tuple(
            replace(s, initial=originals.get(s.name, s.initial)) for s in observation.tracked
        ),
    )


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
