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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State, numpy_dtype
from stateful_pipeline.dimensions import Dim, axes_of
from stateful_pipeline.runtime.openvino_engine import HELD, TYPES, import_openvino
from stateful_pipeline.stages.build.openvino_aliases import is_handed_on, reaches_a_body

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
        readers = _readers(parameter)
        in_concat = any(one.get_node().get_type_name() == "Concat" for one in readers)
        initial, shape = self._initial(state, held, in_concat=in_concat)
        variable = self._variable(state, held, known=shape is None)
        read = ops.read_value(initial, variable)
        read.set_friendly_name(state.name)
        shaped = read if shape is None else ops.reshape(read, shape, special_zero=True)
        given = self._apart(shaped, held) if reaches_a_body(parameter) else shaped
        value = given if held == dtype else ops.convert(given, TYPES[dtype])
        parameter.output(0).replace(value.output(0))
        if held != dtype:
            self._separate(readers, shaped, dtype)
        after = result.input(0).get_source_output()
        is_copied = not readers or is_handed_on(after.get_node())
        if held != dtype:
            after = self._fed(ops.convert(value, TYPES[held]), after)
        if is_copied:
            after = self._copied(shaped, after)
        assign = self._fed(ops.assign(read, variable), after).get_node()
        self._model.add_variables([variable])
        self._model.add_sinks([assign])
        if not is_output:
            self._model.remove_result(result)
        self._model.remove_parameter(parameter)

    def _separate(self, readers: Iterable[Any], read: Any, dtype: str) -> None:
        """Give outputs that are the old value itself a copy.

        A variable takes the dtype of the output right behind it, which it may not be able to have.
        """
        outputs = [one for one in readers if one.get_node().get_type_name() == "Result"]
        if outputs:
            copied = self._ops.convert(read, TYPES[dtype])
            copied.input(0).replace_source_output(self._copied(read, read.output(0)))
            for reader in outputs:
                reader.replace_source_output(copied.output(0))

    def _apart(self, read: Any, held: str) -> Any:
        """Return a copy of what is read, in a form that stays.

        A variable has two buffers that take turns.  Where sizes are dynamic, ``Loop`` and ``If``
        go on reading the one that they were given at first.
        """
        zero = self._constant(np.zeros((), numpy_dtype(held)), held)
        return self._ops.select(self._nowhere(read), zero, read)

    def _copied(self, before: Any, after: Any) -> Any:
        """Return a copy of the new value, which reads the old one, in a form that stays.

        Where nothing reads a state, OpenVINO loses its variable; what may share memory with
        something else is copied (:mod:`.openvino_aliases`).
        """
        select = self._ops.select(self._nowhere(before), before, before)
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

    def _initial(self, state: State, held: str, *, in_concat: bool) -> tuple[Any, Any | None]:
        """Return the initial value, expanded along its named axes, and perhaps a shape.

        OpenVINO 2026.4 goes wrong in three ways, two of them silent:

        - What is made from a variable whose initial value is a constant counts as constant, and
          ``MatMul`` takes it for weights, which it reads before they are there.  So every initial
          value depends on an input, in a way that changes nothing.
        - ``Concat`` right behind a variable of dynamic shape cannot be compiled.
        - The size of the initial value of a state that grows is taken for its size for ever.

        In the last two cases the initial value has sizes that OpenVINO does not see through, and
        what is read is given its shape again, which costs nothing and separates it.

        Returns:
            The value; and the shape that what is read should be given, None if it has one.
        """
        stored = state.init.load(state.dtype, self._folder)
        value = self._constant(stored, held)
        if not self._contract.inputs:
            return value, None
        dims = list(zip(state.shape, stored.shape, strict=True))
        shape = [
            self._size(dim) if self._expands(dim, size) else self._number(size)
            for dim, size in dims
        ]
        expands = any(self._expands(dim, size) for dim, size in dims)
        if not state.grows and not (expands and in_concat):
            if expands:
                return self._ops.broadcast(value, self._ops.concat(shape, 0)), None
            return self._ops.select(self._never(), value, value), None
        nothing = self._ops.convert(self._never(), "i64")
        opaque = self._ops.concat([self._ops.add(size, nothing) for size in shape], 0)
        after = state.out_shape or state.shape
        again = [
            size if dim == then else self._number(0)  # what grows is as long as it is
            for size, dim, then in zip(shape, state.shape, after, strict=True)
        ]
        return self._ops.broadcast(value, opaque), self._ops.concat(again, 0)

    def _never(self) -> Any:
        """Return False, made from an input in a way that OpenVINO does not see through."""
        first = self._model.input(self._contract.inputs[0].name).get_node()
        flat = self._ops.reshape(first, self._number(-1), special_zero=False)
        # Not a slice: OpenVINO merges the slices of one tensor into a split, and then stumbles.
        some = self._ops.gather(flat, self._number(0), self._ops.constant(np.array(0, np.int64)))
        # The reduction comes last: what states share may not be read twice by its reader.
        return self._ops.reduce_logical_or(self._nowhere(some), self._number(0))

    def _nowhere(self, value: Any) -> Any:
        """Return False for every element of ``value``."""
        is_on = self._ops.convert(value, "boolean")
        return self._ops.logical_and(is_on, self._ops.logical_not(is_on))

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


def _readers(node: Any) -> list[Any]:
    """Return the inputs that read what ``node`` makes, as it is or through ``Identity``."""
    found = []
    for reader in node.output(0).get_target_inputs():
        is_identity = reader.get_node().get_type_name() == "Identity"
        found += _readers(reader.get_node()) if is_identity else [reader]
    return found


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
