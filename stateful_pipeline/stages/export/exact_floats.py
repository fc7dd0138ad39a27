"""Keeps Python's numbers exact where they meet float64 tensors.

PyTorch's exporter writes each Python float, which has 64 bits, as a float32 constant, and casts it
to what it meets: ``x * 1.1`` multiplies a float64 ``x`` by 1.100000023841858.  Here the cast gives
the number itself.  What ONNX keeps in float32 stays so: attributes such as ``epsilon`` of
LayerNormalization and ``alpha`` of Gemm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from stateful_pipeline.model.torch_internals import NUMBER

_FUNCTIONS: dict[str, Callable[[float], float]] = {"Log": math.log, "Sqrt": math.sqrt}
"""What the exporter computes from a number (``log2`` divides by ``Log(2)``)."""


def restore_numbers(model: ir.Model) -> None:
    """Let each cast of a Python number to float64 give that number, in place.

    Args:
        model: What the exporter wrote under :func:`~.torch_internals.numbers_kept`, not simplified.
    """
    for graph in model.graphs():
        for node in graph:
            number = _number(node.inputs[0]) if _is_cast_to_double(node) else None
            if number is not None:
                tensor = ir.tensor(number, dtype=ir.DataType.DOUBLE)
                exact = ir.node("Constant", [], {"value": tensor})
                exact.outputs[0].type = ir.TensorType(ir.DataType.DOUBLE)
                exact.outputs[0].shape = ir.Shape([])
                graph.insert_before(node, exact)
                node.outputs[0].replace_all_uses_with(exact.outputs[0])


def _is_cast_to_double(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        return node.attributes["to"].as_int() == ir.DataType.DOUBLE
    like = node.inputs[1] if node.op_type == "CastLike" else None
    return like is not None and like.dtype == ir.DataType.DOUBLE


def _number(value: ir.Value | None) -> float | None:
    """Return the number that a value was made from, or None."""
    if value is None:
        return None
    if NUMBER in value.meta:
        return float(value.meta[NUMBER])
    made = value.producer()
    if made is None or made.op_type not in _FUNCTIONS:
        return None
    number = _number(made.inputs[0])
    return None if number is None else _FUNCTIONS[made.op_type](number)
