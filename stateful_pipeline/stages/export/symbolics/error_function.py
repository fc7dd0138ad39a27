"""The error function in float64, for which ONNX Runtime has no kernel, and what is made of it.

Near 0 it is a Taylor series, and elsewhere the rest that is left of 1::

    erf x  = 2 / sqrt(pi) * sum (-1)^n x^(2n + 1) / (n! (2n + 1))          |x| < 1/2
    erfc x = exp(-x²) erfcx x,    erfcx x = sum c_n T_n(2t - 1),    t = 2 / (2 + x),    x >= 0

``erfcx``, which PyTorch has, is smooth in ``t`` between 0 and 1.  The coefficients of its Chebyshev
series are computed from it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev

from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Symbolic,
    Writer,
    parsed,
    unary,
)

DOUBLE = torch.float64
_DEGREE = 28
"""The degree from which on the series of ``erfcx`` is exact to the last digits."""
_TERMS = 13
"""How many terms of the Taylor series count at 1/2."""


@functools.cache
def _coefficients() -> tuple[float, ...]:
    def scaled(u: Any) -> Any:
        t = (np.asarray(u) + 1) / 2
        return torch.special.erfcx(torch.from_numpy(2 / t - 2)).numpy()

    return tuple(float(c) for c in chebyshev.chebinterpolate(scaled, _DEGREE))


def _tail(op: Writer, size: Any) -> Any:
    """``erfc`` of numbers that are not negative, by Clenshaw's recurrence."""
    u = op("Sub", op("Div", 4, op("Add", size, 2)), 1)
    twice = op("Mul", u, 2)
    later, last = op.number(0), op.number(0)
    first, *others = _coefficients()
    for coefficient in reversed(others):
        later, last = op("Add", op("Sub", op("Mul", twice, later), last), coefficient), later
    series = op("Abs", op("Add", op("Sub", op("Mul", u, later), last), first))
    return op("Mul", op("Exp", op("Neg", op("Mul", size, size))), series)


def _series(op: Writer, x: Any) -> Any:
    """``erf`` near 0."""
    square, total = op("Mul", x, x), op.number(0)
    for n in reversed(range(_TERMS)):
        term = (-1) ** n / (math.factorial(n) * (2 * n + 1))
        total = op("Add", op("Mul", total, square), term)
    return op("Mul", op("Mul", x, total), 2 / math.sqrt(math.pi))


def erf(op: Writer, x: Any) -> Any:
    """``torch.erf``."""
    if op.dtype != DOUBLE:
        return op("Erf", x)
    size = op("Abs", x)
    value = op.where(op("Less", size, 0.5), _series(op, size), op("Sub", 1, _tail(op, size)))
    return op.signed(value, op.signbit(x))


def erfc(op: Writer, x: Any) -> Any:
    """``torch.erfc``, which keeps its digits where it is small."""
    tail = _tail(op, op("Abs", x))
    away = op.where(op("Less", x, 0), op("Sub", 2, tail), tail)
    near = op("Less", op("Abs", x), 0.5)
    return op.where(near, op("Sub", 1, _series(op, x)), away)


def gelu(op: Writer, x: Any, approximate: Any) -> Any:
    """``F.gelu``, or what approximates it by ``tanh``."""
    if parsed(approximate, "s") == "tanh":
        cube = op("Mul", op("Mul", op("Mul", x, x), x), 0.044715)
        share = op("Tanh", op("Mul", op("Add", x, cube), math.sqrt(2 / math.pi)))
    else:
        share = erf(op, op("Mul", x, math.sqrt(0.5)))
    return op("Mul", op("Mul", x, 0.5), op("Add", share, 1))


ERROR_FUNCTION: dict[str, Symbolic] = {
    "aten::erf": unary(erf),
    "aten::erfc": Elementwise(erfc, 1, dtype=DOUBLE),
    "aten::gelu": Elementwise(gelu, 1, only=DOUBLE),
}
"""Operators of this file."""
