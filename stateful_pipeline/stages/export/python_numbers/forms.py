"""Writes operators on Python numbers in operators of ONNX.

:mod:`.python_numbers` gives the exporter operators of this project, each on tensors without
dimensions: INT64, DOUBLE or BOOL.  Here each becomes a few of ONNX that compute what Python does::

    a // b       (a - m) / b, where m = a % b has the sign of b
    a % b        fmod(a, b), and b more where that has not the sign of b
    a >> n       a // 2 ** n
    min(a, b)    b where b < a, else a

Operands are floats if one of them, or the result, is one.  Integers wrap around beyond 64 bits; a
division of integers by zero fails in an engine, too.  ``//`` and ``%`` of floats are those of
Python, from which TorchScript's differ in the last place.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from stateful_pipeline.stages.export.python_numbers.functions import FUNCTIONS, direct
from stateful_pipeline.stages.export.python_numbers.nodes import DTYPES, Form, Nodes, Number

DOMAIN = "python_numbers"
READS, GIVES = "reads", "gives"
"""Attributes: the types of the operands and of the result, by their first letters."""

_LARGEST_SHIFT = 62
"""The largest power of two that INT64 holds."""


def _is_float(value: ir.Value) -> bool:
    return value.dtype == DTYPES["f"]


def _rest(o: Nodes, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return ``fmod(a, b)`` of floats, and whether it has not the sign of ``b``."""
    rest = o("Mod", a, b, fmod=1)
    differ = o("Xor", o("Less", rest, 0.0), o("Less", b, 0.0))
    return rest, o("And", differ, _ne(o, rest, 0.0))


def _remainder(o: Nodes, a: ir.Value, b: ir.Value) -> ir.Value:
    if not _is_float(a):
        return o("Mod", a, b)
    rest, other = _rest(o, a, b)
    return o("Where", other, o("Add", rest, b), rest)


def _floordiv(o: Nodes, a: ir.Value, b: ir.Value) -> ir.Value:
    """The quotient, rounded down; for floats, the integer next to the quotient without rest."""
    if not _is_float(a):
        return o("Div", o("Sub", a, o("Mod", a, b)), b)
    rest, other = _rest(o, a, b)
    quotient = o("Div", o("Sub", a, rest), b)
    return o("Round", o("Where", other, o("Sub", quotient, 1.0), quotient))


def _fmod(o: Nodes, a: ir.Value, b: ir.Value) -> ir.Value:
    return o("Mod", a, b, fmod=1)


def _two_to(o: Nodes, count: ir.Value) -> ir.Value:
    return o("Pow", o.value(2), o("Min", count, _LARGEST_SHIFT))


def _lshift(o: Nodes, a: ir.Value, count: ir.Value) -> ir.Value:
    return o("Mul", a, _two_to(o, count))


def _rshift(o: Nodes, a: ir.Value, count: ir.Value) -> ir.Value:
    return _floordiv(o, a, _two_to(o, count))


def _either(op: str) -> Form:
    """The second of two numbers where it is less or greater than the first, else the first."""
    return lambda o, a, b: o("Where", o(op, b, a), b, a)


def _as_integer(op: str) -> Form:
    return lambda o, a: o.cast(o(op, a), "i") if _is_float(a) else a


def _logical(op: str, integers: str) -> Form:
    return lambda o, a, b: o(op if a.dtype == DTYPES["b"] else integers, a, b)


def _ne(o: Nodes, a: ir.Value, b: Number) -> ir.Value:
    return o("Not", o("Equal", a, b))


def _range_length(o: Nodes, low: ir.Value, high: ir.Value, step: ir.Value) -> ir.Value:
    """The length of ``range(low, high, step)``."""
    return o("Max", 0, o("Neg", _floordiv(o, o("Sub", low, high), step)))


def _derive_index(o: Nodes, index: ir.Value, start: ir.Value, step: ir.Value) -> ir.Value:
    """``range(start, ..., step)[index]``."""
    return o("Add", start, o("Mul", index, step))


def _same(o: Nodes, a: ir.Value) -> ir.Value:
    """The operand: operands and results are cast to their types anyway."""
    return a


FORMS: dict[str, Form] = {
    **FUNCTIONS,
    "aten::Int": _same,
    "aten::Float": _same,
    "aten::Bool": _same,
    "aten::add": direct("Add"),
    "aten::sub": direct("Sub"),
    "aten::mul": direct("Mul"),
    "aten::div": direct("Div"),
    "aten::neg": direct("Neg"),
    "aten::floordiv": _floordiv,
    "aten::remainder": _remainder,
    "aten::fmod": _fmod,
    "aten::pow": direct("Pow"),
    "aten::__round_to_zero_floordiv": direct("Div"),
    "aten::round": direct("Round"),
    "aten::floor": _as_integer("Floor"),
    "aten::ceil": _as_integer("Ceil"),
    "aten::fabs": direct("Abs"),
    "prim::abs": direct("Abs"),
    "prim::min": _either("Less"),
    "prim::max": _either("Greater"),
    "aten::eq": direct("Equal"),
    "aten::ne": _ne,
    "aten::lt": direct("Less"),
    "aten::le": direct("LessOrEqual"),
    "aten::gt": direct("Greater"),
    "aten::ge": direct("GreaterOrEqual"),
    "aten::__not__": direct("Not"),
    "aten::__and__": _logical("And", "BitwiseAnd"),
    "aten::__or__": _logical("Or", "BitwiseOr"),
    "aten::__xor__": _logical("Xor", "BitwiseXor"),
    "aten::__lshift__": _lshift,
    "aten::__rshift__": _rshift,
    "aten::__range_length": _range_length,
    "aten::__derive_index": _derive_index,
}
"""The operators of TorchScript on numbers that have a form."""


def own_name(kind: str) -> str:
    """Return the name that an operator of TorchScript has among this project's.

    It ends with no ``_``, which the exporter would take off.
    """
    return "number_" + kind.partition("::")[2].strip("_")


_BY_NAME = {own_name(kind): form for kind, form in FORMS.items()}


def with_number_forms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with operators of ONNX for those of this project."""
    converted = ir.from_proto(model)
    for graph in converted.graphs():
        for node in list(graph):
            if node.domain == DOMAIN:
                _expand(graph, node)
    converted.opset_imports.pop(DOMAIN, None)
    return ir.to_proto(converted)


def _expand(graph: ir.Graph, node: ir.Node) -> None:
    letters, gives = (node.attributes[name].as_string() for name in (READS, GIVES))
    o = Nodes()
    operands: list[ir.Value] = []
    common = next(letter for letter in "fib" if letter in letters + gives * (gives == "f"))
    for value, letter in zip(node.inputs, letters, strict=True):
        assert value is not None  # no operand is optional
        value.dtype = DTYPES[letter]
        operands.append(o.cast(value, common))
    result = o.cast(_BY_NAME[node.op_type](o, *operands), gives)
    if not o.made or result.producer() is not o.made[-1]:  # it is an operand
        result = o("Identity", result)
    ir.convenience.replace_nodes_and_values(graph, node, [node], o.made, node.outputs, [result])
