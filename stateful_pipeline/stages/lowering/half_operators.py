"""Which operators may be computed in half precision, and which values they take over.

The operators that stay in float32 are those that ``torch.autocast`` runs there, and what is like
them: sums over many elements, powers and exponentials (which overflow), normalization, square roots
(whose operand is often a small variance plus a smaller epsilon), and coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from stateful_pipeline.stages.lowering.signatures import Signature, is_defined, signature_of

WIDE = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atanh", "Cosh", "Exp", "Log", "Pow", "Reciprocal"}
    | {"Sinh", "Softplus", "Sqrt", "Tan"}
    | {"CumProd", "CumSum", "Det", "LpNormalization", "LRN", "MeanVarianceNormalization"}
    | {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Prod", "Sum")}
    | {"ReduceSumSquare", "LogSoftmax", "Softmax", "NegativeLogLikelihoodLoss"}
    | {f"{kind}Normalization" for kind in ("Batch", "Group", "Instance", "Layer", "RMS")}
    | {"SoftmaxCrossEntropyLoss", "DFT", "MelWeightMatrix", "STFT"}
    | {"AffineGrid", "GridSample", "MaxRoiPool", "NonMaxSuppression", "Range", "RoiAlign"}
    | {"Bernoulli", "ConstantOfShape", "EyeLike", "Multinomial", "RandomNormal"}
    | {"RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators that are computed in float32 whatever they read."""

MEANS_ITS_DTYPE = frozenset(
    {"BitCast", "Cast", "CastLike", "Constant", "ConvInteger", "DequantizeLinear"}
    | {"DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"}
)
"""Operators that do something else at another dtype."""

SEQUENCES = frozenset(
    {"ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt"}
    | {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"}
    | {"SequenceMap", "SplitToSequence"}
)
"""Operators on sequences and optionals, whose elements have a dtype that stays."""

TAKES_ANY = frozenset({"Cast", "Shape", "Size"})
"""Operators that give the same from a value in either dtype, so that no cast comes before them."""

MOVES = frozenset(
    {"Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"}
    | {"GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND"}
    | {"Slice", "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu"}
    | {"Unsqueeze"}
)
"""Operators that put elements elsewhere and compute nothing."""

LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Those of :data:`MOVES` that read a table."""

LINEAR = frozenset(
    {"Abs", "Add", "Clip", "Div", "Max", "Mean", "Min", "Mul", "Neg", "Sub", "Sum", "Where"}
)
"""Arithmetic, element by element, of which accumulations are made."""

ARITHMETIC = LINEAR | frozenset(
    {"Ceil", "Cos", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less"}
    | {"LessOrEqual", "Mod", "Round", "Sign", "Sin"}
)
"""Cheap operators that go on in float32 where all that they read is there."""


def half_signature(
    node: ir.Node, opsets: Mapping[str, int], half: ir.DataType
) -> tuple[Signature, dict[str, ir.DataType]] | None:
    """Return the signature of ``node``, and its dtypes with ``half`` for float32.

    None where nothing of it is float32, where it means something else at another dtype, or where
    ONNX does not define it for ``half``.
    """
    if node.op_type in MEANS_ITS_DTYPE | TAKES_ANY | SEQUENCES:
        return None
    signature = signature_of(node, opsets)
    if signature is None:
        return None
    dtypes = {
        name: half if dtype == ir.DataType.FLOAT else dtype for name, dtype in signature.dtypes
    }
    changed = signature.with_dtypes(dtypes)
    return (signature, dtypes) if changed != signature and is_defined(changed) else None


def takes_any(node: ir.Node) -> bool:
    """Whether ``node`` gives the same from a value in either dtype."""
    return node.domain == "" and node.op_type in TAKES_ANY


def is_constant(value: ir.Value) -> bool:
    """Whether ``value`` is known from the file: an initializer, or made by ``Constant``."""
    node = value.producer()
    if node is not None:
        return node.op_type == "Constant" and node.domain == ""
    return value.is_initializer() and not value.is_graph_input()


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a value that :func:`is_constant`; None for one of text."""
    node = value.producer()
    return value.const_value if node is None else ir.convenience.get_const_tensor(value)
