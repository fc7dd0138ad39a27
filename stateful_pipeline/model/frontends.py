"""The two ways to capture a module, which to try for which model, and what to say if none works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from stateful_pipeline.errors import PipelineError, SpecError, StageError, StateError
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.cpp_forms import with_explicit_forms
from stateful_pipeline.model.explicit_onnx import ExplicitOnnx, OnnxProgram, explicit_program
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.modes import scripted_inside
from stateful_pipeline.model.phased_program import PhasedProgram
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.model.scripting import Scripted, script

FRONTENDS = ("export", "torchscript")
"""In the order in which ``auto`` tries them: what ``torch.export`` captures needs no ``If``."""

Captured = ExportProgram | Scripted | OnnxProgram | PhasedProgram
Result = TypeVar("Result")


def candidates(frontend: str, module: nn.Module) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the front ends to try, in order, and why others are not tried.

    Args:
        frontend: ``auto``, ``export`` or ``torchscript``.
        module: The module.
    """
    if isinstance(module, ExplicitOnnx):
        return ("onnx",), {}
    if frontend != "auto":
        return (frontend,), {}
    path = scripted_inside(module)
    if path is None:
        return FRONTENDS, {}
    what = "the model" if path == "" else f"'{path}'"
    return ("torchscript",), {"export": f"{what} is a ScriptModule, which torch.export refuses"}


def capture_with(
    frontend: str, reference: Reference, plan: InputPlan, sizes: Mapping[str, int]
) -> Captured:
    """Capture the module of ``reference`` with one front end, and leave it as it was.

    Raises:
        StateError: A state changes in a way that the graph cannot follow.
        StageError: The front end refused the module; with its reason and the user's line.
    """
    if isinstance(reference.module, ExplicitOnnx):
        return explicit_program(reference.module, reference, plan)
    reference = with_explicit_forms(reference, plan)
    if isinstance(reference, PhasedReference):
        return _each_phase(frontend, reference, plan, sizes)
    return (script if frontend == "torchscript" else capture)(reference, plan, sizes)


def _each_phase(
    frontend: str, reference: PhasedReference, plan: InputPlan, sizes: Mapping[str, int]
) -> PhasedProgram:
    """Capture each phase, with the numbers that are always the same in it as constants.

    With TorchScript, ``torch.export`` still captures what it takes of the phases before the last:
    there numbers are known, and branches on them fold away.
    """
    known = reference.first_numbers()
    captured: list[Any] = []
    for index in range(len(reference.phases)):
        transient = index < reference.transient
        phase = reference.at(index, known if transient else {})
        if frontend != "torchscript":
            captured.append(capture(phase, plan, sizes))
        else:
            exported = _exported(phase, plan, sizes) if transient else None
            captured.append(exported or script(reference.alone_at(index), plan, sizes))
        known = phase.left
    return PhasedProgram(tuple(captured))


def _exported(phase: Reference, plan: InputPlan, sizes: Mapping[str, int]) -> ExportProgram | None:
    """Return what ``torch.export`` makes of a phase, or None if it refuses it."""
    try:
        return capture(phase, plan, sizes)
    except PipelineError:
        return None


def why_chosen(frontend: str, asked: str, refused: Mapping[str, str]) -> str:
    """Return in words why ``frontend`` made the program."""
    names = {"export": "torch.export", "torchscript": "torch.jit.script"}
    if frontend == "onnx":
        return "the file's states are explicit already"
    if asked != "auto":
        return f"the spec asks for {frontend}"
    if not refused:
        return f"{names[frontend]} captured the module with all its states"
    reasons = "; ".join(f"{name} refused: {text}" for name, text in refused.items())
    return f"{names[frontend]} captured the module with all its states; {reasons}"


def first_that_takes(
    frontend: str, module: nn.Module, attempt: Callable[[str], Result]
) -> tuple[str, Result]:
    """Return the first front end for which ``attempt`` does not raise, and what it returns.

    Args:
        frontend: ``auto``, ``export`` or ``torchscript``.
        module: The module.
        attempt: Takes the name of a front end.

    Raises:
        SpecError: What was asked for is wrong, whichever front end is taken.
        PipelineError: No front end takes the module; with the reason of each.
    """
    frontends, untried = candidates(frontend, module)
    errors: dict[str, PipelineError] = {}
    for name in frontends:
        try:
            return name, attempt(name)
        except SpecError:
            raise
        except PipelineError as error:
            errors[name] = error
    raise refused_by_all(errors, untried)


def refused_by_all(
    errors: Mapping[str, PipelineError], untried: Mapping[str, str]
) -> PipelineError:
    """Return the error to raise when no front end takes a model: it gives every reason.

    Args:
        errors: What each front end raised, in the order in which they were tried.
        untried: Why others were not tried.
    """
    tried = list(errors.values())
    if len(tried) == 1 and not untried:
        return tried[0]
    text = "no front end takes the model"
    for name, reason in [*untried.items(), *((n, _reason(e)) for n, e in errors.items())]:
        text += f"\n  {name}: {reason}"
    place = next((error.place for error in tried if error.place is not None), None)
    lost = next((error for error in tried if isinstance(error, StateError)), None)
    if lost is not None:
        return StateError(text, attribute=lost.attribute, place=lost.place or place)
    return StageError(text, stage="script", place=place)


def _reason(error: PipelineError) -> str:
    """Return why one front end refused, with what to do about it."""
    return error.message if error.hint is None else f"{error.message} (try: {error.hint})"
