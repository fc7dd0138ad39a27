"""Writes a sigmoid out where what reads it needs its digits also near 0.

ONNX Runtime's ``Sigmoid`` on the CPU is within 1e-7 of the right number, and 0 below about -18:
``log(sigmoid(-20))`` is -inf.  PyTorch's has all digits, as ``1 / (1 + exp(-x))`` has.  That takes
half as long again for large tensors, so it is written only where a logarithm, a division or a power
is taken of the sigmoid, or of what it is a factor of.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.typed import infer_types
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_SENSITIVE = frozenset({"Div", "Log", "Pow", "Reciprocal"})
_HAND_ON = frozenset(
    {"Abs", "Cast", "Clip", "Concat", "Expand", "Flatten", "Gather", "Identity", "Max", "Min"}
    | {"Mul", "Neg", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Transpose", "Unsqueeze"}
    | {"Where"}
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
    """Whether a logarithm, a quotient or a power is taken of ``value``."""
    if value in seen:
        return False
    seen.add(value)
    for node in value.consumers():
        if node.op_type in _SENSITIVE:
            return True
        if node.op_type in _HAND_ON and any(_is_read_exactly(v, seen) for v in node.outputs):
            return True
    return False


def _written(node: ir.Node, write: Writer) -> ir.Value:
    one = write("Constant", value=ir.tensor(1.0, dtype=ir.DataType.FLOAT))
    grown = write("Add", one, write("Exp", write("Neg", node.inputs[0])))
    return write("Reciprocal", grown)
