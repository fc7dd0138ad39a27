"""An ONNX file whose states are explicit already, as a module that feeds its outputs back itself.

The module holds each state in a buffer, which a call gives to the file with the inputs, as plain
arrays, and replaces by the output that goes with it.  So it is driven as any other module is, and
is the reference for what is built from the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stateful_pipeline.contract import numpy_dtype
from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.arrays import to_numpy
from stateful_pipeline.model.program import Port
from stateful_pipeline.model.reference import Tensors
from stateful_pipeline.model.sizes import fix_axes, fixed_sizes

_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({kind})": kind for kind in ("int8", "int16", "int32", "int64", "uint8")},
}  # fmt: skip
"""ONNX Runtime's names of the element types that PyTorch and numpy have too."""


@dataclass(frozen=True)
class Pair:
    """A state: its name, and the graph input and output that carry it."""

    name: str
    input: str
    output: str


@dataclass(frozen=True)
class Slot:
    """An input or output of the file: its dtype (None if it has no form here) and dimensions."""

    dtype: str | None
    shape: tuple[int | str | None, ...]


class OnnxFile:
    """A file that ONNX Runtime has loaded; copies of it are the same one.

    Args:
        path: The file.

    Attributes:
        path: The file.
        inputs: What it takes, by name; what has a default in the file is left out.
        outputs: What it gives, by name.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised, so that printing them says them twice
        self.path = path
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {value.name: _slot(value) for value in self._session.get_inputs()}
        self.outputs = {value.name: _slot(value) for value in self._session.get_outputs()}

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxFile:
        return self

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
        """Run it once; outputs by name."""
        names = list(self.outputs)
        arrays = self._session.run(names, dict(feeds))
        return {
            name: torch.from_numpy(np.array(array))
            for name, array in zip(names, arrays, strict=True)
        }


def _slot(value: Any) -> Slot:
    shape = value.shape or []
    return Slot(_TYPES.get(value.type), tuple(dim or None for dim in shape))


class ExplicitOnnx(nn.Module):
    """The file as a stateful module.

    Args:
        file: The file.
        pairs: Its states.
        initial: The initial value of each state, by name; its path in the module, too.
    """

    def __init__(
        self, file: OnnxFile, pairs: Sequence[Pair], initial: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__()
        self.onnx_file = file
        self.onnx_pairs = tuple(pairs)
        for pair in pairs:
            *above, name = pair.name.split(".")
            holder: nn.Module = self
            for part in above:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_buffer(name, initial[pair.name])

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        """Take one step; what is no tensor is converted to the dtype of its input."""
        feeds = {name: _array(value, self.onnx_file.inputs[name]) for name, value in inputs.items()}
        for pair in self.onnx_pairs:
            feeds[pair.input] = to_numpy(self.get_buffer(pair.name))
        results = self.onnx_file.run(feeds)
        for pair in self.onnx_pairs:
            above, _, name = pair.name.rpartition(".")
            setattr(self.get_submodule(above), name, results.pop(pair.output))
        return results


def _array(value: Any, slot: Slot) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        return to_numpy(value)
    return np.asarray(value, numpy_dtype(slot.dtype or "float32"))


@dataclass(frozen=True)
class OnnxProgram:
    """The file as a program whose states are explicit.

    Attributes:
        module: The file.
        constants: Inputs of the file that are fixed, by name.
        inputs: Names of the other inputs, states left out.
        outputs: Names of the outputs, states left out.
        states: Names of the states.
        ports: The descriptions that :meth:`given` and :meth:`made` return.
    """

    frontend = "onnx"

    module: ExplicitOnnx
    constants: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    ports: tuple[tuple[Port, ...], tuple[Port, ...]]

    @property
    def raises(self) -> tuple[Place, ...]:
        """Nothing raises in a graph."""
        return ()

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        return list(self.ports[0])

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        return list(self.ports[1])

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether an input, an output or a state has one of ``dtypes``."""
        return any(port.dtype in dtypes for ports in self.ports for port in ports)

    def code(self, title: str) -> str:
        """Return what goes in and out, as comments."""
        pairs = [f"# {p.name}: {p.input} -> {p.output}" for p in self.module.onnx_pairs]
        return "\n".join([f"# {title}", f"# {self.module.onnx_file.path.name}", *pairs, ""])

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the file: ``(outputs, new states)``, both by name."""
        file = self.module.onnx_file
        feeds = {n: _array(v, file.inputs[n]) for n, v in {**inputs, **self.constants}.items()}
        feeds |= {pair.input: to_numpy(states[pair.name]) for pair in self.module.onnx_pairs}
        results = file.run(feeds)
        after = {pair.name: results.pop(pair.output) for pair in self.module.onnx_pairs}
        return results, after

    def with_outputs(self, names: tuple[str, ...]) -> OnnxProgram:
        """Return the same with other names of outputs."""
        return replace(self, outputs=names)


def explicit_program(module: ExplicitOnnx, reference: Any, plan: Any) -> OnnxProgram:
    """Return the file of ``module`` as a program.

    Args:
        module: The file.
        reference: The module with its states settled.
        plan: The inputs.

    Raises:
        StageError: An output has an element type that PyTorch or numpy lack.
    """
    known = {axis.name for axis in reference.axes}
    states = {state.name: state for state in reference.states}
    missing = [pair.name for pair in module.onnx_pairs if pair.name not in states]
    order = [pair for pair in module.onnx_pairs if pair.name in states]
    if missing or len(order) != len(states):
        raise StageError(f"{', '.join(missing)}: not found again as states", stage="script")
    taken = {pair.output for pair in module.onnx_pairs}
    outputs = [name for name in module.onnx_file.outputs if name not in taken]
    ordered = list(states.values())
    given = [(s.initial.dtype, s.shape) for s in ordered]
    given += [(value.dtype, value.shape) for value in plan.inputs]
    made = [(_dtype(module, name), _named(name, module, known)) for name in outputs]
    made += [(s.initial.dtype, s.out_shape or s.shape) for s in ordered]
    fixed = fixed_sizes(reference.axes)
    return OnnxProgram(
        module,
        reference.call.constants,
        tuple(value.name for value in plan.inputs),
        tuple(outputs),
        tuple(states),
        (
            tuple(Port(dtype, fix_axes(shape, fixed)) for dtype, shape in given),
            tuple(Port(dtype, fix_axes(shape, fixed)) for dtype, shape in made),
        ),
    )


def _dtype(module: ExplicitOnnx, name: str) -> torch.dtype:
    dtype = module.onnx_file.outputs[name].dtype
    if dtype is None:
        raise StageError(
            f"output '{name}' has an element type that cannot be compared", stage="script"
        )
    found: torch.dtype = getattr(torch, dtype)
    return found


def _named(name: str, module: ExplicitOnnx, known: set[str]) -> Shape:
    """Return the shape of an output; a size that the file does not tell has a name of its own."""
    dims: list[Dim] = []
    for index, dim in enumerate(module.onnx_file.outputs[name].shape):
        own = f"size_of_{name}_{index}"
        dims.append(dim if isinstance(dim, int) or dim in known else own)
    return tuple(dims)
