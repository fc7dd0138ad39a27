"""Makes the nodes that compute a Python number: tensors without dimensions, of three dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import onnx_ir as ir

DTYPES = {"i": ir.DataType.INT64, "f": ir.DataType.DOUBLE, "b": ir.DataType.BOOL}
"""The dtypes of Python's types of numbers, by their first letters."""
_PYTHON: dict[str, Callable[[Any], bool | int | float]] = {"i": int, "f": float, "b": bool}
_ASKS = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf"})
"""Operators that give a truth value, whatever they are given."""

Number: TypeAlias = "ir.Value | bool | int | float"


class Nodes:
    """Nodes in the order in which they are made; calling it makes one more.

    Attributes:
        made: The nodes.
    """

    def __init__(self) -> None:
        self.made: list[ir.Node] = []

    def __call__(self, op: str, *numbers: Number, **attributes: Any) -> ir.Value:
        """Return the result of the ONNX operator ``op`` on numbers, those of Python as constants.

        The result is as the last number is, unless ``op`` gives a truth value.
        """
        values = [self.value(number) for number in numbers]
        dtype = ir.DataType.BOOL if op in _ASKS else values[-1].dtype
        return self._node(op, values, attributes, dtype)

    def cast(self, number: Number, letter: str) -> ir.Value:
        """Return ``number`` in the dtype that ``letter`` means."""
        value = self.value(number)
        dtype = DTYPES[letter]
        if value.dtype == dtype:
            return value
        known = constant(value)
        if known is not None:
            return self.value(_PYTHON[letter](known))
        return self._node("Cast", [value], {"to": dtype}, dtype)

    def through_float32(self, op: str, number: ir.Value) -> ir.Value:
        """Return the result of an operator that engines lack in float64, near the float32 one."""
        single = self._node("Cast", [number], {"to": ir.DataType.FLOAT}, ir.DataType.FLOAT)
        return self.cast(self._node(op, [single], {}, ir.DataType.FLOAT), "f")

    def value(self, number: Number) -> ir.Value:
        """Return ``number``, one of Python as a constant of its type."""
        if isinstance(number, ir.Value):
            return number
        letter = type(number).__name__[0]
        tensor = ir.tensor(number, dtype=DTYPES[letter])
        return self._node("Constant", [], {"value": tensor}, DTYPES[letter])

    def _node(
        self,
        kind: str,
        values: list[ir.Value],
        attributes: dict[str, Any],
        dtype: ir.DataType | None,
    ) -> ir.Value:
        node = ir.node(kind, values, attributes)
        [result] = node.outputs
        assert dtype is not None  # numbers have dtypes from the start
        result.type = ir.TensorType(dtype)
        result.shape = ir.Shape([])
        self.made.append(node)
        return result


def constant(value: ir.Value) -> int | float | None:
    """Return the number that a value always is, or None."""
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().item()


Form: TypeAlias = Callable[..., ir.Value]
"""Writes an operator: takes :class:`Nodes` and the operands, gives the result."""
