"""Compares the dimensions that a model declares with those that it really has.

Exporters label dimensions by inference, and can be wrong without anyone noticing: ``[batch, 20,
32]`` under a dynamic ``time`` passes every checker.  Here the written file runs at several sizes,
and a declared dimension that a run contradicts is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stateful_pipeline.contract import Contract, resolve_shape
from stateful_pipeline.errors import ContractError, PipelineError, StageError
from stateful_pipeline.model.arrays import to_numpy
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.runtime.engine import Engine, first_line


def check_dimensions(
    path: Path, contract: Contract, plan: InputPlan, sizes: Sequence[Mapping[str, int]]
) -> None:
    """Run one step of the model at ``path`` for each of ``sizes`` and compare all output shapes.

    Raises:
        StageError: A declared dimension differs from the measured one, or the model does not run.
    """
    try:
        engine = Engine(path, "cpu", threads=1)
    except ContractError as error:
        reason = error.message.partition(": ")[2]
        raise StageError(
            f"ONNX Runtime cannot load the exported model: {reason}",
            stage="export",
            hint="an operator may have no kernel for its dtype on the CPU; compute in float32",
        ) from error
    declared = {v.name: v.shape for v in contract.outputs}
    declared |= {s.output: s.out_shape or s.shape for s in contract.states}
    for at in sizes:
        measured, bound = _measure(engine, path, contract, plan, at)
        for name, shape in declared.items():
            expected = resolve_shape(shape, bound)
            if measured[name] != expected:
                raise StageError(
                    f"'{name}' is declared as [{', '.join(map(str, shape))}], which is "
                    f"{list(expected)} at {dict(at)}, but measures {list(measured[name])}",
                    stage="export",
                    hint="the exporter mislabelled it or lost a dynamic axis; please report it",
                )


def _measure(
    engine: Engine, path: Path, contract: Contract, plan: InputPlan, sizes: Mapping[str, int]
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the shape of each graph output, and the sizes of all axes, growing ones too."""
    bound = dict(sizes)
    feeds = {}
    for name, tensor in plan.step(sizes, 0, 0).items():
        feeds[name] = engine.value(to_numpy(tensor), _dtype(contract, name))
    for state in contract.states:
        value = state.initial(sizes, path.parent)
        for dim, size in zip(state.shape, value.shape, strict=True):
            if isinstance(dim, str):
                bound.setdefault(dim, size)
        feeds[state.input] = engine.value(value, state.dtype)
    names = [v.name for v in contract.outputs] + [s.output for s in contract.states]
    try:
        results = engine.session.run_with_ort_values(names, feeds)
    except PipelineError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base
        raise StageError(
            f"the exported model does not run at {dict(sizes)}: {first_line(error)}", stage="export"
        ) from error
    return {n: tuple(r.shape()) for n, r in zip(names, results, strict=True)}, bound


def _dtype(contract: Contract, name: str) -> str:
    return next(value.dtype for value in contract.inputs if value.name == name)
