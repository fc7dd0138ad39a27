"""The one door to OpenVINO: compiled models, their states, and tensors.

Facts about OpenVINO 2026.4 on the CPU that this file rests on, each held by a test:

- A machine with bfloat16 instructions computes float32 models in bfloat16, and holds key-value
  caches that it recognises in 8 bits, unless it is told otherwise when the model is compiled.  A
  precision that the processor lacks is replaced by another without an error.
- States of 64 bits are refused ("does not support i64"), and so are int16, uint16 and uint32: a
  model file holds them in 32 bits (:data:`HELD`), where :class:`OpenVinoRunner` checks the range.
- A state of rank 0 is given back as one of shape ``[1]``.
- ``Tensor.data`` of bfloat16 is a view as float16: only its bits count.
- A request's states may be changed by a step that fails.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import METADATA_KEY, Contract, State, Value, numpy_dtype
from stateful_pipeline.errors import ContractError, SpecError, TargetError
from stateful_pipeline.runtime.engine import Array, check_threads

TYPES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "bool": "boolean",
}  # fmt: skip
"""Element type to what OpenVINO calls it."""

HELD = {
    "int16": "int32", "uint16": "int32", "uint32": "int32", "int64": "int32", "uint64": "int32",
    "float64": "float32",
}  # fmt: skip
"""Dtype of a state to the dtype in which a model file holds it, where that is another one."""

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision, as in a spec, to the element type in which floats are computed."""

CONTRACT_PATH = ["framework", METADATA_KEY]
"""Where a model file has its contract: there OpenVINO itself puts an ONNX file's metadata."""

PRECISION_PATH = ["stateful_pipeline", "precision"]
"""Where a model file says in which precision it was verified."""


def import_openvino() -> Any:
    """Return the module ``openvino``, imported on the first call.

    Raises:
        TargetError: It is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise TargetError(
            f"OpenVINO cannot be imported: {error}",
            hint="pip install 'stateful-pipeline[openvino]', or openvino alone where models run",
        ) from error


@functools.cache
def openvino_core() -> Any:
    """Return the core that reads and compiles models, one for the process.

    Raises:
        TargetError: OpenVINO is not installed, or has no CPU.
    """
    core = import_openvino().Core()
    if "CPU" not in core.available_devices:
        raise TargetError("this OpenVINO has no CPU", hint="pip install openvino, from PyPI")
    return core


def openvino_says(error: BaseException, limit: int = 400) -> str:
    """Return what OpenVINO's error says, in one line, without the places in its own sources."""
    text = " ".join(re.sub(r"Exception from \S+|Check '.*?' failed at \S+", "", str(error)).split())
    text = text or repr(error)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def check_range(what: str, array: Array, dtype: str) -> None:
    """Check that the numbers of an array fit into the 32 bits in which OpenVINO has them.

    Raises:
        ContractError: One does not.
    """
    if dtype not in ("uint32", "int64", "uint64") or array.size == 0:
        return
    limits = np.iinfo(np.int32)
    for number in (int(array.min()), int(array.max())):
        if not limits.min <= number <= limits.max:
            raise ContractError(
                f"{what} has {number}: OpenVINO computes {dtype} in 32 bits",
                hint="numbers from -2**31 to 2**31 - 1; a target of ONNX Runtime takes all",
            )


class OpenVinoEngine:
    """A compiled model and one request, which holds the states.

    Args:
        path: The file ``model.xml``; its weights lie beside it.
        threads: Threads of a step; None leaves it to OpenVINO.
        precision: A key of :data:`PRECISIONS`; None: what the file says.

    Raises:
        ContractError: The file is missing, is not a model that OpenVINO can load, or has no
            contract, or another one than its graph.
        SpecError: ``threads`` is not a positive number, or ``precision`` is none.
        TargetError: OpenVINO is not installed, or the processor lacks the precision.
    """

    def __init__(self, path: Path, threads: int | None, precision: str | None) -> None:
        check_threads(threads)
        if not path.is_file():
            raise ContractError.in_file(path, "there is no such model file")
        self._ov = import_openvino()
        core = openvino_core()
        try:
            model = core.read_model(path)
        except RuntimeError as error:
            raise ContractError.in_file(
                path, f"OpenVINO cannot read the model: {openvino_says(error)}"
            ) from error
        self.contract = _contract_of(model, path)
        self.precision = _precision_of(model, precision)
        try:
            compiled = core.compile_model(model, "CPU", _properties(threads, self.precision))
        except RuntimeError as error:
            raise ContractError.in_file(
                path, f"OpenVINO cannot compile the model: {openvino_says(error)}"
            ) from error
        _check_precision(compiled, self.precision)
        _check_graph(compiled, self.contract, path)
        self._inputs = _indices(compiled.inputs, self.contract.inputs)
        self._outputs = _indices(compiled.outputs, self.contract.outputs)
        self._request = compiled.create_infer_request()
        self._variables = {state.name: state for state in self._request.query_state()}
        _check_states(self.contract, set(self._variables), path)

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Take a step; the inputs are read where they are.

        Raises:
            RuntimeError: OpenVINO refuses the step.
        """
        for index, value in zip(self._inputs, self.contract.inputs, strict=True):
            tensor = self._tensor(arrays[value.name], value.dtype)
            self._request.set_input_tensor(index, tensor)
        self._request.infer()

    def outputs(self) -> dict[str, Array]:
        """Return the outputs of the last step: views of memory that the next one overwrites."""
        return {
            value.name: _array(self._request.get_output_tensor(index), value.dtype)
            for index, value in zip(self._outputs, self.contract.outputs, strict=True)
        }

    def reset(self) -> None:
        """Let the next step start from the initial states that the model itself has."""
        self._request.reset_state()

    def read(self, state: State) -> Array:
        """Return a copy of a state, in the contract's dtype."""
        held = _array(self._variables[state.name].state, HELD.get(state.dtype, state.dtype))
        array = held.astype(numpy_dtype(state.dtype))
        return array if state.shape else array.reshape(())

    def write(self, state: State, value: Array) -> None:
        """Set a state; the range of ``value`` has been checked."""
        held = HELD.get(state.dtype, state.dtype)
        array = np.array(value, numpy_dtype(held), order="C")
        self._variables[state.name].state = self._tensor(array, held)

    def _tensor(self, array: Array, dtype: str) -> Any:
        """Return a tensor that shares the memory of a C-contiguous ``array``."""
        if dtype != "bfloat16":
            return self._ov.Tensor(array, shared_memory=True)
        bits, shape = array.view(np.uint16), self._ov.Shape(array.shape)
        return self._ov.Tensor(bits, shape, self._ov.Type.bf16)


def _indices(ports: Sequence[Any], values: Sequence[Value]) -> list[int]:
    """Return at which of the ports each value is."""
    at = {name: index for index, port in enumerate(ports) for name in port.get_names()}
    return [at[value.name] for value in values]


def _array(tensor: Any, dtype: str) -> Array:
    array: Array = tensor.data
    return array if dtype != "bfloat16" else array.view(np.uint16).view(numpy_dtype(dtype))


def _properties(threads: int | None, precision: str) -> dict[str, Any]:
    """Return how a model is compiled: nothing is computed or held in less than is asked for."""
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": TYPES[PRECISIONS[precision]],
        "EXECUTION_MODE_HINT": "ACCURACY",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # processes beside one another would be put on one core
    }
    if threads is not None:
        properties["INFERENCE_NUM_THREADS"] = threads
    return properties


def _contract_of(model: Any, path: Path) -> Contract:
    if not model.has_rt_info(CONTRACT_PATH):
        raise ContractError.in_file(
            path,
            f"the model has no state contract (rt_info {'/'.join(CONTRACT_PATH)})",
            "take the file that a target with `runtime: openvino` leaves in `targets/`",
        )
    try:
        return Contract.from_json(model.get_rt_info(CONTRACT_PATH).astype(str))
    except ContractError as error:
        raise ContractError.in_file(path, error.message, error.hint) from error


def _precision_of(model: Any, wanted: str | None) -> str:
    if wanted is None and model.has_rt_info(PRECISION_PATH):
        wanted = model.get_rt_info(PRECISION_PATH).astype(str)
    wanted = "fp32" if wanted is None else wanted
    if wanted not in PRECISIONS:
        raise SpecError(
            f"precision is {wanted!r}", hint=f"one of {', '.join(PRECISIONS)}", key="precision"
        )
    return wanted


def _check_precision(compiled: Any, wanted: str) -> None:
    got = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if got != TYPES[PRECISIONS[wanted]]:
        raise TargetError(
            f"this processor does not compute in {wanted}: OpenVINO takes {got} instead",
            target="openvino",
            hint=" or ".join(f"`precision: {name}`" for name in _instead(got))
            + ", or a processor that does",
        )


def _instead(got: str) -> list[str]:
    """Return the precisions that can be had where OpenVINO takes ``got``."""
    offered = [name for name in PRECISIONS if TYPES[PRECISIONS[name]] == got]
    return list(dict.fromkeys(["fp32", *offered]))


def _check_graph(compiled: Any, contract: Contract, path: Path) -> None:
    """Check names and dtypes of inputs and outputs against the contract."""
    for kind, ports, values in (
        ("input", compiled.inputs, contract.inputs),
        ("output", compiled.outputs, contract.outputs),
    ):
        types = {
            name: port.get_element_type().get_type_name()
            for port in ports
            for name in port.get_names()
        }
        if len(ports) != len(values):
            raise ContractError.in_file(
                path, f"the graph has {len(ports)} {kind}s, the contract {len(values)}"
            )
        for value in values:
            if types.get(value.name) != TYPES[value.dtype]:
                raise ContractError.in_file(
                    path,
                    f"{kind} '{value.name}' is {types.get(value.name, 'not there')}, "
                    f"the contract says {value.dtype}",
                )


def _check_states(contract: Contract, held: set[str], path: Path) -> None:
    names = {state.name for state in contract.states}
    if names != held:
        odd = min(names ^ held)
        where = "is not in the graph" if odd in names else "is in the graph alone"
        raise ContractError.in_file(path, f"state '{odd}' of the contract {where}")
