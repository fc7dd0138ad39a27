"""Lets ``Gather`` by a ``Range`` mean the same in ONNX Runtime as in ONNX.

ONNX Runtime 1.32 makes a ``Slice`` of them where nothing else reads the range.  A range that goes
below zero counts from the end in ``Gather``, but as bounds of a ``Slice`` it takes nothing:
``x[torch.arange(T - 1, -1, -1)]`` is empty.  Negative positions are written out as those that they
mean, where they may occur; ranges that count up from zero stay as they are.
"""

from __future__ import annotations

import onnx_ir as ir

_PASSES = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"})
"""Operators between a range and the ``Gather`` that reads it."""


def write_out_negative_positions(model: ir.Model) -> None:
    """Rewrite each ``Gather`` of ``model`` by a range that may be negative, in place."""
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type == "Gather" and node.domain == "" and _may_be_negative(node.inputs[1]):
                _write_out(graph, node)


def _may_be_negative(value: ir.Value | None) -> bool:
    made = None if value is None else value.producer()
    while made is not None and made.op_type in _PASSES and made.inputs[0] is not None:
        made = made.inputs[0].producer()
    if made is None or made.op_type != "Range":
        return False
    start, step = (_number(made.inputs[index]) for index in (0, 2))
    return start is None or start < 0 or step is None or step < 0


def _number(value: ir.Value | None) -> float | None:
    while value is not None and (made := value.producer()) is not None:
        if made.op_type not in _PASSES:
            break
        value = made.inputs[0]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else float(tensor.numpy().item())


def _write_out(graph: ir.Graph | ir.Function, node: ir.Node) -> None:
    """Give ``node`` the position plus the size, where a position is negative."""
    data, positions = node.inputs[0], node.inputs[1]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    new: list[ir.Node] = []

    def write(kind: str, *values: ir.Value | None, **attributes: object) -> ir.Value:
        new.append(ir.node(kind, list(values), attributes))  # type: ignore[arg-type]
        return new[-1].outputs[0]

    def constant(*numbers: int) -> ir.Value:
        dims = numbers if len(numbers) > 1 else numbers[0]
        return write("Constant", value=ir.tensor(dims, dtype=ir.DataType.INT64))

    index = write("Cast", positions, to=ir.DataType.INT64)
    size = write("Gather", write("Shape", data), constant(axis))
    negative = write("Less", index, constant(0))
    counted = write("Where", negative, write("Add", index, size), index)
    graph.insert_before(node, new)
    node.replace_input_with(1, counted)
