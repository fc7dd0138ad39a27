"""Writes a sigmoid out where what reads it needs its digits also near 0.

ONNX Runtime's ``Sigmoid`` on the CPU is within 1e-7 of the right number, and 0 below about -18:
``log(sigmoid(-20))`` is -inf.  PyTorch's has all digits, as ``1 / (1 + exp(-x))`` has.  That takes
half as long again for large tensors, so it is written only where a logarithm, a division, a root or
a power is taken of the sigmoid, of what it is a factor of, or of a sum of sigmoids and constants.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.typed import infer_types
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_SENSITIVE = frozenset({"Div", "Log", "Pow", "Reciprocal", "Sqrt"})
_VIEWS = frozenset(
    {"Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
_HAND_ON = (
    _VIEWS
    | {"Abs", "Clip", "Concat", "Max", "Min", "Mul", "Neg", "Where"}
    | {"ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}
)
"""Operators whose results are small where the sigmoid is."""


def write_out_sigmoids(model: ir.Model) -> None:
    """Write such sigmoids of float32 out, in place."""
    found = [
        node
        for graph in model.graphs()
        for node in graph
        if node.op_type == "Sigmoid" and _is_read_exactly(node.outputs[0], set())
    ]
    if not found:
        return
    infer_types(model)
    names = Names(model)
    for node in found:
        if node.outputs[0].dtype == ir.DataType.FLOAT:
            graph = node.graph
            assert isinstance(graph, ir.Graph)
            replace_by(node, _written(node, Writer(names, graph, node)))


def _is_read_exactly(value: ir.Value, seen: set[ir.Value]) -> bool:
    """Whether a logarithm, a quotient, a root or a power is taken of ``value``."""
    if value in seen:
        return False
    seen.add(value)
    for node in value.consumers():
        if node.op_type in _SENSITIVE:
            return True
        hands_on = node.op_type in _HAND_ON or _is_small_sum(node)
        if hands_on and any(_is_read_exactly(v, seen) for v in node.outputs):
            return True
    return False


def _is_small_sum(node: ir.Node) -> bool:
    """Whether a node adds sigmoids and constants alone: beside other terms digits are lost."""
    return node.op_type == "Add" and all(map(_is_small, node.inputs))


def _is_small(value: ir.Value | None) -> bool:
    """Whether a value is a constant, sigmoids, some of their elements, or a sum of such."""
    maker = None if value is None else value.producer()
    if maker is None:
        return value is not None and value.is_initializer()
    if maker.op_type in ("Constant", "Sigmoid"):
        return True
    return _is_small_sum(maker) or (maker.op_type in _VIEWS and _is_small(maker.inputs[0]))


def _written(node: ir.Node, write: Writer) -> ir.Value:
    one = write("Constant", value=ir.tensor(1.0, dtype=ir.DataType.FLOAT))
    grown = write("Add", one, write("Exp", write("Neg", node.inputs[0])))
    return write("Reciprocal", grown)
