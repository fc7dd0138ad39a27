"""One step: from checked inputs to outputs, with the states bound and nothing committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stateful_pipeline.contract import Contract, numpy_dtype
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import check_buffers
from stateful_pipeline.runtime.buffers import StateBuffers
from stateful_pipeline.runtime.engine import Engine, first_line
from stateful_pipeline.runtime.ort_binding import Array, Binding
from stateful_pipeline.runtime.sizes import AxisRules, Sizes, fits

_MOST_PLANS = 256

KnownShape = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the shapes of the inputs and of the states determine.

    Attributes:
        sizes: Size of each axis and expression.
        outputs: Output name to shape; None where only the run can tell.
        grown: The same for the states that grow, after the step.
    """

    sizes: Sizes
    outputs: dict[str, KnownShape]
    grown: dict[str, KnownShape]


@dataclass(slots=True)
class Call:
    """One step under way: ``memory`` is where each output goes, None where that is not known."""

    plan: Plan
    inputs: dict[str, Array]
    given: dict[str, Array]
    memory: dict[str, Array | None]
    binding: Binding | None = None


class Stepper:
    """Runs single steps of one model.

    Args:
        path: The model file, for messages.
        contract: Its contract.
        engine: Its session.
        buffers: Its states.
        rules: Its axes.
    """

    def __init__(
        self,
        path: Path,
        contract: Contract,
        engine: Engine,
        buffers: StateBuffers,
        rules: AxisRules,
    ) -> None:
        self._path = path
        self._contract = contract
        self._engine = engine
        self._buffers = buffers
        self._rules = rules
        self._dtypes = {value.name: numpy_dtype(value.dtype) for value in contract.outputs}
        # Graph outputs that are a graph input, or a state, under the same name: copied by hand.
        graph_inputs = {v.name for v in contract.inputs} | {s.input for s in contract.states}
        same = graph_inputs | {state.output for state in contract.states}
        self._copied = self._dtypes.keys() & same
        self._written = [v for v in contract.outputs if v.name not in self._copied]
        self._plans: dict[tuple[tuple[int, ...], ...], Plan] = {}
        self._planned_for: Sizes = {}

    def plan(
        self,
        inputs: Mapping[str, Array],
        pending: Mapping[str, Array] | None,
        bound: Sizes,
    ) -> Plan:
        """Return the plan of a step; those of later steps are kept by shape.

        Args:
            inputs: The checked inputs.
            pending: The states that the step is to start from, if they are not in the buffers.
            bound: The axes that are bound.

        Raises:
            ContractError: The sizes do not fit.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        if pending is not None:
            return self._make_plan(
                shapes, {name: array.shape for name, array in pending.items()}, bound
            )
        if bound != self._planned_for or len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
            self._planned_for = bound
        key = (*shapes.values(), *self._buffers.growing_shapes())
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make_plan(shapes, self._buffers.shapes(), bound)
        return plan

    def prepare(
        self, plan: Plan, inputs: dict[str, Array], out: Mapping[str, Array] | None
    ) -> Call:
        """Find memory for each output: the caller's, or new.

        Raises:
            ContractError: A buffer in ``out`` does not fit.
        """
        given = check_buffers(out, self._contract, inputs) if out else {}
        memory: dict[str, Array | None] = {}
        for name, shape in plan.outputs.items():
            buffer = given.get(name)
            if buffer is not None:
                _check_buffer(name, buffer, shape)
            if name in self._copied or shape is None:
                memory[name] = None
            else:
                memory[name] = np.empty(shape, self._dtypes[name]) if buffer is None else buffer
        return Call(plan, inputs, given, memory)

    def bind(self, call: Call) -> None:
        """Bind the inputs, the states in the buffers, and the outputs."""
        value_of = self._engine.value
        binding = call.binding = self._buffers.bind(call.plan.grown)
        for value in self._contract.inputs:
            binding.bind_input(value.name, value_of(call.inputs[value.name], value.dtype))
        for value in self._written:
            array = call.memory[value.name]
            binding.bind_output(value.name, None if array is None else value_of(array, value.dtype))

    def execute(self, call: Call) -> dict[str, Array]:
        """Run a bound step; the new states are in the buffers, not committed.

        Raises:
            ContractError: ONNX Runtime refused the step, or gave shapes that the contract denies.
        """
        binding = call.binding
        if binding is None:
            raise RuntimeError("a call is bound before it is executed")
        try:
            binding.run()
        except ContractError as error:
            raise ContractError.in_file(self._path, error.message, error.hint) from error
        except Exception as error:
            raise self._explain(error, binding, call.plan) from error
        self._buffers.finish(binding, call.inputs)
        for name, array in call.memory.items():
            if array is None:
                call.memory[name] = self._collect(name, binding, call)
        return {name: array for name, array in call.memory.items() if array is not None}

    def _make_plan(
        self,
        inputs: Mapping[str, tuple[int, ...]],
        states: Mapping[str, tuple[int, ...]],
        bound: Sizes,
    ) -> Plan:
        sizes = self._rules.step(inputs, states, bound)
        after = {s.name: s.out_shape for s in self._contract.states if s.out_shape is not None}
        return Plan(
            sizes,
            {value.name: self._rules.known(value.shape, sizes) for value in self._contract.outputs},
            {name: self._rules.known(shape, sizes) for name, shape in after.items()},
        )

    def _collect(self, name: str, binding: Binding, call: Call) -> Array:
        """Return an output that ONNX Runtime did not write to memory of ours."""
        value = next(value for value in self._contract.outputs if value.name == name)
        if name in self._copied:
            state = self._buffers.after(name)
            same = self._buffers.before(name, call.inputs) if state is None else state
            array = same.copy()
        else:
            array = binding.copy_output(name, value.dtype)
        known = call.plan.outputs[name]
        if not fits(value.shape, array.shape) or known not in (None, array.shape):
            raise self._wrong_shape(name, array.shape, value.shape if known is None else known)
        buffer = call.given.get(name)
        if buffer is None:
            return array
        _check_buffer(name, buffer, array.shape)
        np.copyto(buffer, array, casting="no")
        return buffer

    def _explain(self, error: Exception, binding: Binding, plan: Plan) -> ContractError:
        """Return the error for a failed run: whose shape is not as declared, if that is why."""
        declared = dict(plan.outputs)
        shapes = self._buffers.shapes()
        for state in self._contract.states:
            declared[state.output] = plan.grown.get(state.name, shapes[state.name])
        self._buffers.unbind()
        for name, shape in (binding.shapes() or {}).items():
            wanted = declared[name]
            if wanted is not None and wanted != shape:
                return self._wrong_shape(name, shape, wanted)
        return ContractError.in_file(
            self._path, f"ONNX Runtime could not run the step: {first_line(error)}"
        )

    def _wrong_shape(self, name: str, shape: tuple[int, ...], declared: Shape) -> ContractError:
        return ContractError.in_file(
            self._path,
            f"graph output '{name}' has shape {list(shape)} in this step, "
            f"the contract says [{', '.join(map(str, declared))}]",
            "the shape that the contract declares is wrong: export the model again",
        )


def _check_buffer(name: str, buffer: Array, shape: KnownShape) -> None:
    if shape is not None and buffer.shape != shape:
        raise ContractError(
            f"out: '{name}' has shape {list(buffer.shape)}, this step gives {list(shape)}"
        )
