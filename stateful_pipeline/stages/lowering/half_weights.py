"""Constants in half precision: what is rounded, what is too large, what becomes zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from stateful_pipeline.stages.lowering.half_operators import constant_tensor, is_constant

Array = np.ndarray[Any, Any]


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
        self._beyond: dict[ir.Value, bool] = {}
        self.notes: dict[str, None] = {}

    def is_beyond(self, value: ir.Value) -> bool:
        """Whether half has no number for a constant: too large an element, or all become 0."""
        if not is_constant(value) or value.dtype != ir.DataType.FLOAT:
            return False
        if value not in self._beyond:
            array = self._array(value)
            too_large = count_overflows(array, self._half)
            vanishes = bool(array.any()) and not rounded(array, self._half).any()
            self._beyond[value] = too_large > 0 or vanishes
            if self._beyond[value]:
                what = f"{too_large} of {array.size} elements are too large for {self._said}"
                what = what if too_large else f"it becomes 0 in {self._said}"
                self.notes[f"{value.name}: {what}; what reads it stays in float32"] = None
        return self._beyond[value]

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
