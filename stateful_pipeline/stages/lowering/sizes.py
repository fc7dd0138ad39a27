"""Tells what is made of sizes and constants from what is computed from inputs and states.

Sizes are int64 everywhere in ONNX, and small.
"""

from __future__ import annotations

import onnx_ir as ir

_SOURCES = frozenset({"Constant", "Shape", "Size"})


def sizes_in(model: ir.Model) -> set[ir.Value]:
    """Return the values that are made of shapes and constants alone."""
    sizes = set[ir.Value]()
    for graph in model.graphs():
        sizes |= set(graph.initializers.values())
    for graph in model.graphs():
        for node in graph:
            given = [value for value in node.inputs if value is not None]
            is_flow = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
            if node.op_type in _SOURCES or (sizes.issuperset(given) and not is_flow):
                sizes |= set(node.outputs)
    return sizes
