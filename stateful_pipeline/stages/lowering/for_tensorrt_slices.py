"""Takes slices of one length at a moving place by their positions: ``data[:, p : p + 4]``.

TensorRT takes the ends of a slice for sizes.  Where a state decides them, it finds shapes that
depend on values, and builds nothing.  Where the end is the start and a constant, the size is known,
and ``Gather(data, p + [0, 1, 2, 3])`` is the same.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_SAME_NUMBER = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_LONGEST = 65536


def gather_slices(model: ir.Model, constants: set[ir.Value], names: Names) -> list[str]:
    """Write such slices so, in place; return what was changed, in words.

    Args:
        model: The model.
        constants: What is made of sizes and constants alone.
        names: The names that are taken.
    """
    changed = list[str]()
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type != "Slice" or node.domain != "" or node.inputs[1] in constants:
                continue
            length, axis = _length(node), _one_number(node, 3)
            if length is not None and axis is not None:
                write = Writer(names, graph, node)
                place = write("Reshape", node.inputs[1], write.ints([1]))
                places = write("Add", write("Cast", place, to=7), write.ints(range(length)))
                replace_by(node, write("Gather", node.inputs[0], places, axis=axis))
                changed.append("Slice: by positions")
    return changed


def _length(node: ir.Node) -> int | None:
    """Return how many elements a slice of step 1 takes, if that is a constant."""
    step = 1 if len(node.inputs) < 5 else _one_number(node, 4)
    start, end = _number(node.inputs[1]), _number(node.inputs[2])
    added = None if end is None else end.producer()
    if step != 1 or start is None or added is None or added.op_type != "Add":
        return None
    terms = [_number(term) for term in added.inputs]
    if start not in terms:
        return None
    lengths = [_constant(term) for term in terms if term is not start]
    length = lengths[0] if len(lengths) == 1 else None
    return length if length is not None and 0 < length <= _LONGEST else None


def _number(value: ir.Value | None) -> ir.Value | None:
    """Return where the one number in ``value`` comes from."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _SAME_NUMBER:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def _one_number(node: ir.Node, index: int) -> int | None:
    return _constant(node.inputs[index]) if len(node.inputs) > index else None


def _constant(value: ir.Value | None) -> int | None:
    known = None if value is None else ir.convenience.get_const_tensor(value)
    return int(known.numpy().reshape(-1)[0]) if known is not None and known.size == 1 else None
