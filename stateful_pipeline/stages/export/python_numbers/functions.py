"""Functions of ``math`` in float64, also those that engines have in float32 alone.

``e`` is the exponential function; relative errors are a few units in the last place::

    tan x = sin x / cos x                    sinh x = tanh x (e x + e -x) / 2
    expm1 x = tanh(x / 2) (e x + 1)          log1p x = x log u / (u - 1), u = 1 + x
    asinh x = sign x log1p(a + a² / (1 + sqrt(1 + a²))), a = |x|
    acosh x = log1p(t + sqrt(2 t + t²)), t = x - 1
    atanh x = log1p(2 x / (1 - x)) / 2

``log1p`` is W. Kahan's.  ``atan`` takes one step from the result ``y`` in float32, and others
follow from it::

    atan x = y + d, where d = (x cos y - sin y) / (cos y + x sin y)
    asin x = atan(x / sqrt((1 - x)(1 + x)))  acos x = 2 atan sqrt((1 - x) / (1 + x))
"""

from __future__ import annotations

import math

import onnx_ir as ir

from stateful_pipeline.stages.export.python_numbers.nodes import Form, Nodes


def direct(op: str) -> Form:
    """Return the form of what ONNX has an operator for."""
    return lambda o, *numbers: o(op, *numbers)


def _tan(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Div", o("Sin", x), o("Cos", x))


def _cosh(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", o("Add", o("Exp", x), o("Exp", o("Neg", x))), 0.5)


def _sinh(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", o("Tanh", x), _cosh(o, x))


def _expm1(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", o("Tanh", o("Mul", x, 0.5)), o("Add", o("Exp", x), 1.0))


def _log1p(o: Nodes, x: ir.Value) -> ir.Value:
    u = o("Add", x, 1.0)
    log = o("Log", u)
    corrected = o("Mul", log, o("Div", x, o("Sub", u, 1.0)))
    kept = o("Where", o("Equal", u, 1.0), x, corrected)
    return o("Where", o("Equal", u, x), log, kept)  # huge, and infinity


def _asinh(o: Nodes, x: ir.Value) -> ir.Value:
    a = o("Abs", x)
    root = o("Sqrt", o("Add", o("Mul", a, a), 1.0))
    return o(
        "Mul", o("Sign", x), _log1p(o, o("Add", a, o("Div", o("Mul", a, a), o("Add", root, 1.0))))
    )


def _acosh(o: Nodes, x: ir.Value) -> ir.Value:
    t = o("Sub", x, 1.0)
    return _log1p(o, o("Add", t, o("Sqrt", o("Mul", t, o("Add", t, 2.0)))))


def _atanh(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", _log1p(o, o("Div", o("Mul", x, 2.0), o("Sub", 1.0, x))), 0.5)


def _atan(o: Nodes, x: ir.Value) -> ir.Value:
    y = o.through_float32("Atan", x)
    sin, cos = o("Sin", y), o("Cos", y)
    step = o("Div", o("Sub", o("Mul", x, cos), sin), o("Add", cos, o("Mul", x, sin)))
    limit = o("Mul", o("Sign", x), math.pi / 2)
    return o("Where", o("IsInf", x), limit, o("Add", y, step))


def _asin(o: Nodes, x: ir.Value) -> ir.Value:
    square = o("Mul", o("Sub", 1.0, x), o("Add", x, 1.0))
    return _atan(o, o("Div", x, o("Sqrt", square)))


def _acos(o: Nodes, x: ir.Value) -> ir.Value:
    ratio = o("Div", o("Sub", 1.0, x), o("Add", x, 1.0))
    return o("Mul", _atan(o, o("Sqrt", ratio)), 2.0)


def _atan2(o: Nodes, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of the point ``(x, y)``, but for the sign of zeros and two infinities."""
    origin = o("And", o("Equal", x, 0.0), o("Equal", y, 0.0))
    angle = _atan(o, o("Div", y, o("Where", origin, 1.0, x)))
    half = o("Where", o("Less", y, 0.0), -math.pi, math.pi)
    return o("Where", o("Less", x, 0.0), o("Add", angle, half), angle)


def _log(o: Nodes, x: ir.Value, *base: ir.Value) -> ir.Value:
    log = o("Log", x)
    return o("Div", log, o("Log", base[0])) if base else log


def _log10(o: Nodes, x: ir.Value) -> ir.Value:
    """The logarithm, and the integer beside it where ``x`` is just that power of ten."""
    log = o("Mul", o("Log", x), 1 / math.log(10))
    near = o("Round", log)
    return o("Where", o("Equal", o("Pow", 10.0, near), x), near, log)


def _degrees(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", x, 180 / math.pi)


def _radians(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Mul", x, math.pi / 180)


def _isfinite(o: Nodes, x: ir.Value) -> ir.Value:
    return o("Not", o("Or", o("IsNaN", x), o("IsInf", x)))


FUNCTIONS: dict[str, Form] = {
    **{f"aten::{op.lower()}": direct(op) for op in ("Sqrt", "Exp", "Sin", "Cos", "Tanh")},
    **{f"aten::{op.lower()}": direct(op) for op in ("IsNaN", "IsInf")},
    "aten::tan": _tan,
    "aten::sinh": _sinh,
    "aten::cosh": _cosh,
    "aten::asinh": _asinh,
    "aten::acosh": _acosh,
    "aten::atanh": _atanh,
    "aten::asin": _asin,
    "aten::acos": _acos,
    "aten::atan": _atan,
    "aten::atan2": _atan2,
    "aten::log": _log,
    "aten::log10": _log10,
    "aten::log1p": _log1p,
    "aten::expm1": _expm1,
    "aten::degrees": _degrees,
    "aten::radians": _radians,
    "aten::isfinite": _isfinite,
}
"""The functions, by the operators of TorchScript."""
