"""Where the states live between steps: two buffers each, swapped, never copied.

A step reads side ``s`` and writes side ``1 - s``; only when it has succeeded does ``commit`` make
``1 - s`` the current side.  So a step that fails, or is interrupted, leaves the old state whole.

- A state of fixed shape is bound once per side; later steps touch no Python object of it.
- A state that is updated *in place* has one buffer for both sides: a failed step may leave it
  half written.
- A state that *grows* is a view on the front of a larger buffer, which is enlarged by half when it
  is full.  Where its new shape is not known before the step, ONNX Runtime allocates, and the result
  is copied.
- A state whose output is a graph input, with no node between, is copied from that input, since
  ONNX Runtime does not write such outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import Array, Binding, Engine
from stateful_pipeline.runtime.sizes import fits


@dataclass(slots=True, eq=False)
class _Slot:
    """One state: per side its memory (flat), the array now in it, and that as an ``OrtValue``."""

    state: State
    dtype: np.dtype[Any]
    in_place: bool
    copied: bool
    memory: list[Array] = field(init=False)
    arrays: list[Array] = field(init=False)
    values: list[Any] = field(default_factory=lambda: [None, None])

    def __post_init__(self) -> None:
        self.memory = [np.empty(0, self.dtype)] * 2
        self.arrays = list(self.memory)

    def shape_sides(self, shape: tuple[int, ...], engine: Engine) -> bool:
        """Give both sides ``shape``; return whether that made new arrays."""
        if self.values[0] is not None and self.arrays[0].shape == self.arrays[1].shape == shape:
            return False
        self.shape_side(0, shape, engine)
        if self.in_place:
            self.memory[1], self.arrays[1] = self.memory[0], self.arrays[0]
            self.values[1] = self.values[0]
        else:
            self.shape_side(1, shape, engine)
        return True

    def shape_side(self, side: int, shape: tuple[int, ...], engine: Engine) -> None:
        """Give one side ``shape``; what it holds is lost."""
        needed = int(np.prod(shape, dtype=np.int64))
        capacity = self.memory[side].size
        if needed > capacity:
            spare = needed // 2 if self.state.grows and capacity else 0
            self.memory[side] = np.empty(needed + spare, self.dtype)
        self.arrays[side] = self.memory[side][:needed].reshape(shape)
        self.values[side] = engine.value(self.arrays[side], self.state.dtype)


class StateBuffers:
    """The states of one runner, as memory that a session reads and writes directly.

    Args:
        contract: The contract of the model.
        engine: The session.
    """

    def __init__(self, contract: Contract, engine: Engine) -> None:
        graph_inputs = {v.name for v in contract.inputs} | {s.input for s in contract.states}
        gives = [v.name for v in contract.outputs] + [s.output for s in contract.states]
        read_after = graph_inputs.intersection(gives)
        self._engine = engine
        self._slots = {
            state.name: _Slot(
                state,
                numpy_dtype(state.dtype),
                in_place=state.in_place
                and not state.grows
                and read_after.isdisjoint((state.input, state.output)),
                copied=state.output in read_after,
            )
            for state in contract.states
        }
        slots = self._slots.values()
        self._growing = [slot for slot in slots if slot.state.grows]
        self._copied = [slot for slot in slots if slot.copied]
        self._by_input = {slot.state.input: slot for slot in slots}
        self._by_output = {slot.state.output: slot for slot in slots}
        self._bindings: list[Binding] | None = None
        self._side = 0
        self.in_place = tuple(slot.state.name for slot in slots if slot.in_place)
        """Names of the states that a failed step may leave half written."""

    def fill(self, values: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make ``values``, expanded to ``shapes``, the current state."""
        for name, slot in self._slots.items():
            if slot.shape_sides(shapes[name], self._engine) and not slot.state.grows:
                self._bindings = None
            np.copyto(slot.arrays[self._side], values[name], casting="no")

    def arrays(self) -> dict[str, Array]:
        """Return the current states by name: views of the buffers, not copies."""
        return {name: slot.arrays[self._side] for name, slot in self._slots.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the current shapes by name."""
        return {name: slot.arrays[self._side].shape for name, slot in self._slots.items()}

    def growing_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the current shapes of the states that grow, in the contract's order."""
        return tuple([slot.arrays[self._side].shape for slot in self._growing])

    def bind(self, grown: Mapping[str, tuple[int, ...] | None]) -> Binding:
        """Return the binding of the next step, with all states bound.

        Args:
            grown: Shape after the step of each state that grows; None where it is not known.
        """
        if self._bindings is None:
            self._bindings = [self._bind_fixed(0), self._bind_fixed(1)]
        binding = self._bindings[self._side]
        for slot in self._growing:
            binding.bind_input(slot.state.input, slot.values[self._side])
            shape = grown[slot.state.name]
            if slot.copied:
                continue
            if shape is None:
                binding.bind_output(slot.state.output, None)
            else:
                slot.shape_side(1 - self._side, shape, self._engine)
                binding.bind_output(slot.state.output, slot.values[1 - self._side])
        return binding

    def finish(self, binding: Binding, inputs: Mapping[str, Array]) -> None:
        """After the run, copy the new states that it could not write itself.

        Args:
            binding: The binding that ran.
            inputs: The user's inputs by name.

        Raises:
            ContractError: Such a state has a shape that is not the contract's.
        """
        for slot in self._growing:
            if not slot.copied and binding.outputs[slot.state.output] is None:
                self._store(slot, binding.copy_output(slot.state.output, slot.state.dtype))
        for slot in self._copied:
            self._store(slot, self.before(slot.state.output, inputs))

    def before(self, graph_input: str, inputs: Mapping[str, Array]) -> Array:
        """Return what the step was given as ``graph_input``: a user's array, or a state's."""
        if graph_input in inputs:
            return inputs[graph_input]
        return self._by_input[graph_input].arrays[self._side]

    def after(self, graph_output: str) -> Array | None:
        """Return what a finished step left for ``graph_output``, if that is a state's."""
        slot = self._by_output.get(graph_output)
        return None if slot is None else slot.arrays[1 - self._side]

    def commit(self) -> None:
        """Make what the step wrote the current state."""
        self._side = 1 - self._side

    def _bind_fixed(self, side: int) -> Binding:
        binding = self._engine.binding()
        for slot in self._slots.values():
            if not slot.state.grows:
                binding.bind_input(slot.state.input, slot.values[side])
                if not slot.copied:
                    binding.bind_output(slot.state.output, slot.values[1 - side])
        return binding

    def _store(self, slot: _Slot, array: Array) -> None:
        side = 1 - self._side
        declared = slot.state.out_shape or slot.state.shape
        same = slot.state.grows or array.shape == slot.arrays[side].shape
        if not same or not fits(declared, array.shape):
            raise ContractError(
                f"state '{slot.state.name}' came out as {list(array.shape)}, "
                f"the contract says [{', '.join(map(str, declared))}]"
            )
        if slot.state.grows:
            slot.shape_side(side, array.shape, self._engine)
        np.copyto(slot.arrays[side], array, casting="no")
