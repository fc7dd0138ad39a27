"""Keeps TorchScript's interpreter from reading what it has given away.

The interpreter runs a loop or a branch with one result, of which one reader is left, not where it
stands but where that result is read.  By then it may have moved a value to its last reader in the
same block, although the body of the loop reads that value too ("Expected Tensor but got None";
``can_emit_inline.h`` and ``preprocess_graph.cpp`` in PyTorch's ``jit/runtime``).  If such readers
get a value of their own, made before the loop, the order does not matter.
"""

from __future__ import annotations

from collections import defaultdict

from stateful_pipeline.model.jit import Block, Graph, Node, Value


def interpretable(graph: Graph) -> Graph:
    """Return a copy of ``graph`` that the interpreter runs in the order in which it is written."""
    changed = graph.copy()
    pending: list[tuple[Graph | Block, Node]] = [(changed, changed.return_node())]
    while pending:
        block, end = pending.pop()
        _separate(changed, [*block.nodes(), end])
        for node in block.nodes():
            pending += [(inner, inner.returnNode()) for inner in node.blocks()]
    return changed


def _separate(graph: Graph, nodes: list[Node]) -> None:
    """Let what reads a value after a loop, in its block, read a copy if the loop does too."""
    later: dict[int, list[tuple[Node, int]]] = defaultdict(list)
    for node in reversed(nodes):
        if node.outputsSize() == 1 and list(node.blocks()):
            for value in _read_inside(node):
                uses = later.pop(value.unique(), [])
                if uses and value.node().kind() != "prim::Constant":
                    held = _copy(graph, value, node)
                    for user, offset in uses:
                        user.replaceInput(offset, held.output())
                    later[value.unique()].append((held, 0))
        for offset, value in enumerate(node.inputs()):
            later[value.unique()].append((node, offset))


def _copy(graph: Graph, value: Value, before: Node) -> Node:
    copy = graph.create("prim::unchecked_cast", [value], 1)
    copy.insertBefore(before)
    copy.output().setType(value.type())
    return copy


def _read_inside(node: Node) -> list[Value]:
    """Return what the blocks of ``node`` read, each once."""
    read: dict[int, Value] = {}
    pending = list(node.blocks())
    while pending:
        block = pending.pop()
        read |= {value.unique(): value for value in block.outputs()}
        for inner in block.nodes():
            read |= {value.unique(): value for value in inner.inputs()}
            pending += inner.blocks()
    return list(read.values())
