"""Puts the states of an OpenVINO model inside it: variables, with initial values of their own.

Each pair of the contract, a graph input and a graph output, becomes a variable that is read in
place of the input and assigned in place of the output (``ReadValue`` and ``Assign``, as OpenVINO's
pass ``MakeStateful`` writes them).  By itself a variable is zero after a reset, and has the size of
the batch before.  So each is read through a subgraph that makes its initial value anew::

    Parameter x -> ShapeOf -> Gather(axis) ─┐
                                            Concat -> Broadcast(constant) -> ReadValue h
    the dimensions that are numbers       ──┘

which runs at the first step and after each reset, and is saved with the model.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State
from stateful_pipeline.dimensions import Dim, axes_of
from stateful_pipeline.runtime.openvino_engine import HELD, TYPES, import_openvino
from stateful_pipeline.stages.build.openvino_aliases import is_handed_on

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.FloorDiv: "divide",
    ast.Mod: "floor_mod",
    ast.Pow: "power",
}
_FUNCTIONS = {"Max": "maximum", "Min": "minimum"}


class StatesInside:
    """Turns one model, in place.

    Args:
        model: What OpenVINO has read from an ONNX file.
        contract: Its contract.
        folder: The folder against which files of initial values are resolved.
    """

    def __init__(self, model: Any, contract: Contract, folder: Path) -> None:
        self._ov = import_openvino()
        self._ops = self._ov.opset15
        self._model, self._contract, self._folder = model, contract, folder
        self._sizes: dict[str, Any] = {}
        for value in contract.inputs:
            for index, dim in enumerate(value.shape):
                if isinstance(dim, str) and dim not in self._sizes:
                    shape = self._ops.shape_of(model.input(value.name).get_node(), "i64")
                    zero = self._ops.constant(np.array(0, np.int64))
                    self._sizes[dim] = self._ops.gather(shape, self._number(index), zero)

    def run(self) -> None:
        """Put every state inside."""
        results = {value.name for value in self._contract.outputs}
        # Found first: what is read carries the names of what it replaces.
        ports = [
            (state, self._model.input(state.input).get_node(), self._model.output(state.output))
            for state in self._contract.states
        ]
        for state, parameter, output in ports:
            self._put_inside(state, parameter, output.get_node(), state.output in results)
        self._model.validate_nodes_and_infer_types()

    def _put_inside(self, state: State, parameter: Any, result: Any, is_output: bool) -> None:
        ops, dtype, held = self._ops, state.dtype, HELD.get(state.dtype, state.dtype)
        in_concat = any(
            target.get_node().get_type_name() == "Concat"
            for target in parameter.output(0).get_target_inputs()
        )
        initial, shape = self._initial(state, held, opaque=in_concat or state.grows)
        variable = self._variable(state, held, known=shape is None)
        read = ops.read_value(initial, variable)
        read.set_friendly_name(state.name)
        value = read if shape is None else ops.reshape(read, shape, special_zero=True)
        if held != dtype:
            value = ops.convert(value, TYPES[dtype])
        unread = not parameter.output(0).get_target_inputs()
        parameter.output(0).replace(value.output(0))
        after = result.input(0).get_source_output()
        if unread or is_handed_on(after.get_node()):
            after = self._copied(value, after)
        if held != dtype:
            after = self._fed(ops.convert(value, TYPES[held]), after)
        assign = self._fed(ops.assign(read, variable), after).get_node()
        self._model.add_variables([variable])
        self._model.add_sinks([assign])
        if not is_output:
            self._model.remove_result(result)
        self._model.remove_parameter(parameter)

    def _copied(self, before: Any, after: Any) -> Any:
        """Return a copy of the new value, which reads the old one, in a form that stays.

        Where nothing reads a state, OpenVINO loses its variable; what may share memory with
        something else is copied (:mod:`.openvino_aliases`).
        """
        is_on = self._ops.convert(before, "boolean")
        never = self._ops.logical_and(is_on, self._ops.logical_not(is_on))
        select = self._ops.select(never, before, before)
        select.input(2).replace_source_output(after)
        return select.output(0)

    def _fed(self, node: Any, source: Any) -> Any:
        """Let the first input of ``node`` be ``source``; return its output.

        Operators are made of nodes alone, and here it matters which output of a node is meant.
        """
        node.input(0).replace_source_output(source)
        return node.output(0)

    def _variable(self, state: State, held: str, *, known: bool) -> Any:
        after = state.out_shape or state.shape
        dims = [
            dim if known and isinstance(dim, int) and dim == then else -1
            for dim, then in zip(state.shape, after, strict=True)
        ]
        info = self._ov.op.util.VariableInfo()
        info.data_shape = self._ov.PartialShape(dims)
        info.data_type = getattr(self._ov.Type, TYPES[held])
        info.variable_id = state.name
        return self._ov.op.util.Variable(info)

    def _initial(self, state: State, held: str, *, opaque: bool) -> tuple[Any, Any | None]:
        """Return the initial value, expanded along its named axes, and perhaps a shape.

        OpenVINO 2026.4 cannot compile a ``Concat`` right behind a variable with an initial value
        that it computes, and takes the size of that value for the size for ever.  So these values
        have an ``opaque`` shape, whose sizes OpenVINO does not see through, and what is read is
        given its shape again, which costs nothing and separates the two.

        Returns:
            The value; and the shape that what is read should be given, None if it has one.
        """
        stored = state.init.load(state.dtype, self._folder)
        value = self._constant(stored, held)
        dims = list(zip(state.shape, stored.shape, strict=True))
        if not any(self._expands(dim, size) for dim, size in dims):
            return value, None
        shape = [
            self._size(dim) if self._expands(dim, size) else self._number(size)
            for dim, size in dims
        ]
        if not opaque:
            return self._ops.broadcast(value, self._ops.concat(shape, 0)), None
        a_size = next(iter(self._sizes.values()))
        nothing = self._ops.subtract(a_size, a_size)
        expanded = self._ops.concat([self._ops.add(size, nothing) for size in shape], 0)
        after = state.out_shape or state.shape
        again = [
            size if dim == then else self._number(0)  # of what grows: as long as it is
            for size, dim, then in zip(shape, state.shape, after, strict=True)
        ]
        return self._ops.broadcast(value, expanded), self._ops.concat(again, 0)

    def _constant(self, stored: np.ndarray[Any, Any], held: str) -> Any:
        if held != "bfloat16":
            return self._ops.constant(stored.astype(held))
        bits = np.ascontiguousarray(stored).view(np.uint16)
        tensor = self._ov.Tensor(bits, self._ov.Shape(stored.shape), self._ov.Type.bf16)
        return self._ov.op.Constant(tensor)

    def _expands(self, dim: Dim, size: int) -> bool:
        """Whether the inputs say how long the initial value is along ``dim``."""
        return isinstance(dim, str) and size == 1 and axes_of(dim) <= self._sizes.keys()

    def _size(self, dim: Dim) -> Any:
        return self._written(ast.parse(str(dim), mode="eval").body)

    def _written(self, node: ast.expr) -> Any:
        """Write the expression of a dimension; every value has one element, of int64."""
        match node:
            case ast.Constant(value=int(value)):
                return self._number(value)
            case ast.Name(id=name):
                return self._sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._ops.negative(self._written(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                write = getattr(self._ops, _OPERATORS[type(op)])
                return write(self._written(left), self._written(right))
            case ast.Call(func=ast.Name(id=name), args=[first, second]) if name in _FUNCTIONS:
                write = getattr(self._ops, _FUNCTIONS[name])
                return write(self._written(first), self._written(second))
        raise AssertionError(f"the contract's dimension {ast.unparse(node)} has been checked")

    def _number(self, value: int) -> Any:
        return self._ops.constant(np.array([value], np.int64))


def put_states_inside(model: Any, contract: Contract, folder: Path) -> None:
    """Make the states of ``contract`` variables of ``model``, in place."""
    StatesInside(model, contract, folder).run()


def notes_of(contract: Contract) -> Mapping[str, str]:
    """Return the states that are held in another dtype than theirs, and in which."""
    return {
        state.name: f"{state.dtype} in {HELD[state.dtype]}"
        for state in contract.states
        if state.dtype in HELD
    }
