"""Where values enter and leave the bodies of control flow: they have one dtype on both sides.

``If`` hands the results of a branch on; ``Scan`` hands slices of its operands to its body, and
stacks what that gives; and a value that is carried from step to step (of ``Scan`` or ``Loop``) is
what a state is to a model: it goes in, and comes back changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Port:
    """Values that have one dtype, and what feeds them.

    Attributes:
        node: The operator of control flow.
        values: What is read on the other side.
        operands: Indices of the operands of ``node`` that feed them.
        results: The results of bodies that feed them, each as a graph and an index.
        carried: Whether it goes around, from step to step.
    """

    node: ir.Node
    values: tuple[ir.Value, ...]
    operands: tuple[int, ...] = ()
    results: tuple[tuple[ir.Graph, int], ...] = ()
    carried: bool = False

    def sources(self) -> Iterator[ir.Value]:
        """Yield what feeds the values."""
        for index in self.operands:
            operand = self.node.inputs[index]
            if operand is not None:
                yield operand
        yield from (graph.outputs[index] for graph, index in self.results)

    @property
    def is_float(self) -> bool:
        """Whether it is for float32."""
        given = (*self.values, *self.sources())
        return all(value.dtype == ir.DataType.FLOAT for value in given)


def ports_of(node: ir.Node) -> list[Port]:
    """Return the ports of an operator; none for what is no control flow."""
    if node.domain != "":
        return []
    if node.op_type == "If":
        branches = [node.attributes[f"{name}_branch"].as_graph() for name in ("then", "else")]
        return [
            Port(node, (output,), results=tuple((branch, index) for branch in branches))
            for index, output in enumerate(node.outputs)
        ]
    if node.op_type == "Loop":
        return _loop(node, node.attributes["body"].as_graph(), range(2, len(node.inputs)), (), 1)
    if node.op_type == "Scan":
        carried = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
        scanned = range(carried, len(node.inputs))
        return _loop(node, node.attributes["body"].as_graph(), range(carried), scanned, 0)
    return []


def _loop(
    node: ir.Node, body: ir.Graph, carried: Sequence[int], scanned: Sequence[int], skip: int
) -> list[Port]:
    """Return the ports of a loop; its body gives ``skip`` results that are nobody's."""
    ports = [
        Port(
            node,
            (body.inputs[operand], node.outputs[index]),
            (operand,),
            ((body, index + skip),),
            carried=True,
        )
        for index, operand in enumerate(carried)
    ]
    ports += [Port(node, (body.inputs[operand],), (operand,)) for operand in scanned]
    stacked = range(len(carried), len(node.outputs))
    ports += [
        Port(node, (node.outputs[index],), results=((body, index + skip),)) for index in stacked
    ]
    return ports


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs that ``node`` holds."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
