"""One step of an engine: from checked inputs to outputs, with nothing committed.

The inputs go to the device, the outputs come back; both by way of page-locked memory, so that the
stream does all of it in order and the host waits once, at the end.  The states stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, Value, numpy_dtype
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.cuda_device import Device
from stateful_pipeline.runtime.cuda_memory import HostMemory, Memory, new_memory, size_in_bytes
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.sizes import AxisRules, Sizes, fits
from stateful_pipeline.runtime.tensorrt_context import Context
from stateful_pipeline.runtime.tensorrt_engine import TensorRtEngine
from stateful_pipeline.runtime.tensorrt_states import DeviceStates

Shapes = dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Call:
    """One step under way.

    Attributes:
        inputs: The user's inputs by name.
        given: The user's buffers for outputs.
        sizes: Size of each axis and expression.
        context: What runs the step.
        shapes: Graph output to shape; those that only the run can tell are added by it.
    """

    inputs: dict[str, Array]
    given: dict[str, Array]
    sizes: Sizes
    context: Context
    shapes: Shapes


class EngineStepper:
    """Runs single steps of one engine.

    Args:
        path: The engine file, for messages.
        contract: Its contract.
        engine: The engine.
        states: Its states.
        rules: Its axes.
        device: Where it runs; the current device in every call.
        stream: The stream on which it runs.
    """

    def __init__(
        self,
        path: Path,
        contract: Contract,
        engine: TensorRtEngine,
        states: DeviceStates,
        rules: AxisRules,
        device: Device,
        stream: int,
    ) -> None:
        self._path = path
        self._contract = contract
        self._engine = engine
        self._states = states
        self._rules = rules
        self._device = device
        self._stream = stream
        self._dims: dict[str, Shape] = {value.name: value.shape for value in contract.inputs}
        self._dims |= {state.input: state.shape for state in contract.states}
        self._inputs = {
            value.name: _Staged(value, engine.tensors[value.name].on_host, device)
            for value in contract.inputs
        }
        # An output that is a state too lies where the state does.
        shared = {state.output for state in contract.states}
        self._outputs = {
            value.name: _Staged(value, engine.tensors[value.name].on_host, device)
            for value in contract.outputs
            if value.name not in shared
        }
        self._also_states = [value for value in contract.outputs if value.name in shared]
        declared: dict[str, Shape] = {value.name: value.shape for value in contract.outputs}
        self._declared = declared | {
            state.output: state.out_shape or state.shape for state in contract.states
        }

    def profile(self, inputs: Mapping[str, Array], states: Mapping[str, tuple[int, ...]]) -> int:
        """Return the number of the profile that a step takes.

        Args:
            inputs: The checked inputs.
            states: State name to the shape before the step.

        Raises:
            ContractError: No profile covers the step.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        shapes |= {state.input: states[state.name] for state in self._contract.states}
        return self._engine.choose(shapes, self._dims)

    def prepare(
        self, profile: int, inputs: dict[str, Array], given: dict[str, Array], sizes: Sizes
    ) -> Call:
        """Bring the inputs to the device, and find memory for each output.

        Raises:
            ContractError: A buffer does not fit, or the engine would give a shape that the contract
                denies.
        """
        context = self._engine.contexts[profile]
        for name, array in inputs.items():
            context.set_input(name, array.shape, self._inputs[name].send(array, self._stream))
        shapes = self._states.shapes()
        addresses = self._states.inputs()
        for state in self._contract.states:
            context.set_input(state.input, shapes[state.name], addresses[state.input])
        self._point_shape_outputs(context)
        context.infer_shapes()
        call = Call(inputs, given, sizes, context, {})
        for name in self._declared:
            shape = context.output_shape(name)
            if -1 in shape:
                context.allocate_through(name, self._reserve)
                continue
            self._check_shape(name, shape, call)
            context.set_address(name, self._reserve(name, size_in_bytes(shape, self._dtype(name))))
        return call

    def execute(self, call: Call) -> dict[str, Array]:
        """Run a prepared step; the new states are written, not committed.

        Raises:
            ContractError: TensorRT refused the step, or gave shapes that the contract denies.
            TargetError: The device failed.
        """
        told = call.context.enqueue(self._stream)
        for name, shape in told.items():
            self._check_shape(name, shape, call)
        self._states.finish(call.shapes)
        for name, staged in self._outputs.items():
            staged.fetch(call.shapes[name], self._stream)
        results = {v.name: self._state_output(v.name, call) for v in self._also_states}
        self._device.synchronize(self._stream)
        for name, staged in self._outputs.items():
            results[name] = staged.take(call.shapes[name], call.given.get(name))
        return {value.name: results[value.name] for value in self._contract.outputs}

    def close(self) -> None:
        """Give all memory back; the stream must be idle."""
        for staged in (*self._inputs.values(), *self._outputs.values()):
            staged.close()

    def _point_shape_outputs(self, context: Context) -> None:
        """Set the addresses that the inference of shapes itself writes to.

        What was set for the step before is where this one reads.
        """
        for name, tensor in self._engine.tensors.items():
            if tensor.is_input or not tensor.shape_io:
                continue
            known = -1 not in tensor.shape
            size = size_in_bytes(tensor.shape, self._dtype(name)) if known else 0
            context.set_address(name, self._reserve(name, size) if known else 0)

    def _check_shape(self, name: str, shape: tuple[int, ...], call: Call) -> None:
        """Note the shape of a graph output, and check it against contract and buffer."""
        declared = self._declared[name]
        known = self._rules.known(declared, call.sizes)
        if not fits(declared, shape) or known not in (None, shape):
            raise ContractError.in_file(
                self._path,
                f"graph output '{name}' has shape {list(shape)} in this step, the contract says "
                f"[{', '.join(map(str, declared if known is None else known))}]",
                "the shape that the contract declares is wrong: export the model again",
            )
        buffer = call.given.get(name)
        if buffer is not None and buffer.shape != shape:
            raise ContractError(
                f"out: '{name}' has shape {list(buffer.shape)}, this step gives {list(shape)}"
            )
        call.shapes[name] = shape

    def _reserve(self, name: str, size: int) -> int:
        """Return the address of ``size`` bytes for graph output ``name``."""
        staged = self._outputs.get(name)
        return self._states.make_room(name, size) if staged is None else staged.reserve(size)

    def _dtype(self, name: str) -> np.dtype[Any]:
        staged = self._outputs.get(name)
        return self._states.dtype(name) if staged is None else staged.dtype

    def _state_output(self, name: str, call: Call) -> Array:
        """Let the stream fill an array of the caller's with a new state that is an output too."""
        buffer = call.given.get(name)
        shape, dtype = call.shapes[name], self._dtype(name)
        array = np.empty(shape, dtype) if buffer is None else buffer
        memory = self._states.output(name)
        assert memory is not None
        if isinstance(memory, HostMemory):
            self._device.synchronize(self._stream)
        memory.download(array, self._stream)
        return array


class _Staged:
    """Where an input or an output lies on the device, and in page-locked memory for its copy."""

    def __init__(self, value: Value, on_host: bool, device: Device) -> None:
        self.dtype = numpy_dtype(value.dtype)
        self._host = HostMemory(device)
        self._memory: Memory = self._host if on_host else new_memory(device, on_host=False)

    def send(self, array: Array, stream: int) -> int:
        """Let the stream bring an input to where the engine reads it; return that address."""
        self._host.reserve(array.nbytes)
        view = self._host.view(array.shape, self.dtype)
        np.copyto(view, array, casting="no")
        if not self._memory.on_host:
            self._memory.reserve(array.nbytes)
            self._memory.upload(view, stream)
        return self._memory.address

    def reserve(self, size: int) -> int:
        """Return the address at which the engine is to write ``size`` bytes."""
        return self._memory.reserve(size)

    def fetch(self, shape: tuple[int, ...], stream: int) -> None:
        """Let the stream bring an output to the host."""
        if not self._memory.on_host:
            self._host.reserve(size_in_bytes(shape, self.dtype))
            self._memory.download(self._host.view(shape, self.dtype), stream)

    def take(self, shape: tuple[int, ...], buffer: Array | None) -> Array:
        """Return an output that was fetched, in memory of the caller's."""
        view = self._host.view(shape, self.dtype)
        if buffer is None:
            return view.copy()
        np.copyto(buffer, view, casting="no")
        return buffer

    def close(self) -> None:
        """Give the memory back."""
        self._host.close()
        self._memory.close()
