"""Finds operators that OpenVINO computes in fewer bits than their dtype has.

Sizes are int64 everywhere in ONNX, and small: what is made of shapes and constants alone does not
count.  Nor do operators that compute nothing, such as ``Identity``.
"""

from __future__ import annotations

import onnx_ir as ir

_NARROWED = {
    ir.DataType.INT64: "int64 in 32 bits",
    ir.DataType.UINT64: "uint64 in 32 bits",
    ir.DataType.UINT32: "uint32 in 32 bits with a sign",
    ir.DataType.DOUBLE: "float64 in float32",
}
_COMPUTE = frozenset(
    {"Abs", "Add", "BitShift", "Cast", "CumSum", "Div", "Einsum", "Gemm", "MatMul", "Max", "Mean"}
    | {"Min", "Mod", "Mul", "Neg", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"}
    | {"ReduceSum", "Sub", "Sum"}
)
_SIZES = frozenset({"Constant", "Shape", "Size"})


def narrowed_operators(model: ir.Model) -> list[str]:
    """Return the operators, in words: ``Mul: int64 in 32 bits``.

    The dtypes of ``model`` are known, as far as they can be.
    """
    sizes, found = set[ir.Value](), list[str]()
    for graph in model.graphs():
        sizes |= set(graph.initializers.values())
        for node in graph:
            given = [value for value in node.inputs if value is not None]
            is_flow = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
            if node.op_type in _SIZES or (sizes.issuperset(given) and not is_flow):
                sizes |= set(node.outputs)
            elif node.op_type in _COMPUTE and node.outputs[0].dtype in _NARROWED:
                found.append(f"{node.op_type}: {_NARROWED[node.outputs[0].dtype]}")
    return found
