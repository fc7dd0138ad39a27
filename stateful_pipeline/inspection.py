"""Looks at a model's states without exporting it, for ``pipeline inspect``.

Both front ends are tried, as far as PyTorch alone can: capture, rewriting and the comparison with
eager.  Whether ONNX has a form of every operator is left to an export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, Place, SpecError, StateError
from stateful_pipeline.foreign import stage_error
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.cpp_objects import cpp_class, is_cpp_object
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.explicit_onnx import ExplicitOnnx
from stateful_pipeline.model.frontends import FRONTENDS, candidates, capture_with, refused_by_all
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.observe import Observation, Tracked
from stateful_pipeline.model.reference import StateDef, torch_threads
from stateful_pipeline.model.scripted import class_name
from stateful_pipeline.model.short_values import short
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.model.written_lines import written_at
from stateful_pipeline.spec import Spec
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.rewrite import rewrite
from stateful_pipeline.stages.script.subject import prepare

_STEPS = 4


@dataclass(frozen=True)
class StateRow:
    """One state, in words.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        shape: Its shape, with named axes.
        initial: Its initial value, in short.
        held: In what kind of place the module holds it.
        how: How a call changes it: another tensor is put there, or it is written to in place.
        changed: ``file:line`` of the change; None where no line accounts for it.
        exercised: Whether its value was seen to change.
    """

    name: str
    dtype: str
    shape: str
    initial: str
    held: str
    how: str
    changed: str | None
    exercised: bool


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        module: The name of the module's class.
        states: The states.
        blockers: What blocks an export.
        frontend: The front end that an export would use; None if something blocks it.
        frontends: Every front end, with the reason why it refuses the model; None if it takes it.
        reset: The method that has set the initial values, if any.
        carried_graphs: The C++ objects that keep graphs of autograd from call to call.
        left_by_reset: What that method leaves as calls have left it.
    """

    module: str
    states: tuple[StateRow, ...]
    blockers: tuple[str, ...]
    frontend: str | None
    frontends: Mapping[str, str | None] = field(default_factory=dict)
    reset: str | None = None
    carried_graphs: tuple[str, ...] = ()
    left_by_reset: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def inspect_spec(spec: Spec) -> Inspection:
    """Construct the model of ``spec``, find its states, and try to capture it; nothing is written.

    Raises:
        SpecError: The spec or its source is wrong.
        StageError: The model's code raised something.
    """
    subject = prepare(spec)
    try:
        with torch_threads(1):
            found = _inspect(subject, spec.script.frontend)
            graphs = tuple(map(str, subject.carried_graphs()))
            reset = spec.source.reset
            left = () if reset is None else subject.left_by_reset(reset)
    except (PipelineError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything
        raise stage_error(error, "inspect") from error
    return replace(found, reset=reset, carried_graphs=graphs, left_by_reset=left)


def _inspect(subject: Subject, asked: str) -> Inspection:
    name = class_name(subject.module)
    try:
        discovery = subject.discover()
    except StateError as error:
        return _blocked(name, subject, error)
    tried = _try(subject, discovery, asked)
    discovery = tried.discovery
    reference = discovery.reference
    places = _places(subject, discovery)
    # It may be a copy in which all is there that the first call creates.
    observation = replace(subject, module=reference.module).observe()
    rows = tuple(
        _row(state, reference.module, subject, places, observation) for state in reference.states
    )
    blockers = () if tried.error is None else (str(tried.error),)
    return Inspection(name, rows, blockers, tried.taken, tried.reasons)


@dataclass(frozen=True)
class _Tried:
    """What came of trying the front ends."""

    taken: str | None
    reasons: Mapping[str, str | None]
    error: PipelineError | None
    discovery: Discovery


def _try(subject: Subject, discovery: Discovery, asked: str) -> _Tried:
    """Try every front end, also those that the spec does not ask for."""
    wanted, untried = candidates(asked, subject.module)
    others = () if isinstance(subject.module, ExplicitOnnx) else FRONTENDS
    errors: dict[str, PipelineError] = {}
    found: dict[str, Discovery] = {}
    for frontend in dict.fromkeys((*wanted, *others)):
        if frontend in untried:
            continue
        try:
            found[frontend] = _take(frontend, subject, discovery)
        except SpecError:
            raise
        except PipelineError as error:
            errors[frontend] = error
    reasons: dict[str, str | None] = dict.fromkeys(found)
    reasons |= {**untried, **{frontend: str(error) for frontend, error in errors.items()}}
    taken = next((frontend for frontend in wanted if frontend in found), None)
    if taken is not None:
        return _Tried(taken, reasons, None, found[taken])
    refusal = refused_by_all({name: errors[name] for name in wanted}, untried)
    return _Tried(None, reasons, refusal, next(iter(found.values()), discovery))


def _take(frontend: str, subject: Subject, discovery: Discovery) -> Discovery:
    """Capture the model and compare it with eager; return its states, with those of the graph."""
    fixed = [d for value in subject.plan.inputs for d in value.shape if isinstance(d, int)]
    hints = probe_sizes(subject.axes, fixed)
    captured = capture_with(frontend, discovery.reference, subject.plan, hints)
    program, discovery = rewrite(captured, subject, discovery, hints)
    sizes = corner_sizes(subject.axes)[:2]
    check_equal(program, discovery.reference, subject.plan, sizes, _STEPS)
    return discovery


def _blocked(name: str, subject: Subject, error: StateError) -> Inspection:
    """Return all that was seen of a model whose states cannot all be made explicit."""
    observation = subject.observe()
    refused = [item for item in observation.refused if item.path not in subject.ignored]
    paths = [item.path for item in refused] + [state.name for state in observation.tracked]
    places = subject.places(paths)
    rows = tuple(
        _row(_as_observed(state), subject.module, subject, places, observation)
        for state in observation.tracked
    )
    blockers = [
        str(StateError(r.reason, attribute=r.path, place=places.get(r.path), hint=r.hint))
        for r in refused
        if r.path != error.attribute
    ]
    return Inspection(name, rows, (str(error), *blockers), None)


def _as_observed(state: Tracked) -> StateDef:
    return StateDef(
        state.name,
        state.paths,
        tuple(state.initial.shape),
        state.initial,
        exercised=state.exercised,
        kind=state.kind,
        number=state.number,
        parts=state.parts,
    )


def _places(subject: Subject, discovery: Discovery) -> Mapping[str, Place]:
    """Return the line that changes each state; seen in a rollout, or else from its own start."""
    reference = discovery.reference
    paths = [state.paths[0] for state in reference.states if state.kind != "phase"]
    sizes = probe_sizes(subject.axes)
    steps = subject.plan.steps(sizes, 0, _STEPS)

    def calls() -> None:
        for given in steps:
            subject.call(reference.module, given)

    with reference.session() as session:
        session.load(reference.initial(sizes))
        found = change_places(reference.module, calls, paths)
    return found | subject.places([path for path in paths if path not in found])


def _row(
    state: StateDef,
    module: nn.Module,
    subject: Subject,
    places: Mapping[str, Place],
    observation: Observation,
) -> StateRow:
    path = state.paths[0]
    place = places.get(path) or written_at(module, path)
    wish = subject.wishes.get(state.name)
    declared = wish is not None and not (isinstance(wish.value, str) and wish.value == "buffer")
    return StateRow(
        name=state.name,
        dtype=str(state.initial.dtype).removeprefix("torch."),
        shape="[" + ", ".join(map(str, state.shape)) + "]",
        initial=short(state.initial) + (", declared" if declared else ""),
        held=_held(state, module) + ("" if _is_there(subject.module, state) else _CREATED),
        how=_how(state, observation, module),
        changed=None if place is None else str(place),
        exercised=state.exercised,
    )


def _held(state: StateDef, module: nn.Module) -> str:
    """Say in what kind of place a state is held, and how often."""
    if state.kind == "phase":
        return "nowhere: it is added"
    holder, name = _holder(module, state.paths[0])
    words = [state.kind]
    if not isinstance(holder, nn.Module):
        words = [f"{state.kind} of {type(holder).__name__}"]
        if is_cpp_object(holder):
            words = [f"in a C++ object of {cpp_class(holder)}"]
    elif name in getattr(holder, "_non_persistent_buffers_set", ()):
        words = ["buffer, not persistent"]
    if state.number:
        words.append(f"Python {_NUMBERS.get(state.initial.dtype, 'number')}")
    if len(state.paths) > 1:
        words.append(f"{len(state.paths)} places")
    if state.parts:
        words.append(f"{len(state.parts)} view{'s' if len(state.parts) > 1 else ''} of it")
    return ", ".join(words)


_CREATED = ", made by the first calls"


def _is_there(module: nn.Module, state: StateDef) -> bool:
    """Whether the module, as it was constructed, holds a value as ``state``."""
    if state.kind == "phase":
        return True
    try:
        return read(module, state.paths[0]) is not None
    except KeyError:
        return False


def _holder(module: nn.Module, path: str) -> tuple[Any, str]:
    """Return what holds the value at ``path``, and its name there, which may itself hold dots."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        try:
            return read(module, ".".join(names[:count])), ".".join(names[count:])
        except KeyError:
            continue
    return module, path


_NUMBERS = {torch.int64: "int", torch.float64: "float", torch.bool: "bool"}


def _how(state: StateDef, observation: Observation, module: nn.Module) -> str:
    """Say how calls change a state."""
    if state.kind == "phase":
        return "counts the first calls"
    if state.grows:
        return f"grows along {', '.join(sorted(state.grows))}"
    if is_cpp_object(_holder(module, state.paths[0])[0]):
        return "by its class" if state.exercised else "not seen to change"
    seen = next((s for s in observation.tracked if set(s.paths) & set(state.paths)), None)
    if seen is not None:
        other = ", with another shape" if len(set(seen.shapes)) > 1 else ""
        return ("reassigned" if seen.reassigned else "in place") + other
    return "changed" if state.exercised else "not seen to change"
