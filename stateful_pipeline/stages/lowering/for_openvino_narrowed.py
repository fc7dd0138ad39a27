"""Finds operators that OpenVINO computes in other bits than their dtype has.

What sizes are made of does not count (:mod:`.sizes`), nor do operators that compute nothing, such
as ``Identity``.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.sizes import sizes_in

_NARROWED = {
    ir.DataType.INT64: "int64 in 32 bits",
    ir.DataType.UINT64: "uint64 in 32 bits",
    ir.DataType.UINT32: "uint32 in 32 bits with a sign",
    ir.DataType.DOUBLE: "float64 in float32",
    ir.DataType.FLOAT16: "float16 in float32",
    ir.DataType.BFLOAT16: "bfloat16 in float32",
}
_FLOATS = frozenset({ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
_INTEGERS = frozenset({ir.DataType.INT32, *_NARROWED} - _FLOATS)
_COMPUTE = frozenset(
    {"Abs", "Add", "BitShift", "Cast", "Conv", "CumSum", "Div", "Einsum", "Gemm", "MatMul", "Max"}
    | {"Mean", "Min", "Mod", "Mul", "Neg", "Pow", "ReduceMax", "ReduceMean", "ReduceMin"}
    | {"ReduceProd", "ReduceSum", "Sub", "Sum"}
)
_IN_FLOAT = frozenset(
    {"Einsum", "Gemm", "MatMul", "Mean", "Pow", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd"}
    | {"ReduceSum", "ReduceSumSquare"}
)
"""Operators whose whole numbers go through float32, exact to 2**24."""
_WORDS = {*_NARROWED.values(), *(f"{dtype.name.lower()} in float32" for dtype in _INTEGERS)}


def narrowed_operators(model: ir.Model) -> list[str]:
    """Return the operators, in words: ``Mul: int64 in 32 bits``.

    The dtypes of ``model`` are known, as far as they can be.
    """
    sizes, found = sizes_in(model), list[str]()
    for node in (node for graph in model.graphs() for node in graph):
        made = node.outputs[0] if node.outputs else None
        if made is None or made in sizes or made.dtype is None:
            continue
        if node.op_type in _IN_FLOAT and made.dtype in _INTEGERS:
            found.append(f"{node.op_type}: {made.dtype.name.lower()} in float32")
        elif node.op_type in _COMPUTE and made.dtype in _NARROWED:
            found.append(f"{node.op_type}: {_NARROWED[made.dtype]}")
    return found


def is_narrowed(change: str) -> bool:
    """Whether a change is one that :func:`narrowed_operators` names."""
    return change.partition(": ")[2] in _WORDS
