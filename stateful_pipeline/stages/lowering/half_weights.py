"""Constants in half precision: what is rounded, what is too large, what becomes zero."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import onnx_ir as ir

from stateful_pipeline.stages.lowering.half_operators import constant_tensor, is_constant

Array = np.ndarray[Any, Any]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


class Magnitude(IntEnum):
    """Whether a value is within the range of half, or may be outside."""

    FITS = 0
    SMALL = 1  # it becomes 0
    LARGE = 2  # an element of it becomes infinite


def rounded(array: Array, half: ir.DataType) -> Array:
    """Return ``array`` in ``half``, each element the nearest there is; what is too large is inf."""
    with np.errstate(over="ignore", under="ignore"):
        made: Array = array.astype(half.numpy())
    return made


def count_overflows(array: Array, half: ir.DataType) -> int:
    """Return how many finite elements of ``array`` are too large for ``half``."""
    there = np.isfinite(array)
    return int(np.count_nonzero(there & ~np.isfinite(rounded(array, half).astype(np.float32))))


class Weights:
    """Says what half precision does to the constants of a model.

    Args:
        half: float16 or bfloat16.
    """

    def __init__(self, half: ir.DataType) -> None:
        self._half = half
        self._magnitudes: dict[ir.Value, Magnitude] = {}
        self.notes: dict[str, None] = {}

    def magnitude(self, value: ir.Value) -> Magnitude:
        """Return whether half has numbers for a constant: LARGE if not for one of its elements."""
        if not is_constant(value) or value.dtype not in _FLOATS:
            return Magnitude.FITS
        if value not in self._magnitudes:
            array = self._array(value)
            found = self._magnitudes[value] = self._of(array)
            if found is not Magnitude.FITS:
                too_large = count_overflows(array, self._half)
                what = f"{too_large} of {array.size} elements are too large for {self._said}"
                what = what if too_large else f"it becomes 0 in {self._said}"
                self.notes[f"{value.name}: {what}; what reads it stays in float32"] = None
        return self._magnitudes[value]

    def magnitude_of(self, attribute: ir.Attr) -> Magnitude:
        """Return the same for an attribute; a small number in one is not stored in half."""
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            return self._of(tensor.numpy()) if tensor.dtype in _FLOATS else Magnitude.FITS
        numbers = []
        if attribute.type == ir.AttributeType.FLOAT:
            numbers = [attribute.as_float()]
        elif attribute.type == ir.AttributeType.FLOATS:
            numbers = list(attribute.as_floats())
        large = count_overflows(np.array(numbers, np.float32), self._half)
        return Magnitude.LARGE if large else Magnitude.FITS

    def _of(self, array: Array) -> Magnitude:
        if count_overflows(array, self._half):
            return Magnitude.LARGE
        vanishes = bool(array.any()) and not rounded(array, self._half).any()
        return Magnitude.SMALL if vanishes else Magnitude.FITS

    def in_half(self, value: ir.Value) -> ir.Tensor[Any]:
        """Return a constant in half, and note how many of its elements become 0."""
        array = self._array(value)
        made = rounded(array, self._half)
        lost = int(np.count_nonzero((array != 0) & (made == 0)))
        if lost:
            said = f"{lost} of {array.size} elements become 0 in {self._said}"
            self.notes[f"{value.name}: {said}"] = None
        return ir.Tensor(made, dtype=self._half, name=value.name)

    @property
    def _said(self) -> str:
        return self._half.name.lower()

    @staticmethod
    def _array(value: ir.Value) -> Array:
        tensor = constant_tensor(value)
        assert tensor is not None  # it is of float32
        return tensor.numpy()
