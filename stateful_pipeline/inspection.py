"""Looks at a model's states without exporting it, for ``pipeline inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from stateful_pipeline.errors import PipelineError, Place, StateError
from stateful_pipeline.foreign import stage_error
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.frontends import capture_with, first_that_takes
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.spec import Spec
from stateful_pipeline.stages.rewrite.rewrite import rewrite
from stateful_pipeline.stages.script.subject import prepare


@dataclass(frozen=True)
class StateRow:
    """One state, in words."""

    name: str
    dtype: str
    shape: str
    initial: str
    held: str
    changed: str | None
    exercised: bool


@dataclass(frozen=True)
class Inspection:
    """What was found: the states, the front end that takes the model, and what blocks an export."""

    module: str
    states: tuple[StateRow, ...]
    blockers: tuple[str, ...]
    frontend: str | None

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
        return _inspect(subject, spec.script.frontend)
    except (PipelineError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything
        raise stage_error(error, "inspect") from error


def _inspect(subject: Subject, asked: str) -> Inspection:
    name = type(subject.module).__name__
    try:
        discovery = subject.discover()
    except StateError as error:
        return _blocked(name, subject, error)
    places = _places(subject, discovery)
    rows = tuple(_row(state, places) for state in discovery.reference.states)
    hints = probe_sizes(subject.axes)

    def attempt(frontend: str) -> None:
        captured = capture_with(frontend, discovery.reference, subject.plan, hints)
        rewrite(captured, subject, discovery, hints)

    try:
        taken, _ = first_that_takes(asked, subject.module, attempt)
    except PipelineError as error:
        return Inspection(name, rows, (str(error),), None)
    return Inspection(name, rows, (), taken)


def _blocked(name: str, subject: Subject, error: StateError) -> Inspection:
    """Return all that was seen of a model whose states cannot all be made explicit."""
    observation = subject.observe()
    refused = [item for item in observation.refused if item.path not in subject.ignored]
    paths = [item.path for item in refused] + [state.name for state in observation.tracked]
    places = subject.places(paths)
    rows = tuple(
        _row(
            StateDef(
                state.name,
                state.paths,
                tuple(state.initial.shape),
                state.initial,
                exercised=state.exercised,
                kind=state.kind,
                number=state.number,
                parts=state.parts,
            ),
            places,
        )
        for state in observation.tracked
    )
    blockers = tuple(
        str(StateError(r.reason, attribute=r.path, place=places.get(r.path), hint=r.hint))
        for r in refused
    )
    return Inspection(name, rows, blockers or (str(error),), None)


def _places(subject: Subject, discovery: Discovery) -> Mapping[str, Place]:
    reference = discovery.reference
    sizes = probe_sizes(subject.axes)
    given = subject.plan.step(sizes, 0, 0)
    with reference.session() as session:
        session.load(reference.initial(sizes))
        paths = [state.paths[0] for state in reference.states]
        return change_places(subject.module, lambda: subject.call(subject.module, given), paths)


def _row(state: StateDef, places: Mapping[str, Place]) -> StateRow:
    place = places.get(state.paths[0])
    return StateRow(
        name=state.name,
        dtype=str(state.initial.dtype).removeprefix("torch."),
        shape="[" + ", ".join(map(str, state.shape)) + "]",
        initial=_initial(state.initial),
        held=state.kind + (f", {len(state.paths)} places" if len(state.paths) > 1 else ""),
        changed=None if place is None else str(place),
        exercised=state.exercised,
    )


def _initial(value: torch.Tensor) -> str:
    if value.numel() == 0:
        return "empty"
    flat = value.reshape(-1)
    if bool((flat == flat[0]).all()):
        return str(flat[0].item())
    return f"{value.numel()} values"
