"""Compares what a target gives with what the reference gives, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """Floats may differ by ``atol + rtol * |expected|``, integers and booleans not at all."""

    atol: float
    rtol: float


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
    """

    abs_error: float
    equal: bool
    where: tuple[int, ...] = ()
    expected: Any = None
    got: Any = None


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
    else:
        error, allowed = _float_errors(expected, got, tolerance)
    bad = error > allowed
    index = np.unravel_index(
        int(np.argmax(np.where(bad, error, -1.0) if bad.any() else error)), error.shape
    )
    where = tuple(int(i) for i in index)
    worst = float(error.max())
    if not bad.any():
        return Difference(worst, equal=True)
    return Difference(worst, False, where, expected[index].item(), got[index].item())


def _float_errors(expected: Array, got: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    a, b = expected.astype(np.float64), got.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
        allowed = tolerance.atol + tolerance.rtol * np.abs(a)
    error = np.where(np.isnan(error), np.inf, error)
    return error, np.where(np.isfinite(a), allowed, 0.0)


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


@dataclass
class RolloutRecord:
    """What one rollout showed, filled step by step."""

    mode: str
    sizes: dict[str, int]
    seed: int
    per_step: list[float] = field(default_factory=list)
    tensors: dict[str, float] = field(default_factory=dict)
    first_bad: dict[str, Any] | None = None

    def add(
        self,
        step: int,
        kind: str,
        expected: dict[str, Array],
        got: dict[str, Array],
        tolerance: Tolerance,
    ) -> None:
        """Compare the tensors of one step."""
        if len(self.per_step) <= step:
            self.per_step.append(0.0)
        for name, want in expected.items():
            found = compare(want, got[name], tolerance)
            key = name if kind == "output" else f"state {name}"
            self.tensors[key] = max(self.tensors.get(key, 0.0), found.abs_error)
            self.per_step[step] = max(self.per_step[step], found.abs_error)
            if not found.equal and self.first_bad is None:
                self.first_bad = {
                    "step": step,
                    "tensor": name,
                    "kind": kind,
                    "index": list(found.where),
                    "expected": found.expected,
                    "got": found.got,
                    "abs_error": found.abs_error,
                    "sizes": self.sizes,
                    "seed": self.seed,
                    "mode": self.mode,
                }

    def summary(self) -> dict[str, Any]:
        """Return the record as it stands in the report."""
        return {
            "mode": self.mode,
            "sizes": self.sizes,
            "seed": self.seed,
            "steps": len(self.per_step),
            "passed": self.first_bad is None,
            "max_abs_error": max(self.per_step, default=0.0),
            "tensors": self.tensors,
            "per_step": self.per_step,
            "first_bad": self.first_bad,
        }
