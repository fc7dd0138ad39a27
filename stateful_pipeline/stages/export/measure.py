"""Compares the dimensions that a model declares with those that it really has.

Exporters label dimensions by inference, and can be wrong without anyone noticing: ``[batch, 20,
32]`` under a dynamic ``time`` passes every checker.  Here the written file runs at several sizes,
and a declared dimension that a run contradicts is an error.  A size that nobody can know beforehand
must at least agree wherever the contract gives it the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stateful_pipeline.contract import Contract
from stateful_pipeline.dimensions import Shape, axes_of, resolve_shape
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
            _check(name, shape, measured[name], bound, _text(at))


def _check(
    name: str, shape: Shape, measured: tuple[int, ...], bound: dict[str, int], at: str
) -> None:
    says = f"'{name}' is declared as [{', '.join(map(str, shape))}]"
    if len(shape) == len(measured):
        _bind_unknown(bound, shape, measured)
        expected = resolve_shape(shape, bound)
        if measured == expected:
            return
        says += f", which is {list(expected)} at {at}"
    raise StageError(
        f"{says}, but measures {list(measured)}",
        stage="export",
        hint="the exporter mislabelled it or lost a dynamic axis; please report it",
    )


def _bind_unknown(bound: dict[str, int], shape: Shape, measured: tuple[int, ...]) -> None:
    """Bind the axes that only outputs have to what they measure at first."""
    for dim, size in zip(shape, measured, strict=True):
        if isinstance(dim, str) and axes_of(dim) == {dim}:
            bound.setdefault(dim, size)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items()) or "fixed sizes"


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
            f"the exported model does not run at {_text(sizes)}: {first_line(error)}",
            stage="export",
        ) from error
    return {n: tuple(r.shape()) for n, r in zip(names, results, strict=True)}, bound


def _dtype(contract: Contract, name: str) -> str:
    return next(value.dtype for value in contract.inputs if value.name == name)
