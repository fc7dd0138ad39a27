"""Writes out operators on whole numbers that OpenVINO computes in float32, exact to 2**24.

Sums, differences, products, the greatest, the least and bitwise operators of 32 bits are exact
there, and wrap around; so is every comparison with zero.  The others are written with these.

``a < b``: the sign of ``a - b``, turned round where the difference does not fit (Warren, Hacker's
Delight, 2nd edition, section 2-12).  ``a == b``: ``a - b == 0``.

``a`` divided by ``b``: the quotient in float32 is off by a small part of itself, so what it leaves
of ``a`` is divided once more; the remainder is then wrong by one ``b`` at most, which its sign, or
``b`` itself, shows.

``Where(c, a, b)``, which is computed in float32 together with the comparison that makes ``c``:
``b + (a - b) * c``.  ``Clip``, and what OpenVINO makes one of, ``Min`` of ``Max`` with constants:
by such choices where the bounds are large.

What sizes are made of stays as it is, and so does what constants below 2**24 make exact.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.sizes import sizes_in
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_BOUNDS = frozenset({"Max", "Min"})
_OPERATORS = _COMPARISONS | _BOUNDS | {"Clip", "Div", "Mod", "Relu", "Where"}
_EXACT = 2**24


def write_out_integers(model: ir.Model, names: Names) -> list[str]:
    """Write the operators out, in place; return what was changed, in words.

    The dtypes of ``model`` are known, as far as they can be, and it has no functions.
    """
    sizes, changed = sizes_in(model), list[str]()
    for graph in model.graphs():
        for node in list(graph):
            dtype = _integers_of(node)
            if dtype is not None and not _is_exact(node, sizes):
                numbers = _Numbers(Writer(names, graph, node), dtype)
                replace_by(node, numbers.of(node))
                changed.append(f"{node.op_type}: {dtype.name.lower()} beyond 2**24")
    return changed


def _integers_of(node: ir.Node) -> ir.DataType | None:
    """Return the dtype that ``node`` computes with, if this module has another form of it."""
    if node.domain != "" or node.op_type not in _OPERATORS:
        return None
    given = node.inputs[0] if node.op_type in _COMPARISONS else node.outputs[0]
    return given.dtype if given is not None and given.dtype in _INTEGERS else None


def _is_exact(node: ir.Node, sizes: set[ir.Value]) -> bool:
    """Whether the inputs of ``node`` are such that float32 holds what has to be computed."""
    numbers = [value for value in node.inputs[node.op_type == "Where" :] if value is not None]
    small = [_is_small(value, sizes) for value in numbers]
    if node.op_type in _COMPARISONS:
        return any(small)
    if node.op_type in _BOUNDS:
        return not any(_is_large(value) for value in numbers)
    if node.op_type == "Clip":
        return len(small) == 3 and all(small[1:])
    return all(small)


def _is_large(value: ir.Value) -> bool:
    return ir.convenience.get_const_tensor(value) is not None and not _is_small(value, set())


def _is_small(value: ir.Value, sizes: set[ir.Value]) -> bool:
    known = ir.convenience.get_const_tensor(value)
    if known is None:
        return value in sizes
    numbers = known.numpy()
    return bool((numbers > -_EXACT).all() and (numbers < _EXACT).all())


class _Numbers:
    """Writes operators on whole numbers of one dtype."""

    def __init__(self, write: Writer, dtype: ir.DataType) -> None:
        self._write, self._dtype = write, dtype
        self._zero = write("Constant", value=ir.tensor(0, dtype=dtype))

    def of(self, node: ir.Node) -> ir.Value:
        """Return what ``node`` makes, written out before it."""
        given, operator = list(node.inputs), node.op_type
        if operator == "Clip":
            return self._clipped(*given)
        values = [value for value in given if value is not None]
        if operator == "Relu":
            return self._write("Max", *values, self._zero)
        if operator == "Where":
            return self._either(*values)
        if operator in _BOUNDS:
            return functools.reduce(functools.partial(self._bound, operator), values)
        first, second = values
        if operator in _COMPARISONS:
            return self._comparison(operator, first, second)
        if operator == "Div":
            return self._truncated(first, second)[0]
        is_truncated = node.attributes.get_int("fmod", 0)
        return (self._truncated if is_truncated else self._floored)(first, second)[1]

    def _either(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        write = self._write
        return write("Add", b, write("Mul", write("Sub", a, b), self._number(condition)))

    def _bound(self, operator: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return the greatest or the least of two numbers."""
        if not (_is_large(a) or _is_large(b)):
            return self._write(operator, a, b)
        less = self._is_less(a, b)
        return self._either(less, b, a) if operator == "Max" else self._either(less, a, b)

    def _clipped(
        self, a: ir.Value | None, low: ir.Value | None = None, high: ir.Value | None = None
    ) -> ir.Value:
        assert a is not None
        a = a if low is None else self._bound("Max", a, low)
        return a if high is None else self._bound("Min", a, high)

    def _are_equal(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._write("Equal", self._write("Sub", a, b), self._zero)

    def _is_negative(self, a: ir.Value) -> ir.Value:
        return self._write("Less", a, self._zero)

    def _comparison(self, operator: str, a: ir.Value, b: ir.Value) -> ir.Value:
        if operator == "Equal":
            return self._are_equal(a, b)
        if operator in ("Greater", "LessOrEqual"):
            a, b = b, a
        less = self._is_less(a, b)
        return self._write("Not", less) if operator.endswith("OrEqual") else less

    def _is_less(self, a: ir.Value, b: ir.Value) -> ir.Value:
        write = self._write
        difference = write("Sub", a, b)
        overflow = write("BitwiseXor", difference, a)
        overflow = write("BitwiseAnd", write("BitwiseXor", a, b), overflow)
        return self._is_negative(write("BitwiseXor", difference, overflow))

    def _have_other_signs(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Whether ``a`` is not zero, and has another sign than ``b``."""
        other = self._is_negative(self._write("BitwiseXor", a, b))
        return self._write("And", other, self._write("Not", self._write("Equal", a, self._zero)))

    def _floored(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return quotient and remainder, whose sign is that of ``b``."""
        write = self._write
        first = write("Div", a, b)
        rest = write("Sub", a, write("Mul", first, b))
        second = write("Div", rest, b)
        rest = write("Sub", rest, write("Mul", second, b))
        quotient = write("Add", first, second)
        below = self._number(self._have_other_signs(rest, b))
        rest = write("Add", rest, write("Mul", b, below))
        above = self._number(self._are_equal(rest, b))
        rest = write("Sub", rest, write("Mul", b, above))
        return write("Add", write("Sub", quotient, below), above), rest

    def _truncated(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return quotient and remainder, whose sign is that of ``a``."""
        write = self._write
        quotient, rest = self._floored(a, b)
        beyond = self._number(self._have_other_signs(rest, a))
        return write("Add", quotient, beyond), write("Sub", rest, write("Mul", b, beyond))

    def _number(self, condition: ir.Value) -> ir.Value:
        return self._write("Cast", condition, to=self._dtype.value)
