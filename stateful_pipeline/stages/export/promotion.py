"""Writes PyTorch's type promotion into a graph, before it is converted to ONNX.

ONNX operators take operands of one dtype.  PyTorch's exporter casts them by rules of its own, which
count each 0-d tensor as a Python number: it multiplies two 0-d float64 tensors in float32, takes
int64 for two 0-d int32 tensors and leaves comparisons of two dtypes as they are (``InferExpected``
in ``scalar_type_analysis.cpp``).  With operands of one dtype and one dimension at least, it has
nothing left to decide.  The dtype is that of ``torch.result_type``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Graph, Node, Value

_BINARY = frozenset(
    {"add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod"}
    | {"maximum", "minimum", "max", "min", "atan2", "pow", "fmax", "fmin"}
    | {"lt", "le", "gt", "ge", "eq", "ne", "less", "greater", "less_equal", "greater_equal"}
    | {"multiply", "divide", "subtract", "not_equal"}
    | {"bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__"}
)
"""Operators that bring their first two operands to one dtype."""
_AS_NUMBERS = frozenset({torch.float32, torch.int64, torch.bool})
"""Dtypes that the exporter takes for 0-d tensors of their kind."""
_NUMBERS: dict[str, Any] = {"int": 1, "float": 1.0, "bool": True}


def with_promoted_operands(graph: Graph) -> Graph:
    """Return a copy of ``graph`` whose operands of two dtypes are cast to the one they meet in."""
    changed = graph.copy()
    pending: list[Any] = [changed]
    while pending:
        block = pending.pop()
        for node in list(block.nodes()):
            pending += node.blocks()
            first = _first_operand(node)
            if first is not None:
                _promote(changed, node, (first, first + 1))
    return changed


def _first_operand(node: Node) -> int | None:
    """Return the position of the first of the two operands that are promoted, or None."""
    space, _, name = node.kind().partition("::")
    if space != "aten":
        return None
    if name == "where" and node.inputsSize() == 3:
        return 1
    return 0 if name in _BINARY and node.inputsSize() > 1 and node.outputsSize() == 1 else None


def _promote(graph: Graph, node: Node, positions: Sequence[int]) -> None:
    operands = [node.inputsAt(position) for position in positions]
    samples = [_sample(operand) for operand in operands]
    if any(sample is None for sample in samples) or not _is_ranked(node.output()):
        return
    dtype = torch.result_type(*samples)
    tensors = [
        (position, operand, sample)
        for position, operand, sample in zip(positions, operands, samples, strict=True)
        if isinstance(sample, torch.Tensor)
    ]
    lifted = node.output().type().dim() == 0 and dtype not in _AS_NUMBERS
    for position, operand, sample in tensors:
        value = operand
        if sample.dtype != dtype:
            value = _cast(graph, node, value, dtype, sample.dim())
        if lifted:
            value = _insert(graph, node, "aten::unsqueeze", value, 0)
            value.setType(jit.tensor_type(torch.empty(1, dtype=dtype)))
        if value is not operand:
            node.replaceInput(position, value)
    if lifted:
        _lower(graph, node)


def _sample(value: Value) -> Any:
    """Return a number or a tensor that is promoted like ``value``, or None if that is not known."""
    kind = value.type()
    if not jit.is_tensor_type(kind):
        return _NUMBERS.get(str(kind))
    if not _is_ranked(value):
        return None
    return torch.empty((1,) * kind.dim(), dtype=kind.dtype(), device="meta")


def _is_ranked(value: Value) -> bool:
    kind = value.type()
    return bool(kind.kind() == "TensorType" and kind.dim() is not None and kind.dtype() is not None)


def _cast(graph: Graph, node: Node, value: Value, dtype: torch.dtype, rank: int) -> Value:
    kind = value.type().with_dtype(dtype) if rank else jit.tensor_type(torch.empty((), dtype=dtype))
    cast = _insert(graph, node, "aten::to", value, jit.dtype_code(dtype), False, False, None)
    cast.setType(kind)
    return cast


def _lower(graph: Graph, node: Node) -> None:
    """Let ``node`` give one element along a dimension, and its readers get it as a 0-d tensor."""
    output = node.output()
    kind = output.type()
    output.setType(jit.tensor_type(torch.empty(1, dtype=kind.dtype())))
    squeezed = graph.create("aten::squeeze", [output], 1)
    squeezed.insertAfter(node)
    squeezed.copyMetadata(node)
    with graph.insert_point_guard(squeezed):
        squeezed.addInput(graph.insertConstant(0))
    squeezed.output().setType(kind)
    output.replaceAllUsesWith(squeezed.output())
    squeezed.replaceInput(0, output)


def _insert(graph: Graph, before: Node, kind: str, value: Value, *constants: Any) -> Value:
    """Insert an operator on a value and constants before a node; return its result."""
    with graph.insert_point_guard(before):
        values = [value, *map(graph.insertConstant, constants)]
        made = graph.create(kind, values, 1)
        made.copyMetadata(before)
        graph.insertNode(made)
    return made.output()
