"""Proves from the graph which states can be updated in the buffer that holds them.

A runtime may be handed one buffer as both ``k_in`` and ``k_out`` if

1. ``k_out`` is made by a scatter-like operator whose data operand is ``k_in`` (it copies its
   operand, then overwrites some elements; with one buffer the copy is void), and
2. every other reader of ``k_in`` is an ancestor of that operator, so that it has run before the
   write.  Readers of the shape alone do not count.

A runtime may let ``Reshape`` and its like, or an operator that it finds to do nothing (times one),
hand on the buffer itself.  So the readers of what reads ``k_in`` count as readers too, unless the
operator between them always makes new elements (``MatMul``, ``Gather``).

Element-wise updates are left to double buffering: there is no copy to save.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

_SCATTERS = frozenset({"ScatterND", "ScatterElements", "TensorScatter"})
_SHAPE_ONLY = frozenset({"Shape", "Size"})
_MAKES_NEW = frozenset(
    {"Attention", "Conv", "Gather", "GatherElements", "GatherND", "Gemm", "MatMul", "Softmax"}
)


def in_place_states(model: ir.Model, pairs: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Return the names of graph inputs that may share a buffer with their outputs.

    Args:
        model: The model.
        pairs: ``(input, output)`` of each state.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    return frozenset(
        before for before, after in pairs if _is_in_place(inputs[before], outputs[after])
    )


def _is_in_place(before: ir.Value, after: ir.Value) -> bool:
    writer = after.producer()
    if writer is None or writer.op_type not in _SCATTERS or writer.inputs[0] is not before:
        return False
    ancestors = _ancestors(writer)
    seen: set[ir.Value] = set()
    pending = [before]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.is_graph_output():
            return False
        for reader, index in value.uses():
            if (reader is writer and value is before and index == 0) or _reads_shape(reader):
                continue
            if reader.graph is not writer.graph or reader not in ancestors:
                return False
            if reader.op_type not in _MAKES_NEW:
                pending.extend(reader.outputs)
    return True


def _reads_shape(reader: ir.Node) -> bool:
    return reader.op_type in _SHAPE_ONLY


def _ancestors(node: ir.Node) -> set[ir.Node]:
    found: set[ir.Node] = set()
    pending = [node]
    while pending:
        for value in pending.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in found:
                found.add(producer)
                pending.append(producer)
    return found
