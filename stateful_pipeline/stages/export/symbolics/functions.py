"""Functions of one number.

Integers are computed in the dtype of the result, which is a floating-point one.  What is small
near 0 keeps its digits there, and what ONNX Runtime has no float64 kernel for is written with what
it has::

    expm1 x = tanh(x / 2) (exp x + 1)
    log1p x = log u * x / (u - 1)                   u = 1 + x (Kahan)
    sinh x  = (expm1 x + expm1 x / (expm1 x + 1)) / 2
    atan t  = s + (t - tan s) / (1 + t tan s)       s = atan t in float32; the rest is tiny
"""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.division import truncated
from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Symbolic,
    Writer,
    parsed,
    unary,
)

DOUBLE = torch.float64


def direct(kind: str) -> Symbolic:
    """Make an operator that ONNX has for floating-point numbers."""
    return unary(lambda op, x: op(kind, x))


def fraction(op: Writer, x: Any) -> Any:
    """``torch.frac``."""
    return op("Sub", x, truncated(op, x))


def rounded(op: Writer, x: Any, decimals: Any = None) -> Any:
    """``torch.round``, to a number of decimals, or of zeros before the point."""
    if not op.dtype.is_floating_point:
        return x
    digits = 0 if decimals is None else parsed(decimals, "i")
    if not digits:
        return op("Round", x)
    there, back = ("Mul", "Div") if digits > 0 else ("Div", "Mul")
    power = 10.0 ** abs(digits)
    return op(back, op("Round", op(there, x, power)), power)


def whole(kind: str) -> Symbolic:
    """Make an operator that gives integers back as they are."""
    return unary(lambda op, x: op(kind, x) if op.dtype.is_floating_point else x)


def negated(op: Writer, x: Any) -> Any:
    """``-x``; of unsigned integers modulo 256."""
    return op("Sub", 0, x) if op.dtype == torch.uint8 else op("Neg", x)


def signbit(op: Writer, x: Any) -> Any:
    """``torch.signbit``; of NaN it is false."""
    return op.signbit(x) if op.dtype.is_floating_point else op("Less", x, 0)


def expm1(op: Writer, x: Any) -> Any:
    """``exp(x) - 1``."""
    return op("Mul", op("Tanh", op("Div", x, 2)), op("Add", op("Exp", x), 1))


def log1p(op: Writer, x: Any) -> Any:
    """``log(1 + x)``."""
    u = op("Add", x, 1)
    same = op.either(op("Equal", u, 1), op("Equal", x, math.inf))
    above = op.where(same, op.number(1), op("Log", u))
    below = op.where(same, op.number(1), op("Sub", u, 1))
    return op("Mul", x, op("Div", above, below))


def _logarithm(base: int) -> Symbolic:
    """Make a logarithm that is exact for powers of its base."""

    def form(op: Writer, x: Any) -> Any:
        value = op("Div", op("Log", x), math.log(base))
        nearest = op("Round", value)
        return op.where(op("Equal", op("Pow", base, nearest), x), nearest, value)

    return unary(form)


def _halved(op: Writer, x: Any) -> Any:
    """``exp(|x| / 2)``, whose square is infinite only where the hyperbolic functions are."""
    return op("Exp", op("Div", op("Abs", x), 2))


def sinh(op: Writer, x: Any) -> Any:
    """``torch.sinh``."""
    if op.dtype != DOUBLE:
        return op("Sinh", x)
    less = expm1(op, op("Abs", x))
    near = op("Div", op("Add", less, op("Div", less, op("Add", less, 1))), 2)
    half = _halved(op, x)
    far = op("Mul", op("Div", half, 2), half)
    return op.signed(op.where(op("Greater", half, 1e4), far, near), op.signbit(x))


def cosh(op: Writer, x: Any) -> Any:
    """``torch.cosh``."""
    if op.dtype != DOUBLE:
        return op("Cosh", x)
    half = _halved(op, x)
    return op("Add", op("Mul", op("Div", half, 2), half), op("Div", op("Div", 0.5, half), half))


def tan(op: Writer, x: Any) -> Any:
    """``torch.tan``."""
    return op("Tan", x) if op.dtype != DOUBLE else op("Div", op("Sin", x), op("Cos", x))


def atan_of_ratio(op: Writer, t: Any) -> Any:
    """``atan`` of 0 <= t <= 1."""
    if op.dtype != DOUBLE:
        return op("Atan", t)
    about = op.cast(op("Atan", op.cast(t, torch.float32)), DOUBLE)
    tangent = op("Div", op("Sin", about), op("Cos", about))
    rest = op("Div", op("Sub", t, tangent), op("Add", op("Mul", t, tangent), 1))
    return op("Add", about, rest)


def angle(op: Writer, x: Any) -> Any:
    """``torch.angle`` of real numbers: pi where they are negative."""
    half = op("Mul", op.cast(op("Less", x, 0)), math.pi)
    return op.where(op("IsNaN", x), x, half)


def atan2(op: Writer, y: Any, x: Any) -> Any:
    """``torch.atan2``: the angle of (x, y), of the sign of ``y``, also where it is 0 or -0."""
    height, width = op("Abs", y), op("Abs", x)
    steep = op("Greater", height, width)
    small, large = op.where(steep, width, height), op.where(steep, height, width)
    equal = op.cast(op("Not", op("Equal", large, 0)))
    ratio = op.where(op("Equal", small, large), equal, op("Div", small, large))
    angle = atan_of_ratio(op, ratio)
    angle = op.where(steep, _from(op, math.pi / 2, angle), angle)
    angle = op.where(op.signbit(x), _from(op, math.pi, angle), angle)
    return op.signed(angle, op.signbit(y))


def _from(op: Writer, number: float, angle: Any) -> Any:
    """``number - angle``, where ``number`` has the digits of float64."""
    lead = float(torch.tensor(number, dtype=op.dtype))
    return op("Sub", lead, op("Sub", angle, number - lead))


def atan(op: Writer, x: Any) -> Any:
    """``torch.atan``."""
    if op.dtype != DOUBLE:
        return op("Atan", x)
    size = op("Abs", x)
    steep = op("Greater", size, 1)
    angle = atan_of_ratio(op, op.where(steep, op("Reciprocal", size), size))
    return op.signed(op.where(steep, _from(op, math.pi / 2, angle), angle), op.signbit(x))


def _circle(op: Writer, x: Any) -> Any:
    """``sqrt(1 - x²)``."""
    return op("Sqrt", op("Mul", op("Sub", 1, x), op("Add", x, 1)))


def asin(op: Writer, x: Any) -> Any:
    """``torch.asin``."""
    return op("Asin", x) if op.dtype != DOUBLE else atan2(op, x, _circle(op, x))


def acos(op: Writer, x: Any) -> Any:
    """``torch.acos``."""
    return op("Acos", x) if op.dtype != DOUBLE else atan2(op, _circle(op, x), x)


def _is_nan(op: Writer, x: Any) -> Any:
    """``torch.isnan``, which no integer is."""
    return op("IsNaN", x) if op.dtype.is_floating_point else op("Not", op("Equal", x, x))


def _is_finite(op: Writer, x: Any) -> Any:
    """``torch.isfinite``, which all integers are."""
    floats = op.dtype.is_floating_point
    return op("Less", op("Abs", x), math.inf) if floats else op("Equal", x, x)


def _is_infinite(op: Writer, x: Any) -> Any:
    """``torch.isinf``, which no integer is."""
    return op("IsInf", x) if op.dtype.is_floating_point else op("Not", op("Equal", x, x))


def asinh(op: Writer, x: Any) -> Any:
    """``torch.asinh``."""
    if op.dtype != DOUBLE:
        return op("Asinh", x)
    size = op("Abs", x)
    square = op("Mul", size, size)
    more = op("Div", square, op("Add", op("Sqrt", op("Add", square, 1)), 1))
    near = log1p(op, op("Add", size, more))
    far = op("Add", op("Log", size), math.log(2))
    return op.signed(op.where(op("Greater", size, 1e9), far, near), op.signbit(x))


def acosh(op: Writer, x: Any) -> Any:
    """``torch.acosh``."""
    if op.dtype != DOUBLE:
        return op("Acosh", x)
    above = op("Sub", x, 1)
    root = op("Mul", op("Sqrt", above), op("Sqrt", op("Add", x, 1)))
    near = log1p(op, op("Add", above, root))
    far = op("Add", op("Log", x), math.log(2))
    return op.where(op("Greater", x, 1e9), far, near)


def atanh(op: Writer, x: Any) -> Any:
    """``torch.atanh``."""
    if op.dtype != DOUBLE:
        return op("Atanh", x)
    size = op("Abs", x)
    double = op("Div", op("Mul", size, 2), op("Sub", 1, size))
    return op.signed(op("Div", log1p(op, double), 2), op.signbit(x))


def sign(op: Writer, x: Any) -> Any:
    """``torch.sign``; that of NaN is 0."""
    return op("Sub", op.cast(op("Greater", x, 0)), op.cast(op("Less", x, 0)))


def sinc(op: Writer, x: Any) -> Any:
    """``sin(pi x) / (pi x)``, and 1 at 0."""
    angle = op("Mul", x, math.pi)
    return op.where(op("Equal", x, 0), op.number(1), op("Div", op("Sin", angle), angle))


FUNCTIONS: dict[str, Symbolic] = {
    **{
        f"aten::{kind.lower()}": direct(kind)
        for kind in ("Exp", "Log", "Sqrt", "Sin", "Cos", "Tanh", "Sigmoid", "Reciprocal")
    },
    "aten::floor": whole("Floor"),
    "aten::ceil": whole("Ceil"),
    "aten::trunc": unary(truncated),
    "aten::frac": unary(fraction),
    "aten::round": Elementwise(rounded, 1),
    "aten::positive": unary(lambda op, x: op("Identity", x)),
    "aten::neg": unary(negated),
    "aten::signbit": unary(signbit),
    "aten::isnan": unary(_is_nan),
    "aten::isfinite": unary(_is_finite),
    "aten::isinf": unary(_is_infinite),
    "aten::isposinf": unary(lambda op, x: op("Equal", x, math.inf)),
    "aten::isneginf": unary(lambda op, x: op("Equal", x, -math.inf)),
    "aten::rsqrt": unary(lambda op, x: op("Div", 1, op("Sqrt", x))),
    "aten::expm1": unary(expm1),
    "aten::exp2": unary(lambda op, x: op("Pow", 2, x)),
    "aten::log1p": unary(log1p),
    "aten::log2": _logarithm(2),
    "aten::log10": _logarithm(10),
    "aten::sinh": unary(sinh),
    "aten::cosh": unary(cosh),
    "aten::tan": unary(tan),
    "aten::atan": unary(atan),
    "aten::asin": unary(asin),
    "aten::acos": unary(acos),
    "aten::angle": unary(angle),
    "aten::atan2": Elementwise(atan2, 2),
    "aten::asinh": unary(asinh),
    "aten::acosh": unary(acosh),
    "aten::atanh": unary(atanh),
    "aten::sgn": unary(sign),
    "aten::sign": unary(sign),
    "aten::sinc": unary(sinc),
    "aten::deg2rad": unary(lambda op, x: op("Mul", x, math.pi / 180)),
    "aten::rad2deg": unary(lambda op, x: op("Mul", x, 180 / math.pi)),
}
"""Operators of this file."""
