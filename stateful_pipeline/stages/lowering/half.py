"""Half precision, written into the model: which floats are computed and stored in 16 bits.

A runtime's own switch for half precision decides behind the model's back, in a way of its own, and
states are rounded with everything else.  So the decision stands in the ONNX file, as TensorRT's
strongly typed networks need it, too:

* Float32 weights are stored in half, and operators are computed in half, in bodies of control flow
  as well; :mod:`.half_plan` says which stay in float32, and why.
* The user's inputs and outputs keep their dtype: they are cast at the edges.
* States keep theirs, too, and what they accumulate is computed in float32.  Those that are named to
  be half are stored so, initial value and contract included.

Nothing that the file holds becomes infinite without a word: what reads a constant or an initial
value that is too large for half, and what reads what came of it, stays in float32; a state that is
to be stored in half and starts too large is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import onnx_ir.passes.common as passes

from stateful_pipeline.contract import METADATA_KEY, Contract
from stateful_pipeline.errors import ContractError
from stateful_pipeline.stages.lowering.half_casts import HalfCasts
from stateful_pipeline.stages.lowering.half_plan import HalfPlan, plan_half
from stateful_pipeline.stages.lowering.half_states import (
    chosen_states,
    describe,
    half_initial,
    write_initial,
)
from stateful_pipeline.stages.lowering.half_weights import Weights, count_overflows
from stateful_pipeline.stages.lowering.typed import infer_types

HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
"""What a spec calls the dtypes of 16 bits."""

EXTERNAL_DATA_THRESHOLD = 1 << 30
"""Models whose initializers have more bytes than this keep them in ``<model>.data``."""

_LEAST_BESIDE = 256
"""Initializers of at most so many bytes are in the model, whatever the threshold is."""


def half_file(
    source: Path,
    path: Path,
    precision: Literal["fp16", "bf16"],
    half_states: Sequence[str],
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
) -> tuple[str, ...]:
    """Write the model at ``source`` to ``path`` so that it computes in half precision.

    Files beside ``source`` that the model needs are written beside ``path``; the two may be one.

    Args:
        source: A portable model with its contract.
        path: Where to write; its folder exists.
        precision: ``fp16`` or ``bf16``.
        half_states: Names of states, or patterns of them (``blocks.*.keys``), to store in half.
        external_data_threshold: Bytes of weights above which they are stored beside the model.

    Returns:
        What was changed, as ``MatMul: float32 in float16``, what stays, and what half does to
        weights, each once.

    Raises:
        SpecError: One of ``half_states`` is no float32 state, or the initial value of one is too
            large.
        ContractError: The model has no contract, or a file beside it cannot be read.
    """
    model = ir.load(source)
    ir.external_data.load_to_model(model)
    if METADATA_KEY not in model.metadata_props:
        raise ContractError.in_file(source, "the model has no state contract")
    half = HALVES[precision]
    contract = Contract.from_json(model.metadata_props[METADATA_KEY])
    chosen = chosen_states(contract, half_states)
    initial = {name: half_initial(contract.state(name), half, source.parent) for name in chosen}
    large = frozenset(
        state.name
        for state in contract.states
        if state.dtype == "float32"
        and count_overflows(state.init.load(state.dtype, source.parent), half)
    )
    changed = to_half(model, half, contract, chosen, large)
    model.metadata_props[METADATA_KEY] = describe(contract, initial, model).to_json()
    write_initial(contract, initial, source.parent, path.parent)
    _save(model, path, external_data_threshold)
    return changed


def to_half(
    model: ir.Model,
    half: ir.DataType,
    contract: Contract,
    chosen: frozenset[str],
    large: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Let ``model`` compute in ``half``, in place, and store the states ``chosen`` in it.

    Args:
        model: The model.
        half: float16 or bfloat16.
        contract: The states as they are in float32.
        chosen: Names of those to store in half.
        large: Names of those whose initial value is too large for it.

    Returns:
        What :func:`half_file` returns.
    """
    if model.functions:
        passes.InlinePass()(model)
    infer_types(model)
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    wide = [
        (inputs[state.input], outputs[state.output])
        for state in contract.states
        if state.dtype == "float32" and state.name not in chosen
    ]
    weights = Weights(half)
    plan = plan_half(
        model, half, weights, wide, [inputs[s.input] for s in contract.states if s.name in large]
    )
    said = _said(plan, half)
    stored = [state for state in contract.states if state.name in chosen]
    HalfCasts(model, half, plan, weights).write(
        frozenset(state.input for state in stored), frozenset(state.output for state in stored)
    )
    return (*said, *weights.notes)


def _said(plan: HalfPlan, half: ir.DataType) -> list[str]:
    in_half = dict.fromkeys(node.op_type for node in plan.reads)
    said = [f"{operator}: float32 in {half.name.lower()}" for operator in in_half]
    return said + [f"{name}: stays float32" for name in plan.stays if name not in in_half]


def _save(model: ir.Model, path: Path, threshold: int) -> None:
    """Write ``model`` to ``path``, and its weights beside it where they exceed ``threshold``."""
    constants = [value.const_value for g in model.graphs() for value in g.initializers.values()]
    sizes = [tensor.nbytes for tensor in constants if tensor is not None]
    beside = f"{path.name}.data"
    if sum(sizes) > threshold and max(sizes) > _LEAST_BESIDE:
        ir.save(model, path, external_data=beside, size_threshold_bytes=_LEAST_BESIDE)
        return
    ir.save(model, path)
    (path.parent / beside).unlink(missing_ok=True)
