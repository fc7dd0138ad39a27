"""What an engine says of its inputs and outputs, checked against the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract, State
from stateful_pipeline.errors import ContractError

TYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int8": "INT8", "int32": "INT32",
    "int64": "INT64", "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip
"""Element type to its name in ``tensorrt.DataType``; an engine takes and gives no others."""

Sizes3 = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Tensor:
    """One input or output of an engine.

    Attributes:
        name: Its name in the graph.
        dtype: The name of its ``tensorrt.DataType``.
        shape: -1 where the size differs from step to step.
        is_input: Whether it is an input.
        on_host: Whether it must lie on the host: shapes depend on it.
        shape_io: Whether the inference of shapes reads or writes it.
        linear: Whether its elements lie as those of a C-contiguous array do.
        aliased: Of an output, the input whose memory it must share; None for memory of its own.
        ranges: Of an input with sizes that differ, its least, usual and largest shape by profile.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    on_host: bool
    shape_io: bool
    linear: bool
    aliased: str | None
    ranges: tuple[Sizes3, ...]


def read_tensors(engine: Any, library: Any) -> dict[str, Tensor]:
    """Return the inputs and outputs of a loaded engine by name."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return {name: _tensor(engine, library, name) for name in names}


def check_tensors(tensors: Mapping[str, Tensor], contract: Contract, path: Path) -> None:
    """Check an engine's inputs and outputs against the contract.

    Raises:
        ContractError: One is missing, unknown, of another dtype, or shares memory that is not the
            same state's.
    """
    takes = [(value.name, value.dtype) for value in contract.inputs]
    takes += [(state.input, state.dtype) for state in contract.states]
    gives = [(value.name, value.dtype) for value in contract.outputs]
    gives += [(state.output, state.dtype) for state in contract.states]
    inputs = {name: tensor for name, tensor in tensors.items() if tensor.is_input}
    outputs = {name: tensor for name, tensor in tensors.items() if not tensor.is_input}
    _check_types(takes, inputs, "input", path)
    _check_types(gives, outputs, "output", path)
    states = {state.output: state for state in contract.states}
    for name, tensor in outputs.items():
        if tensor.aliased is not None:
            _check_alias(name, tensor.aliased, states.get(name), path)


def _check_types(
    declared: list[tuple[str, str]], tensors: Mapping[str, Tensor], kind: str, path: Path
) -> None:
    for name, dtype in declared:
        tensor = tensors.get(name)
        if tensor is None:
            raise ContractError.in_file(
                path,
                f"the contract names graph {kind} '{name}', which the engine lacks",
                f"its {kind}s are: {', '.join(tensors) or 'none'}; build the engine again",
            )
        if tensor.dtype != TYPES.get(dtype):
            raise ContractError.in_file(
                path,
                f"graph {kind} '{name}' is {tensor.dtype} in the engine, the contract says {dtype}",
            )
        if not tensor.linear:
            raise ContractError.in_file(
                path, f"graph {kind} '{name}' has a vectorized format", "build it with LINEAR ones"
            )
    unknown = tensors.keys() - {name for name, _ in declared}
    if unknown:
        raise ContractError.in_file(
            path, f"graph {kind} '{min(unknown)}' of the engine is not in the contract"
        )


def _check_alias(name: str, shared: str, state: State | None, path: Path) -> None:
    if state is None or state.input != shared or state.grows:
        raise ContractError.in_file(
            path,
            f"graph output '{name}' must share the memory of input '{shared}', and the contract "
            "does not make them one state of fixed shape",
        )


def _tensor(engine: Any, library: Any, name: str) -> Tensor:
    is_input = engine.get_tensor_mode(name) == library.TensorIOMode.INPUT
    shape = tuple(engine.get_tensor_shape(name))
    profiles = range(engine.num_optimization_profiles) if is_input and -1 in shape else ()
    ranges = [engine.get_tensor_profile_shape(name, index) for index in profiles]
    # Versions before 10.15 have no aliases.
    alias_of = getattr(engine, "get_aliased_input_tensor", None)
    return Tensor(
        name,
        engine.get_tensor_dtype(name).name,
        shape,
        is_input,
        on_host=engine.get_tensor_location(name) == library.TensorLocation.HOST,
        shape_io=engine.is_shape_inference_io(name),
        linear=engine.get_tensor_format(name) == library.TensorFormat.LINEAR,
        aliased=(alias_of(name) or None) if alias_of is not None and not is_input else None,
        ranges=tuple((tuple(low), tuple(opt), tuple(high)) for low, opt, high in ranges),
    )
