"""Makes what a front end captured a pure function of inputs and states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stateful_pipeline.errors import StageError
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.explicit_onnx import OnnxProgram
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.frontends import Captured
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.settle import Wish
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
        explicit = make_explicit(captured, discovery.reference, subject.plan, sizes)
        if not explicit.unseen:
            check_states(explicit.program, discovery.reference.states)
            return explicit.program, discovery
        found |= dict.fromkeys(explicit.unseen, Wish())
        discovery = replace(subject, wishes={**found, **subject.wishes}).discover()
    raise StageError(
        f"the graph stores to {', '.join(explicit.unseen)}, which cannot be made states",
        stage="rewrite",
    )
