"""Finds operators that OpenVINO computes in fewer bits than their dtype has.

Sizes are int64 everywhere in ONNX, and small: what is made of shapes and constants alone does not
count.  Nor do operators that compute nothing, such as ``Identity``.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_NARROWED = {
    ir.DataType.INT64: "int64 in 32 bits",
    ir.DataType.UINT64: "uint64 in 32 bits",
    ir.DataType.UINT32: "uint32 in 32 bits with a sign",
    ir.DataType.DOUBLE: "float64 in float32",
}
_INTEGERS = frozenset({ir.DataType.INT32, *_NARROWED} - {ir.DataType.DOUBLE})
_COMPUTE = frozenset(
    {"Abs", "Add", "BitShift", "Cast", "CumSum", "Div", "Einsum", "Gemm", "MatMul", "Max", "Mean"}
    | {"Min", "Mod", "Mul", "Neg", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"}
    | {"ReduceSum", "Sub", "Sum"}
)
_IN_FLOAT = frozenset(
    {"Einsum", "Gemm", "MatMul", "Mean", "Pow", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd"}
    | {"ReduceSum", "ReduceSumSquare"}
)
"""Operators whose whole numbers go through float32, exact to 2**24."""
_WORDS = {*_NARROWED.values(), *(f"{dtype.name.lower()} in float32" for dtype in _INTEGERS)}
_SIZES = frozenset({"Constant", "Shape", "Size"})


def narrowed_operators(model: ir.Model) -> list[str]:
    """Return the operators, in words: ``Mul: int64 in 32 bits``.

    The dtypes of ``model`` are known, as far as they can be.
    """
    sizes, found = sizes_in(model), list[str]()
    for node in _nodes(model):
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


def sizes_in(model: ir.Model) -> set[ir.Value]:
    """Return the values that are made of shapes and constants alone."""
    sizes = set[ir.Value]()
    for graph in model.graphs():
        sizes |= set(graph.initializers.values())
    for node in _nodes(model):
        given = [value for value in node.inputs if value is not None]
        is_flow = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
        if node.op_type in _SIZES or (sizes.issuperset(given) and not is_flow):
            sizes |= set(node.outputs)
    return sizes


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    for graph in model.graphs():
        yield from graph
