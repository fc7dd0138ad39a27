"""Division that rounds, its remainder, and shifts of bits.

ONNX's ``Div`` of integers truncates, and so does ``Cast`` to integers.  Python and PyTorch round
down.  For floating-point numbers, PyTorch (``div_floor_floating``) computes the quotient of what
is left without the remainder, so that it is right where ``a / b`` rounds up to an integer::

    r = fmod(a, b)            q = (a - r) / b         an integer but for rounding
    floor(a / b) = q          if r is 0 or has the sign of b
                 = q - 1      otherwise
    a mod b      = r or r + b in these cases
"""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.writing import (
    Symbolic,
    Writer,
    binary,
    onnx_type,
    parsed,
)


def divide(op: Writer, a: Any, b: Any, mode: Any = None) -> Any:
    """``torch.div``: the quotient, or with a rounding mode, "floor" or "trunc"."""
    rounding = None if mode is None else parsed(mode, "s")
    if rounding == "floor":
        return floor_divide(op, a, b)
    quotient = op("Div", a, b)
    return truncated(op, op.rounded(quotient)) if rounding == "trunc" else quotient


def truncated(op: Writer, value: Any) -> Any:
    """``value`` without its fraction, -0.3 as -0."""
    if not op.dtype.is_floating_point:
        return value
    return op.signed(op("Floor", op("Abs", value)), op.signbit(value))


def _is_against(op: Writer, left: Any, b: Any) -> Any:
    """Whether a remainder is there and has not the sign of the divisor."""
    return op(
        "And", op("Not", op("Equal", left, 0)), op("Xor", op("Less", b, 0), op("Less", left, 0))
    )


def floor_divide(op: Writer, a: Any, b: Any) -> Any:
    """``a // b``; a floating-point number divided by zero is what ``a / b`` is."""
    if not op.dtype.is_floating_point:
        left = op("Mod", a, b, fmod_i=1)
        return op("Sub", op("Div", a, b), op("Cast", _is_against(op, left, b), to_i=_code(op)))
    left = op("Mod", a, b, fmod_i=1)
    quotient = op("Div", op("Sub", a, left), b)
    quotient = op.where(_is_against(op, left, b), op("Sub", quotient, 1), quotient)
    floor = op("Floor", quotient)
    nearest = op.where(op("Greater", op("Sub", quotient, floor), 0.5), op("Add", floor, 1), floor)
    exact = op("Div", a, b)
    nearest = op.where(op("Equal", b, 0), exact, nearest)
    zero = op("And", op("Equal", nearest, 0), op.signbit(exact))
    return op.signed(nearest, op.either(op("Less", nearest, 0), zero))


def remainder(op: Writer, a: Any, b: Any) -> Any:
    """``a % b``, of the sign of ``b``."""
    if not op.dtype.is_floating_point:
        return op("Mod", a, b)
    b = op.rounded(b)
    left = op("Mod", op.rounded(a), b, fmod_i=1)
    return op.where(_is_against(op, left, b), op("Add", left, b), left)


def fmod(op: Writer, a: Any, b: Any) -> Any:
    """``torch.fmod``, of the sign of ``a``."""
    return op("Mod", op.rounded(a), op.rounded(b), fmod_i=1)


def _code(op: Writer) -> int:
    return onnx_type(op.dtype)


def _left_shift(op: Writer, a: Any, by: Any) -> Any:
    """``a << by``: 0 if all bits are shifted out, or ``by`` is negative."""
    if op.dtype.is_floating_point:
        return op("Mul", a, op("Pow", 2, by))
    long = op.of(torch.int64)
    power, inside = _power(long, by, torch.iinfo(op.dtype).bits)
    return op.cast(long.where(inside, long("Mul", long.cast(a), power), 0))


def _right_shift(op: Writer, a: Any, by: Any) -> Any:
    """``a >> by``, which rounds down: what is left of ``a`` by ``2**by`` is taken off first.

    All bits but the sign are shifted out if ``by`` is as large or negative.  ``BitShift`` would
    need uint64, which TensorRT lacks, and OpenVINO has in 32 bits with a sign.
    """
    if op.dtype.is_floating_point:
        return op("Div", a, op("Pow", 2, by))
    long = op.of(torch.int64)
    power, inside = _power(long, by, torch.iinfo(op.dtype).max.bit_length())
    wide = long.cast(a)
    moved = long("Div", long("Sub", wide, long("Mod", wide, power)), power)
    return op.cast(long.where(inside, moved, long.where(long("Less", wide, 0), -1, 0)))


def _power(long: Writer, by: Any, width: int) -> tuple[Any, Any]:
    """Return 2 to the power of ``by``, and whether 0 <= by < width; elsewhere the power is 1."""
    shift = long.cast(by)
    inside = long("And", long("GreaterOrEqual", shift, 0), long("Less", shift, width))
    powers = long.ints(*(1 << n for n in range(63)), -(1 << 63))
    return long("Gather", powers, long.where(inside, shift, 0)), inside


DIVISION: dict[str, Symbolic] = {
    "aten::div": binary(divide),
    "aten::floor_divide": binary(floor_divide),
    "aten::remainder": binary(remainder),
    "aten::fmod": binary(fmod),
    "aten::__lshift_": binary(_left_shift),
    "aten::bitwise_left_shift": binary(_left_shift),
    "aten::__rshift_": binary(_right_shift),
    "aten::bitwise_right_shift": binary(_right_shift),
}
"""Operators of this file."""
