"""Keeps TorchScript's interpreter from reading what it has given away.

The interpreter runs a loop or a branch with one result, of which one reader is left, not where it
stands but where that result is read.  By then it may have moved a value to its last reader in the
same block, although the body of the loop reads that value too ("Expected Tensor but got None";
``can_emit_inline.h`` and ``preprocess_graph.cpp`` in PyTorch's ``jit/runtime``).  If such readers
get a value of their own, made before the loop, the order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateful_pipeline.model.jit import Block, Graph, Node, Value


def interpretable(graph: Graph) -> Graph:
    """Return a copy of ``graph`` that the interpreter runs in the order in which it is written."""
    changed = graph.copy()
    pending: list[Graph | Block] = [changed]
    while pending:
        block = pending.pop()
        for node in list(block.nodes()):
            pending += node.blocks()
            if list(node.blocks()) and node.outputsSize() == 1:
                _keep(changed, node)
    return changed


def _keep(graph: Graph, node: Node) -> None:
    """Let what reads a value after ``node``, in its block, read a copy if ``node`` does too."""
    for value in {value.unique(): value for value in _read_inside(node)}.values():
        later = [use for use in value.uses() if _is_later(use.user, node)]
        if not later or value.node().kind() == "prim::Constant":
            continue
        held = graph.create("prim::unchecked_cast", [value], 1)
        held.insertBefore(node)
        held.output().setType(value.type())
        for use in later:
            use.user.replaceInput(use.offset, held.output())


def _read_inside(node: Node) -> Iterator[Value]:
    """Yield what the blocks of ``node`` read."""
    pending = list(node.blocks())
    while pending:
        block = pending.pop()
        yield from block.outputs()
        for inner in block.nodes():
            yield from inner.inputs()
            pending += inner.blocks()


def _is_later(user: Node, node: Node) -> bool:
    """Whether ``user`` stands after ``node`` in the same block, or is what the block returns."""
    return bool(user.owningBlock() == node.owningBlock() and node.isBefore(user))
