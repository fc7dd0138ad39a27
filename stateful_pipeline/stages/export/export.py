"""Turns a functional program into an ONNX file that carries its contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stateful_pipeline.contract import Contract
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.stages.export.contracts import build_contract, io_shapes
from stateful_pipeline.stages.export.convert import convert
from stateful_pipeline.stages.export.in_place import in_place_states
from stateful_pipeline.stages.export.interface import (
    cast_outputs,
    clean,
    declare_shapes,
    order_inputs,
    rename_io,
)
from stateful_pipeline.stages.export.measure import check_dimensions
from stateful_pipeline.stages.export.ranges import write_out_negative_positions
from stateful_pipeline.stages.export.write import (
    EXTERNAL_DATA_THRESHOLD,
    sidecar_name,
    write_model,
)
from stateful_pipeline.stages.lowering import define, lower


@dataclass(frozen=True)
class Exported:
    """What was written: the files, the model first, and the contract that it carries."""

    model: Path
    files: tuple[Path, ...]
    contract: Contract


def export_program(
    program: Program,
    reference: Reference,
    plan: InputPlan,
    path: Path,
    *,
    opset: int,
    sizes: Sequence[Mapping[str, int]],
    runtime: str | None = "onnxruntime",
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    check: Callable[[Path], None] | None = None,
) -> Exported:
    """Write ``program`` to ``path`` as ONNX, states explicit, contract inside.

    Args:
        program: A functional program.
        reference: The module that it was captured from.
        plan: The inputs.
        path: The model file to write; replaced only when everything has been checked.
        opset: The ONNX opset.
        sizes: Sizes at which declared dimensions are compared with measured ones.
        runtime: The runtime to lower the file for; None keeps it portable.
        external_data_threshold: Bytes of weights above which they are stored beside the model.
        check: Called with the draft at last, or with a copy of it lowered for ONNX Runtime, before
            it is put in place; raises to refuse it.

    Raises:
        StageError: No ONNX form, refused by ``onnx.checker``, or wrong dimensions.
        StateError: There is nothing to export, or a state has no form that a runner can carry.
    """
    contract, arrays = build_contract(program, reference.states, reference.axes, sidecar_name(path))
    model = convert(program, opset)
    order_inputs(model, len(contract.states))
    inputs = [v.name for v in contract.inputs] + [s.input for s in contract.states]
    outputs = [v.name for v in contract.outputs] + [s.output for s in contract.states]
    dtypes = [v.dtype for v in contract.outputs] + [s.dtype for s in contract.states]
    cast_outputs(model, dtypes)
    rename_io(model, inputs, outputs)
    write_out_negative_positions(model)
    clean(model)
    declare_shapes(model, *io_shapes(contract))
    define(model)
    if runtime is not None:
        lower(model)
    shared = in_place_states(model, [(s.input, s.output) for s in contract.states])
    contract = replace(
        contract,
        states=tuple(replace(s, in_place=s.input in shared) for s in contract.states),
    )

    def checks(draft: Path) -> None:
        check_dimensions(draft, contract, plan, sizes)
        if check is not None:
            check(draft)

    files = write_model(
        model,
        contract,
        arrays,
        path,
        external_data_threshold,
        check=checks,
    )
    return Exported(path, tuple(files), contract)
