"""Where the states live between steps: two buffers each, swapped, never copied.

A step reads side ``s`` and writes side ``1 - s``; only when it has succeeded does ``commit`` make
``1 - s`` the current side.  So a step that fails, or is interrupted, leaves the old state whole.

- A buffer is a block of host or device memory, wherever the session reads the state.
- A state of fixed shape is bound once per side; later steps touch no Python object of it, unless it
  lies on a device (:mod:`~stateful_pipeline.runtime.ort_binding` says why).
- A state that is updated *in place* has one buffer for both sides: a failed step may leave it
  half written.
- A state that *grows* is a view on the front of a larger buffer, which is enlarged by half when it
  is full.  Where its new shape is not known before the step, ONNX Runtime allocates, and the result
  is copied in host memory, and kept as it is on a device.
- A state whose output is a graph input, with no node between, is copied from that input, since
  ONNX Runtime does not write such outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateful_pipeline.contract import Contract, State
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.device_memory import Block, DeviceBlock
from stateful_pipeline.runtime.engine import Engine
from stateful_pipeline.runtime.ort_binding import Array, Binding
from stateful_pipeline.runtime.sizes import fits


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """One state: its block per side, twice the same one if it is updated in place."""

    state: State
    blocks: tuple[Block, Block]
    copied: bool

    @property
    def in_place(self) -> bool:
        return self.blocks[0] is self.blocks[1]

    def shape_sides(self, shape: tuple[int, ...]) -> bool:
        """Give both sides ``shape``; return whether that made new arrays."""
        one, other = self.blocks
        if one.shape == other.shape == shape:
            return False
        one.reshape(shape)
        if one is not other:
            other.reshape(shape)
        return True


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
            state.name: _slot(
                state,
                engine,
                in_place=engine.provider.in_place
                and state.in_place
                and not state.grows
                and read_after.isdisjoint((state.input, state.output)),
                copied=state.output in read_after,
            )
            for state in contract.states
        }
        slots = self._slots.values()
        self._growing = [slot for slot in slots if slot.state.grows]
        self._rebound = [
            slot
            for slot in slots
            if not slot.state.grows and isinstance(slot.blocks[0], DeviceBlock)
        ]
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
            if slot.shape_sides(shapes[name]) and not slot.state.grows:
                self._bindings = None
            slot.blocks[self._side].write(values[name])

    def store(self, values: Mapping[str, Array]) -> None:
        """Put back what :meth:`arrays` gave, with other numbers in it."""
        for name, array in values.items():
            self._slots[name].blocks[self._side].write(array)

    def arrays(self) -> dict[str, Array]:
        """Return the current states by name: the buffers themselves in host memory, else copies."""
        return {name: slot.blocks[self._side].read() for name, slot in self._slots.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the current shapes by name."""
        return {name: _shape(slot.blocks[self._side]) for name, slot in self._slots.items()}

    def growing_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the current shapes of the states that grow, in the contract's order."""
        return tuple([_shape(slot.blocks[self._side]) for slot in self._growing])

    def bind(self, grown: Mapping[str, tuple[int, ...] | None]) -> Binding:
        """Return the binding of the next step, with all states bound.

        Args:
            grown: Shape after the step of each state that grows; None where it is not known.
        """
        if self._bindings is None:
            self._bindings = [self._bind_fixed(0), self._bind_fixed(1)]
        binding = self._bindings[self._side]
        for slot in self._rebound:
            slot.blocks[self._side].bind_input(binding, slot.state.input)
        for slot in self._growing:
            slot.blocks[self._side].bind_input(binding, slot.state.input)
            if slot.copied:
                continue
            shape, new = grown[slot.state.name], slot.blocks[1 - self._side]
            if shape is None:
                new.bind_unknown(binding, slot.state.output)
            else:
                new.reshape(shape)
                new.bind_output(binding, slot.state.output)
        return binding

    def unbind(self) -> None:
        """Forget the bindings, after one that was used to find out why a step failed."""
        self._bindings = None

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
                new = slot.blocks[1 - self._side]
                new.take(binding, slot.state.output)
                _check_shape(slot, _shape(new), _shape(slot.blocks[self._side]))
        for slot in self._copied:
            # A copy on the device goes on while the host does; the next step must not overtake it.
            if self._pass_on(slot, inputs):
                binding.synchronize()

    def before(self, graph_input: str, inputs: Mapping[str, Array]) -> Array:
        """Return what the step was given as ``graph_input``: a user's array, or a state's."""
        if graph_input in inputs:
            return inputs[graph_input]
        return self._by_input[graph_input].blocks[self._side].read()

    def after(self, graph_output: str) -> Array | None:
        """Return what a finished step left for ``graph_output``, if that is a state's."""
        slot = self._by_output.get(graph_output)
        return None if slot is None else slot.blocks[1 - self._side].read()

    def commit(self) -> None:
        """Make what the step wrote the current state."""
        self._side = 1 - self._side

    def _bind_fixed(self, side: int) -> Binding:
        binding = self._engine.binding()
        for slot in self._slots.values():
            if not slot.state.grows:
                slot.blocks[side].bind_input(binding, slot.state.input)
                if not slot.copied:
                    slot.blocks[1 - side].bind_output(binding, slot.state.output)
        return binding

    def _pass_on(self, slot: _Slot, inputs: Mapping[str, Array]) -> bool:
        """Give a state the graph input that is its output; return whether the device is at it."""
        name, new = slot.state.output, slot.blocks[1 - self._side]
        if name in inputs:
            _take_shape(slot, new, inputs[name].shape)
            new.write(inputs[name])
            return False
        old = self._by_input[name].blocks[self._side]
        _take_shape(slot, new, _shape(old))
        return new.copy(old)


def _slot(state: State, engine: Engine, in_place: bool, copied: bool) -> _Slot:
    one = engine.block(state.input, state.dtype, state.grows)
    other = one if in_place else engine.block(state.input, state.dtype, state.grows)
    return _Slot(state, (one, other), copied)


def _shape(block: Block) -> tuple[int, ...]:
    assert block.shape is not None
    return block.shape


def _take_shape(slot: _Slot, block: Block, shape: tuple[int, ...]) -> None:
    _check_shape(slot, shape, _shape(block))
    if slot.state.grows:
        block.reshape(shape)


def _check_shape(slot: _Slot, shape: tuple[int, ...], buffer: tuple[int, ...]) -> None:
    """Check the shape of a new state.

    Raises:
        ContractError: It is not the contract's, or, of a state that does not grow, not the old one.
    """
    declared = slot.state.out_shape or slot.state.shape
    same = slot.state.grows or shape == buffer
    if not same or not fits(declared, shape):
        raise ContractError(
            f"state '{slot.state.name}' came out as {list(shape)}, "
            f"the contract says [{', '.join(map(str, declared))}]"
        )
