"""Compares what a target gives with what the reference gives, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """How far floats may be off; integers and booleans may not at all.

    Attributes:
        atol: The absolute part.
        rtol: Relative to the element that is expected.
        of_largest: Relative to the largest element of the tensor that is expected, for what
            cancels to next to nothing.
    """

    atol: float
    rtol: float
    of_largest: float = 0.0


@dataclass(frozen=True)
class Difference:
    """How far a tensor is off: the worst element, and whether it is within tolerance.

    Attributes:
        abs_error: The largest absolute error; infinite where shapes, dtypes, NaNs or infinities
            differ.
        equal: Whether every element is within tolerance.
        where: The index of the worst element, where it is not.
        expected: The reference's value there.
        got: The target's value there.
        non_finite: How many elements the reference has that are NaN or infinite.
    """

    abs_error: float
    equal: bool
    where: tuple[int, ...] = ()
    expected: Any = None
    got: Any = None
    non_finite: int = 0


def compare(expected: Array, got: Array, tolerance: Tolerance) -> Difference:
    """Return how ``got`` differs from ``expected``."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return Difference(float("inf"), False, (), _kind(expected), _kind(got))
    if expected.size == 0:
        return Difference(0.0, equal=True)
    if expected.dtype.kind in "biu":
        error = np.abs(expected.astype(np.float64) - got.astype(np.float64))
        # float64 cannot tell neighbouring large integers apart; they differ by 1 at least.
        error = np.where((expected != got) & (error == 0), 1.0, error)
        allowed = np.zeros_like(error)
        non_finite = 0
    else:
        error, allowed, non_finite = _float_errors(expected, got, tolerance)
    bad = error > allowed
    index = np.unravel_index(
        int(np.argmax(np.where(bad, error, -1.0) if bad.any() else error)), error.shape
    )
    where = tuple(int(i) for i in index)
    worst = float(error.max())
    if not bad.any():
        return Difference(worst, equal=True, non_finite=non_finite)
    return Difference(worst, False, where, expected[index].item(), got[index].item(), non_finite)


def _float_errors(expected: Array, got: Array, tolerance: Tolerance) -> tuple[Array, Array, int]:
    """Return the error of each element, the error allowed, and how many are not finite."""
    a, b = expected.astype(np.float64), got.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
        allowed = tolerance.atol + tolerance.rtol * np.abs(a)
    error = np.where(np.isnan(error), np.inf, error)
    finite = np.isfinite(a)
    if tolerance.of_largest and finite.any():
        allowed = allowed + tolerance.of_largest * np.abs(a[finite]).max()
    return error, np.where(finite, allowed, 0.0), int(a.size - np.count_nonzero(finite))


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
