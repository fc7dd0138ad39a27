"""Gives a file whose states are explicit already its contract, under the names that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from stateful_pipeline.model.explicit_onnx import OnnxProgram
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.stages.export.contracts import build_contract, io_shapes
from stateful_pipeline.stages.export.export import Exported
from stateful_pipeline.stages.export.in_place import in_place_states
from stateful_pipeline.stages.export.interface import clean, declare_shapes, rename_io
from stateful_pipeline.stages.export.measure import check_dimensions
from stateful_pipeline.stages.export.write import sidecar_name, write_model


def export_explicit(
    program: OnnxProgram,
    reference: Reference,
    plan: InputPlan,
    path: Path,
    *,
    sizes: Sequence[Mapping[str, int]],
    external_data_threshold: int,
) -> tuple[Exported, int]:
    """Write the file of ``program`` to ``path`` with a contract; return its opset too.

    Inputs that are fixed become constants; everything else keeps its name.

    Args:
        program: The file.
        reference: The module that drives it, its states settled.
        plan: The inputs.
        path: The model file to write; replaced only when everything has been checked.
        sizes: Sizes at which declared dimensions are compared with measured ones.
        external_data_threshold: Bytes of weights above which they are stored beside the model.

    Raises:
        StageError: Refused by ``onnx.checker``, or the file declares wrong dimensions.
    """
    contract, arrays = build_contract(program, reference.states, reference.axes, sidecar_name(path))
    pairs = {pair.name: pair for pair in program.module.onnx_pairs}
    contract = replace(
        contract,
        states=tuple(
            replace(s, input=pairs[s.name].input, output=pairs[s.name].output)
            for s in contract.states
        ),
    )
    model = ir.load(program.module.onnx_file.path)
    ir.external_data.load_to_model(model)
    for name, value in program.constants.items():
        dtype = program.module.onnx_file.inputs[name].dtype
        _fix(model, name, np.asarray(value, dtype))
    inputs = [v.name for v in contract.inputs] + [s.input for s in contract.states]
    outputs = [v.name for v in contract.outputs] + [s.output for s in contract.states]
    _in_order(model.graph.inputs, inputs)
    _in_order(model.graph.outputs, outputs)
    rename_io(model, inputs, outputs)
    clean(model)
    declare_shapes(model, *io_shapes(contract))
    shared = in_place_states(model, [(s.input, s.output) for s in contract.states])
    contract = replace(
        contract,
        states=tuple(replace(s, in_place=s.input in shared) for s in contract.states),
    )
    files = write_model(
        model,
        contract,
        arrays,
        path,
        external_data_threshold,
        check=lambda draft: check_dimensions(draft, contract, plan, sizes),
    )
    return Exported(path, tuple(files), contract), model.opset_imports[""]


def _fix(model: ir.Model, name: str, array: np.ndarray[Any, Any]) -> None:
    """Make a graph input a constant."""
    value = next(value for value in model.graph.inputs if value.name == name)
    model.graph.inputs.remove(value)
    value.const_value = ir.tensor(array, name=name)
    model.graph.initializers[name] = value


def _in_order(values: Any, names: Sequence[str]) -> None:
    """Keep the values called ``names``, in this order: others have a default in the file."""
    by_name = {value.name: value for value in values}
    values.clear()
    values.extend(by_name[name] for name in names)
