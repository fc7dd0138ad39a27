"""Writes nodes into a graph, or into a body of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names


class Writer:
    """Writes operators one after the other.

    Args:
        names: The names that are taken.
        graph: Where to write.
        before: The node to write before; at the end of the graph if it is None.
    """

    def __init__(self, names: Names, graph: ir.Graph, before: ir.Node | None = None) -> None:
        self.names = names
        self._graph, self._before = graph, before

    def __call__(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write an operator of one result, and return that."""
        return self.many(operator, 1, *inputs, **attributes)[0]

    def many(
        self, operator: str, count: int, *inputs: ir.Value | None, **attributes: Any
    ) -> list[ir.Value]:
        """Write an operator of ``count`` results, and return them."""
        node = ir.node(operator, inputs, attributes, num_outputs=count)
        for value in node.outputs:
            value.name = self.names.fresh(f"written_{operator.lower()}")
        if self._before is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(self._before, node)
        return list(node.outputs)

    def ints(self, numbers: Iterable[int]) -> ir.Value:
        """Return a constant of whole numbers, one after the other."""
        return self("Constant", value=ir.tensor(list(numbers), dtype=ir.DataType.INT64))

    def int(self, number: int) -> ir.Value:
        """Return a constant of one whole number, of rank 0."""
        return self("Constant", value=ir.tensor(number, dtype=ir.DataType.INT64))

    def double(self, number: float) -> ir.Value:
        """Return a constant of float64, of rank 0."""
        return self("Constant", value=ir.tensor(number, dtype=ir.DataType.DOUBLE))


def replace_by(node: ir.Node, written: ir.Value) -> None:
    """Let ``written`` be what ``node`` made, under the same name, and take ``node`` out."""
    made = node.outputs[0]
    name, written.type, written.shape = made.name, made.type, made.shape
    made.name = f"{name}_before"
    written.name = name
    ir.convenience.replace_all_uses_with(made, written, replace_graph_outputs=True)
    graph = node.graph
    assert graph is not None
    graph.remove(node, safe=True)
