"""Reductions along dimensions.

A reduction keeps its dimensions to the end, so that nothing 0-d is computed with, which PyTorch's
exporter would cast.  Variances take two passes, the mean first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import (
    Symbolic,
    Writer,
    computing_dtype,
    dtype_of,
    lifted,
    parsed,
    parsed_dims,
    rank_of,
    result_dtype,
)


@dataclass(frozen=True)
class Reduction:
    """What is reduced along which dimensions.

    Attributes:
        op: Writes on the dtype that is computed in.
        value: What is reduced, with one dimension at least.
        axes: The dimensions along which it is, none of them negative.
        keeps: Whether they stay in the result.
    """

    op: Writer
    value: Any
    axes: list[int]
    keeps: bool

    def __call__(self, kind: str, value: Any) -> Any:
        """Reduce ``value`` by the operator ``kind``; the dimensions stay, each of size 1."""
        return self.op(kind, value, self.op.ints(*self.axes), keepdims_i=1)

    def result(self, value: Any) -> Any:
        """Return what was reduced as the result of the node."""
        if not self.keeps:
            value = self.op("Squeeze", value, self.op.ints(*self.axes))
        return self.op.cast(value, self.op.result)

    def count(self) -> Any:
        """Return how many elements each result is made of, as a vector of one element."""
        sizes = self.op.shape(self.value, self.axes)
        return self.op.cast(self.op("ReduceProd", sizes, keepdims_i=1))


def reduction(
    g: Any, value: Any, dims: Any, keepdim: Any, dtype: torch.dtype | None = None
) -> Reduction:
    """Return the reduction of ``value`` in ``dtype``, or in what PyTorch computes it in."""
    result = result_dtype(g) or torch.float32
    op = Writer(g, dtype or computing_dtype(result), result)
    rank = rank_of(value)
    keeps = rank > 0 and keepdim is not None and bool(parsed(keepdim, "b"))
    value = lifted(op, value if dtype else op.cast(value))
    return Reduction(op, value, parsed_dims(dims, rank or 1), keeps)


def _truth_of(every: bool) -> Symbolic:
    """Make ``all`` or ``any``, to which numbers are true if they are not 0, as NaN is not."""

    def symbolic(g: Any, value: Any, dims: Any = None, keepdim: Any = None) -> Any:
        dtype = dtype_of(value) or torch.float32
        made = reduction(g, value, dims, keepdim, dtype)
        op, long = made.op, Writer(g, torch.int64)
        wrong = op("Not", made.value) if dtype == torch.bool else op("Equal", made.value, 0)
        counted = long.cast(wrong if every else op("Not", wrong))
        return made.result(long("Equal" if every else "Greater", made("ReduceSum", counted), 0))

    return symbolic


def _moments(kinds: tuple[str, ...]) -> Symbolic:
    """Make an operator that gives "mean", "var" or "std", one or two of them.

    Its arguments are ``(unbiased)``, ``(dim, unbiased, keepdim)`` or ``(dim, correction,
    keepdim)``.  A correction is 1 if it is left out.
    """

    def symbolic(g: Any, value: Any, *arguments: Any) -> Any:
        dims, correction, keepdim = arguments if len(arguments) == 3 else (None, *arguments, None)
        made = reduction(g, value, dims, keepdim)
        op = made.op
        mean = made("ReduceMean", made.value)
        distance = op("Sub", made.value, mean)
        squares = made("ReduceSum", op("Mul", distance, distance))
        less = 1.0 if torch_exporter.is_none(correction) else float(parsed(correction, "f"))
        variance = op("Div", squares, op("Max", op("Sub", made.count(), less), 0))
        moments = {"mean": mean, "var": variance, "std": op("Sqrt", variance)}
        results = tuple(made.result(moments[kind]) for kind in kinds)
        return results if len(results) > 1 else results[0]

    return symbolic


def count_nonzero(g: Any, value: Any, dims: Any = None) -> Any:
    """``torch.count_nonzero``."""
    made = reduction(g, value, dims, None, dtype_of(value))
    found = made.value
    if made.op.dtype != torch.bool:
        found = made.op("Not", made.op("Equal", found, 0))
    return made.result(made("ReduceSum", made.op.cast(found, torch.int64)))


def nansum(g: Any, value: Any, dims: Any, keepdim: Any, dtype: Any) -> Any:
    """``torch.nansum``: the sum of what is not NaN."""
    made = reduction(g, value, dims, keepdim)
    op = made.op
    numbers = op.where(op("IsNaN", made.value), op.number(0), made.value)
    return made.result(made("ReduceSum", numbers))


def _norm(made: Reduction, p: float) -> Any:
    """Return the ``p``-norm along dimensions."""
    op = made.op
    size = op("Abs", made.value)
    if p == 2:
        return made.result(op("Sqrt", made("ReduceSum", op("Mul", size, size))))
    if math.isinf(p):
        return made.result(made("ReduceMax" if p > 0 else "ReduceMin", size))
    if p == 0:
        return made.result(made("ReduceSum", op.cast(op("Not", op("Equal", size, 0)))))
    if p == 1:
        return made.result(made("ReduceSum", size))
    return made.result(op("Pow", made("ReduceSum", op("Pow", size, p)), 1 / p))


def norm(g: Any, value: Any, p: Any, *arguments: Any) -> Any:
    """``torch.norm``: of all elements, or of those along dimensions."""
    dims, keepdim = arguments[:2] if len(arguments) > 1 else (None, None)
    order = 2.0 if torch_exporter.is_none(p) else float(parsed(p, "f"))
    return _norm(reduction(g, value, dims, keepdim), order)


def frobenius_norm(g: Any, value: Any, dims: Any = None, keepdim: Any = None) -> Any:
    """``torch.norm`` of "fro": the root of the sum of squares."""
    return _norm(reduction(g, value, dims, keepdim), 2.0)


def linalg_norm(g: Any, value: Any, order: Any, dims: Any, keepdim: Any, dtype: Any) -> Any:
    """``torch.linalg.norm`` of vectors, or of all elements without an order."""
    made = reduction(g, value, dims, keepdim)
    if torch_exporter.is_none(order):
        return _norm(made, 2.0)
    if len(made.axes) != 1:
        return NotImplemented
    return _norm(made, float(parsed(order, "f")))


def trace(g: Any, value: Any) -> Any:
    """``torch.trace``: the sum of the diagonal of a matrix."""
    made = reduction(g, value, None, None)
    op = made.op
    diagonal = op.diagonal(op.shape(made.value))
    return made.result(made("ReduceSum", op.where(diagonal, made.value, op.number(0))))


def logsumexp(g: Any, value: Any, dims: Any, keepdim: Any) -> Any:
    """``torch.logsumexp``, also of integers."""
    made = reduction(g, value, dims, keepdim)
    return made.result(made("ReduceLogSumExp", made.value))


REDUCTIONS: dict[str, Symbolic] = {
    "aten::any": _truth_of(every=False),
    "aten::all": _truth_of(every=True),
    "aten::std": _moments(("std",)),
    "aten::var": _moments(("var",)),
    "aten::std_mean": _moments(("std", "mean")),
    "aten::var_mean": _moments(("var", "mean")),
    "aten::count_nonzero": count_nonzero,
    "aten::logsumexp": logsumexp,
    "aten::nansum": nansum,
    "aten::norm": norm,
    "aten::frobenius_norm": frobenius_norm,
    "aten::linalg_norm": linalg_norm,
    "aten::linalg_vector_norm": norm,
    "aten::trace": trace,
}
"""Operators of this file."""
