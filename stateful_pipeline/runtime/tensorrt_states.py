"""Where the states of an engine lie between steps: on the device, never copied to the host.

A step reads side ``s`` and writes side ``1 - s``; when it has succeeded, ``commit`` makes ``1 - s``
the current side.  So a step that fails leaves the old state whole, and a step that succeeds moves
no state, whatever its size.

- A state that *grows* has its sides enlarged by half when they are full.  Where its new shape is
  not known before the step, TensorRT asks for memory in the middle of it.
- A state that the engine updates *in place* (``ICudaEngine.get_aliased_input_tensor``) has one
  buffer for both sides: a failed step may leave it half written.
- A state that shapes depend on is read by TensorRT on the host.  It is small, and lies in
  page-locked memory; where the engine writes it on the device, the step brings it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State, numpy_dtype
from stateful_pipeline.runtime.cuda_device import Device
from stateful_pipeline.runtime.cuda_memory import (
    HostMemory,
    Memory,
    new_memory,
    size_in_bytes,
)
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.tensorrt_tensors import Tensor


@dataclass(slots=True, eq=False)
class _Slot:
    """One state: its two sides, and where the engine writes if that is neither."""

    state: State
    dtype: np.dtype[Any]
    sides: tuple[Memory, Memory]
    written: Memory | None
    shapes: list[tuple[int, ...]] = field(default_factory=lambda: [(), ()])

    def memories(self) -> set[Memory]:
        return {*self.sides} | ({self.written} if self.written is not None else set())


class DeviceStates:
    """The states of one runner.

    Args:
        contract: The contract of the model.
        tensors: Graph input or output to what the engine says of it.
        device: Where they lie.
        stream: The stream that reads and writes them.
    """

    def __init__(
        self, contract: Contract, tensors: Mapping[str, Tensor], device: Device, stream: int
    ) -> None:
        self._stream = stream
        self._slots = {state.name: _slot(state, tensors, device) for state in contract.states}
        self._by_output = {slot.state.output: slot for slot in self._slots.values()}
        self._side = 0
        self.in_place = tuple(
            name for name, slot in self._slots.items() if slot.sides[0] is slot.sides[1]
        )
        """Names of the states that a failed step may leave half written."""

    def put(self, values: Mapping[str, Array]) -> list[Array]:
        """Let the stream make ``values`` the current ones of these states.

        Returns:
            What it reads: to be kept until it is synchronized.
        """
        return [self._put(self._slots[name], array) for name, array in values.items()]

    def get(self) -> dict[str, Array]:
        """Let the stream fill new arrays with the current states, by name."""
        arrays = {}
        for name, slot in self._slots.items():
            arrays[name] = np.empty(slot.shapes[self._side], slot.dtype)
            slot.sides[self._side].download(arrays[name], self._stream)
        return arrays

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the current shapes by name."""
        return {name: slot.shapes[self._side] for name, slot in self._slots.items()}

    def inputs(self) -> dict[str, int]:
        """Return the address that each graph input of a state is to be read at."""
        return {s.state.input: s.sides[self._side].address for s in self._slots.values()}

    def output(self, name: str) -> Memory | None:
        """Return where a step writes graph output ``name``, if that is a state's."""
        slot = self._by_output.get(name)
        if slot is None:
            return None
        return slot.sides[1 - self._side] if slot.written is None else slot.written

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the state whose graph output is ``name``."""
        return self._by_output[name].dtype

    def make_room(self, name: str, size: int) -> int:
        """Return the address at which a step is to write ``size`` bytes for output ``name``."""
        memory = self.output(name)
        assert memory is not None
        return memory.reserve(size, size // 2 if self._by_output[name].state.grows else 0)

    def finish(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Let the stream bring over what the step did not write where the next one reads.

        Args:
            shapes: Graph output to the shape that it has after the step.
        """
        after = 1 - self._side
        for output, slot in self._by_output.items():
            slot.shapes[after] = shapes[output]
            if slot.written is None:
                continue
            slot.sides[after].reserve(size_in_bytes(shapes[output], slot.dtype))
            if isinstance(slot.written, HostMemory):
                view = slot.written.view(shapes[output], slot.dtype)
                slot.sides[after].upload(view, self._stream)
            else:
                into = slot.sides[after]
                assert isinstance(into, HostMemory)
                slot.written.download(into.view(shapes[output], slot.dtype), self._stream)

    def commit(self) -> None:
        """Make what the step wrote the current state."""
        self._side = 1 - self._side

    def close(self) -> None:
        """Give all memory back."""
        for slot in self._slots.values():
            for memory in slot.memories():
                memory.close()

    def _put(self, slot: _Slot, array: Array) -> Array:
        memory = slot.sides[self._side]
        memory.reserve(array.nbytes)
        slot.shapes[self._side] = array.shape
        memory.upload(array, self._stream)
        return array


def _slot(state: State, tensors: Mapping[str, Tensor], device: Device) -> _Slot:
    reads, writes = tensors[state.input], tensors[state.output]
    first = new_memory(device, reads.on_host)
    second = first if writes.aliased is not None else new_memory(device, reads.on_host)
    elsewhere = writes.on_host != reads.on_host
    written = new_memory(device, writes.on_host) if elsewhere else None
    return _Slot(state, numpy_dtype(state.dtype), (first, second), written)
