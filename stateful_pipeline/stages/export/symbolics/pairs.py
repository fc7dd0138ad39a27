"""Functions of two numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.functions import log1p
from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Symbolic,
    Writer,
    binary,
    dtype_of,
    parsed,
)


def hypot(op: Writer, x: Any, y: Any) -> Any:
    """``sqrt(x² + y²)``, where a square may be too large."""
    a, b = op("Abs", x), op("Abs", y)
    less = op("Less", a, b)
    large, small = op.where(less, b, a), op.where(less, a, b)
    ratio = op("Div", small, large)
    length = op("Mul", large, op("Sqrt", op("Add", op("Mul", ratio, ratio), 1)))
    length = op.where(op("Equal", large, 0), small, length)
    infinite = op.either(op("Equal", a, math.inf), op("Equal", b, math.inf))
    return op.where(infinite, op.number(math.inf), length)


def logaddexp(op: Writer, a: Any, b: Any) -> Any:
    """``log(exp a + exp b)``."""
    return _log_of_sum(op, a, b, log1p(op, op("Exp", _minus_distance(op, a, b))))


def logaddexp2(op: Writer, a: Any, b: Any) -> Any:
    """``log2(2 ** a + 2 ** b)``."""
    more = log1p(op, op("Pow", 2, _minus_distance(op, a, b)))
    return _log_of_sum(op, a, b, op("Div", more, math.log(2)))


def _minus_distance(op: Writer, a: Any, b: Any) -> Any:
    return op("Neg", op("Abs", op("Sub", a, b)))


def _log_of_sum(op: Writer, a: Any, b: Any, more: Any) -> Any:
    """``max(a, b) + more``, or both where they are one infinity."""
    total = op("Add", op.where(op("Greater", a, b), a, b), more)
    return op.where(op("And", op("IsInf", a), op("Equal", a, b)), a, total)


def isclose(op: Writer, a: Any, b: Any, relative: Any, absolute: Any, equal_nan: Any) -> Any:
    """``torch.isclose``; integers are compared in float32."""
    equal = op("Equal", a, b)
    if parsed(equal_nan, "b") and op.dtype.is_floating_point:
        equal = op.either(equal, op("And", op("IsNaN", a), op("IsNaN", b)))
    share, least = parsed(relative, "f"), parsed(absolute, "f")
    if not op.dtype.is_floating_point:
        op = op.of(torch.float32)
        a, b = op.cast(a), op.cast(b)
    distance = op("Abs", op("Sub", a, b))
    allowed = op("Add", op("Abs", op("Mul", b, share)), least)
    near = op("And", op("LessOrEqual", distance, allowed), op("Less", distance, math.inf))
    return op.either(equal, near) if share or least else equal


def _extreme(kind: str) -> Symbolic:
    """Make ``fmax`` or ``fmin``: the other number where one is NaN."""

    def form(op: Writer, a: Any, b: Any) -> Any:
        first = op(kind, a, b)
        if op.dtype.is_floating_point:
            first = op.either(first, op("IsNaN", b))
        return op.where(first, a, b)

    return binary(form)


def copysign(op: Writer, x: Any, y: Any) -> Any:
    """``torch.copysign``; NaN has no sign here."""
    return op.signed(x, op.signbit(y))


def heaviside(op: Writer, x: Any, values: Any) -> Any:
    """``torch.heaviside``: ``values`` where ``x`` is 0."""
    return op.where(op("Equal", x, 0), values, op.cast(op("Greater", x, 0)))


def xlogy(op: Writer, x: Any, y: Any) -> Any:
    """``x * log(y)``, which is 0 where ``x`` is, unless ``y`` is NaN."""
    return _times_unless_zero(op, x, y, op("Log", y))


def xlog1py(op: Writer, x: Any, y: Any) -> Any:
    """``x * log(1 + y)``, which is 0 where ``x`` is, unless ``y`` is NaN."""
    return _times_unless_zero(op, x, y, log1p(op, y))


def _times_unless_zero(op: Writer, x: Any, y: Any, factor: Any) -> Any:
    zero = op("And", op("Equal", x, 0), op("Equal", y, y))
    return op.where(zero, op.number(0), op("Mul", x, factor))


def clamp(op: Writer, x: Any, low: Any, high: Any) -> Any:
    """``torch.clamp``: at least ``low``, and then at most ``high``; either may be left out.

    ``Clip`` without a bound makes the largest finite number of infinity in ONNX Runtime.
    """
    wide = op.of(torch.int32) if op.dtype == torch.int16 else op
    x = wide.cast(x)
    if low is not None:
        x = wide("Max", x, wide.cast(low))
    if high is not None:
        x = wide("Min", x, wide.cast(high))
    return x


def _product(op: Writer, x: Any, a: Any, b: Any, value: Any) -> Any:
    """``torch.addcmul``: ``x + value * a * b``."""
    return op("Add", x, op("Mul", op("Mul", value, a), b))


def _quotient(op: Writer, x: Any, a: Any, b: Any, value: Any) -> Any:
    """``torch.addcdiv``: ``x + value * a / b``."""
    return op("Add", x, op("Div", op("Mul", value, a), b))


def lerp(op: Writer, a: Any, b: Any, weight: Any) -> Any:
    """``torch.lerp``, which goes from the nearer of both ends."""
    way = op("Sub", b, a)
    from_a = op("Add", a, op("Mul", weight, way))
    from_b = op("Sub", b, op("Mul", way, op("Sub", 1, weight)))
    return op.where(op("Less", op("Abs", weight), 0.5), from_a, from_b)


def _truths(kind: str) -> Symbolic:
    """Make a logical operator, to which numbers are true if they are not 0."""

    def form(op: Writer, *operands: Any) -> Any:
        return op(kind, *(_truth(op, operand) for operand in operands))

    return Elementwise(form, 1 if kind == "Not" else 2, promotes=False)


def _truth(op: Writer, x: Any) -> Any:
    dtype = dtype_of(x)
    if dtype == torch.bool:
        return x
    return op("Not", op.of(dtype or op.dtype)("Equal", x, 0))


def _bits(kind: str) -> Symbolic:
    """Make an operator on bits, and on truth values."""

    def form(op: Writer, *operands: Any) -> Any:
        return op(kind if op.dtype == torch.bool else f"Bitwise{kind}", *operands)

    return Elementwise(form, 1 if kind == "Not" else 2)


def _chosen_truth(op: Writer, condition: Any, yes: Any, no: Any) -> Any:
    """``torch.where`` of truth values, for which ONNX Runtime has no kernel of ``Where``."""
    return op.either(op("And", condition, yes), op("And", op("Not", condition), no))


def _multiply(op: Writer, a: Any, b: Any) -> Any:
    """``a * b``; a Python number keeps the digits of float32 where it meets 16 bits."""
    return op("And" if op.dtype == torch.bool else "Mul", a, b)


PAIRS: dict[str, Symbolic] = {
    "aten::where": Elementwise(_chosen_truth, 3, only=torch.bool),
    "aten::add": Elementwise(lambda op, a, b, alpha: op("Or", a, b), 2, only=torch.bool),
    "aten::mul": Elementwise(_multiply, 2, exact=True),
    "aten::hypot": binary(hypot),
    "aten::logaddexp": binary(logaddexp),
    "aten::logaddexp2": binary(logaddexp2),
    "aten::isclose": Elementwise(isclose, 2),
    "aten::fmax": _extreme("GreaterOrEqual"),
    "aten::fmin": _extreme("LessOrEqual"),
    "aten::copysign": binary(copysign),
    "aten::heaviside": binary(heaviside),
    "aten::xlogy": binary(xlogy),
    "aten::special_xlog1py": binary(xlog1py),
    "aten::float_power": Elementwise(lambda op, x, y: op("Pow", x, y), 2, dtype=torch.float64),
    "aten::ldexp": binary(lambda op, x, y: op("Mul", x, op("Pow", 2, y))),
    "aten::clamp": Elementwise(clamp, 3),
    "aten::clamp_min": binary(lambda op, x, low: clamp(op, x, low, None)),
    "aten::clamp_max": binary(lambda op, x, high: clamp(op, x, None, high)),
    "aten::addcmul": Elementwise(_product, 4),
    "aten::addcdiv": Elementwise(_quotient, 4),
    "aten::lerp": Elementwise(lerp, 3),
    **{f"aten::bitwise_{kind.lower()}": _bits(kind) for kind in ("And", "Or", "Xor", "Not")},
    **{f"aten::__{kind.lower()}_": _bits(kind) for kind in ("And", "Or", "Xor")},
    **{f"aten::logical_{kind.lower()}": _truths(kind) for kind in ("And", "Or", "Xor", "Not")},
}
"""Operators of this file."""
