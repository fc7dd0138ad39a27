"""Makes what a front end captured a pure function of inputs and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stateful_pipeline.errors import StageError
from stateful_pipeline.model.cpp_forms import with_explicit_forms
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.explicit_onnx import OnnxProgram
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.frontends import Captured, capture_with
from stateful_pipeline.model.phased_program import PaddedProgram, PhasedProgram
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.model.scripting import Scripted
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.sizes import fixed_sizes
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.stages.rewrite.functional import make_functional
from stateful_pipeline.stages.rewrite.kept_shapes import check_states
from stateful_pipeline.stages.rewrite.torchscript.explicit import make_explicit

_MOST_ROUNDS = 4


def rewrite(
    captured: Captured, subject: Subject, discovery: Discovery, sizes: Mapping[str, int]
) -> tuple[Program, Discovery]:
    """Return ``captured`` as a pure function, and the module's states.

    A graph may store to what never changed while the module was observed: on a branch that was not
    taken.  That is a state too, marked as not exercised.

    Args:
        captured: What a front end captured.
        subject: The module.
        discovery: Its states, as observed.
        sizes: A size of each axis, at which operators are tried.

    Raises:
        StateError: Random numbers are drawn, or a state would be lost.
        StageError: The graph cannot be made functional.
    """
    if isinstance(captured, OnnxProgram):
        return captured, discovery
    if isinstance(captured, ExportProgram):
        return make_functional(captured, discovery.reference.states), discovery
    found: dict[str, Wish] = {}
    for _ in range(_MOST_ROUNDS):
        reference = with_explicit_forms(discovery.reference, subject.plan)
        program, unseen = _rewritten(captured, reference, subject, sizes)
        if not unseen:
            check_states(program, discovery.reference.states)
            return program, discovery
        found |= dict.fromkeys(unseen, Wish())
        discovery = replace(subject, wishes={**found, **subject.wishes}).discover()
        if isinstance(captured, PhasedProgram):  # each phase has the states that it was given
            again = capture_with("torchscript", discovery.reference, subject.plan, sizes)
            assert isinstance(again, PhasedProgram)  # it has been one before
            captured = again
    raise StageError(
        f"the graph stores to {', '.join(unseen)}, which cannot be made states", stage="rewrite"
    )


def _rewritten(
    captured: Scripted | PhasedProgram,
    reference: Reference,
    subject: Subject,
    sizes: Mapping[str, int],
) -> tuple[Program, Sequence[str]]:
    """Return ``captured`` as a pure function, and what it stores to that is no state yet."""
    if isinstance(captured, Scripted):
        explicit = make_explicit(captured, reference, subject.plan, sizes)
        return explicit.program, explicit.unseen
    assert isinstance(reference, PhasedReference)
    return _each_phase(captured, reference, subject, sizes)


def _each_phase(
    captured: PhasedProgram,
    reference: PhasedReference,
    subject: Subject,
    sizes: Mapping[str, int],
) -> tuple[PhasedProgram, Sequence[str]]:
    programs: list[Program] = []
    unseen: dict[str, None] = {}
    for index, one in enumerate(captured.programs):
        if isinstance(one, ExportProgram):
            programs.append(make_functional(one, reference.states))
            continue
        phase = reference.alone_at(index)
        with phase.on_loan():
            later = reference.states_in(phase.next)
            explicit = make_explicit(one, phase, subject.plan, sizes, later)
        unseen |= dict.fromkeys(explicit.unseen)
        if not explicit.unseen:
            reference.check_left(index, explicit.held)
        fixed = fixed_sizes(reference.axes)
        padded = PaddedProgram(explicit.program, reference.states, phase.next, fixed)
        check_states(padded, reference.states)
        programs.append(padded)
    return PhasedProgram(tuple(programs)).checked(), list(unseen)
