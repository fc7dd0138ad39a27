"""Makes the captured program a pure function and refuses what could not be one.

In-place operators on states (and on the local tensors they touch) become functional ones, by
``ExportedProgram.run_decompositions`` with a table that has next to nothing
(:mod:`stateful_pipeline.model.decomposed`), so that nothing else is decomposed, and the program
stays equal to eager.  What remains is checked: no operator draws random numbers, no buffer or input
is written to, and each new state has the dtype and the shape of the old one.
"""

from __future__ import annotations

import re

import torch
from torch.export.graph_signature import OutputKind

from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.capture import quiet
from stateful_pipeline.model.decomposed import DECOMPOSED
from stateful_pipeline.model.exported import WRAPPED, ExportProgram
from stateful_pipeline.model.locate import node_place
from stateful_pipeline.model.reference import StateDef, exact_kernels
from stateful_pipeline.model.torch_internals import lookups_kept, symbolic_shapes
from stateful_pipeline.stages.rewrite.kept_shapes import check_states

_WRITES = {
    OutputKind.BUFFER_MUTATION: "a buffer",
    OutputKind.PARAMETER_MUTATION: "a parameter",
    OutputKind.USER_INPUT_MUTATION: "an input",
}


def make_functional(program: ExportProgram, states: tuple[StateDef, ...]) -> ExportProgram:
    """Return ``program`` as a pure function of inputs and states.

    Raises:
        StateError: It draws random numbers, writes to something that is not a state, or a
            state would change its dtype or shape.
        StageError: ``torch.export`` could not make it functional.
    """
    _refuse_randomness(program)
    with torch.no_grad(), exact_kernels(), symbolic_shapes(), lookups_kept(), quiet():
        try:
            functional = program.with_exported(program.exported.run_decompositions(DECOMPOSED))
        except Exception as error:  # any decomposition may raise anything
            raise _not_functional(program, error) from error
    _refuse_writes(functional)
    check_states(functional, states)
    return functional


def _not_functional(program: ExportProgram, error: Exception) -> StageError:
    """Translate what a decomposition raised, with the user's line that called the operator."""
    text = str(error).strip().splitlines() or [""]
    named = re.search(r"While executing %(\w+)", str(error))
    nodes = {node.name: node for node in program.exported.graph.nodes}
    node = nodes.get(named[1]) if named else None
    what = "" if node is None else f" ({node.target})"
    return StageError(
        f"the program cannot be made functional{what}: {type(error).__name__}: {text[0]}",
        stage="rewrite",
        place=None if node is None else node_place(node),
        hint="write it with other operators, such as x.std() and x.mean() for torch.std_mean",
    )


def _refuse_randomness(program: ExportProgram) -> None:
    for graph_module in program.exported.graph_module.modules():
        if not isinstance(graph_module, torch.fx.GraphModule):
            continue
        for node in graph_module.graph.nodes:
            target = node.target
            if (
                isinstance(target, torch._ops.OpOverload)
                and torch.Tag.nondeterministic_seeded in target.tags
                and not _is_switched_off(node)
            ):
                raise StateError(
                    f"forward draws random numbers ({target}): the random generator is hidden "
                    "state, which no engine shares with PyTorch",
                    place=node_place(node),
                    hint="take the noise as an input; put dropout into eval() mode",
                )


def _is_switched_off(node: torch.fx.Node) -> bool:
    """Whether a random operator's own arguments turn it off (dropout in eval mode)."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    values = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if "dropout_p" in names:
        return bool(values.get("dropout_p", 0.0) == 0.0)
    if "train" in names:
        probability = values.get("p", values.get("dropout", 1.0))
        return not values.get("train", False) or bool(probability == 0.0)
    return "training" in names and not values.get("training", False)


def _refuse_writes(program: ExportProgram) -> None:
    for spec in program.exported.graph_signature.output_specs:
        if spec.kind in _WRITES:
            name = str(spec.target).removeprefix(WRAPPED)
            raise StateError(
                f"the graph writes to {_WRITES[spec.kind]} that never changed while the module "
                "was observed",
                attribute=name,
                hint="declare it under `states`",
            )
