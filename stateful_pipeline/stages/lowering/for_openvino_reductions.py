"""Keeps OpenVINO from taking an operator on channels into a reduction, where it reads others.

``Add(ReduceSum(x, axis=2), bias)`` with ``x`` of three dimensions and a constant for each channel
becomes one operator on the CPU, which adds the wrong elements of ``bias`` from the second row of
the batch on; so do other reductions over the first or the last axis, and other operators with such
a constant, also after some without one.  What changes a shape is not taken in: the reduction keeps
its axis, which a ``Squeeze`` takes out; or, where it has to stay, reduces a matrix.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.sizes import sizes_in
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_REDUCTIONS = frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"}
    | {"ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}
)
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"}
    | {"HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu"}
    | {"Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"}
)
_RANK = 3


def separate_reductions(model: ir.Model, names: Names) -> list[str]:
    """Write the reductions so, in place; return what was changed, in words."""
    constants, changed = sizes_in(model), list[str]()
    for graph in model.graphs():
        for node in list(graph):
            if node.domain != "" or node.op_type not in _REDUCTIONS:
                continue
            if not _meets_constant(node.outputs[0], constants):
                continue
            written = _written(node, Writer(names, graph, node))
            if written is not None:
                replace_by(node, written)
                changed.append(f"{node.op_type}: apart from what follows")
    return changed


def _meets_constant(value: ir.Value, constants: set[ir.Value]) -> bool:
    """Whether what follows ``value``, element by element, has a constant of several elements."""
    for node in value.consumers():
        others = [other for other in node.inputs if other is not None and other is not value]
        if node.op_type not in _ELEMENTWISE or not constants.issuperset(others):
            continue
        if not all(_is_one_number(other) for other in others):
            return True
        if _meets_constant(node.outputs[0], constants):
            return True
    return False


def _is_one_number(value: ir.Value) -> bool:
    known = ir.convenience.get_const_tensor(value)
    return known is not None and known.size == 1


def _written(node: ir.Node, write: Writer) -> ir.Value | None:
    """Return what ``node`` makes, in the other form; None if it is right as it is."""
    given, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    along = None if axes is None else ir.convenience.get_const_tensor(axes)
    if given is None or along is None or along.size != 1:
        return None
    (axis,) = along.numpy().reshape(-1).tolist()
    if given.shape is not None and (len(given.shape) != _RANK or axis % _RANK == 1):
        return None
    if not node.attributes.get_int("keepdims", 1):
        return write("Squeeze", write(node.op_type, given, axes, keepdims=1), axes)
    channels = None if given.shape is None else given.shape[1]
    if not isinstance(channels, int):
        return None  # then no constant has one element for each
    last = axis % _RANK == _RANK - 1
    matrix = write("Flatten", given, axis=2 if last else 1)
    reduced = write(node.op_type, matrix, write.ints([1 if last else 0]), keepdims=1)
    return write("Reshape", reduced, write.ints([-1, channels, 1] if last else [1, channels, -1]))
