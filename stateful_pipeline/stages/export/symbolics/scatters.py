"""Writing to places that an index names: ``scatter``, ``index_add`` and the like.

``ScatterElements`` takes an index of the shape of what is written.  With a reduction, what goes to
one place is added up, or multiplied, or the largest or smallest is taken.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import (
    Symbolic,
    Writer,
    dtype_of,
    lifted,
    parsed,
    rank_of,
    result_dtype,
)

_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
"""ONNX's names of PyTorch's reductions."""


def _scattered(op: Writer, base: Any, index: Any, source: Any, axis: int, kind: str = "") -> Any:
    reduction = {"reduction_s": kind} if kind else {}
    return op("ScatterElements", base, index, source, axis_i=axis, **reduction)


def _along(op: Writer, base: Any, dim: Any, index: Any, *, one: bool = False) -> tuple[Any, ...]:
    """Return ``base`` and an index of its rank, the axis, and whether ``base`` was 0-d.

    Args:
        op: Writes on the dtype of ``base``.
        base: The tensor that is written to.
        dim: The dimension that ``index`` counts along.
        index: Where to write.
        one: Whether ``index`` is a vector, of positions of all that lies along the others.
    """
    flat = rank_of(base) == 0
    base, index = lifted(op, base), lifted(op, op.cast(index, torch.int64))
    rank = rank_of(base) or 1
    axis = parsed(dim, "i") % rank
    if one:
        column = [1] * rank
        column[axis] = -1
        index = op("Reshape", index, op.ints(*column))
        sizes = op.shape(base)
        count = op.shape(index, [axis])
        parts = [op("Slice", sizes, op.ints(0), op.ints(axis), op.ints(0)), count]
        parts.append(op("Slice", sizes, op.ints(axis + 1), op.ints(rank), op.ints(0)))
        index = op("Expand", index, op("Concat", *parts, axis_i=0))
    return base, index, axis, flat


def _writer(g: Any, base: Any) -> Writer:
    return Writer(g, result_dtype(g) or dtype_of(base) or torch.float32)


def _done(op: Writer, value: Any, flat: bool) -> Any:
    return op("Squeeze", value, op.ints(0)) if flat else value


def scatter(g: Any, base: Any, dim: Any, index: Any, source: Any, reduce: Any = None) -> Any:
    """``torch.scatter`` of a number, or of as much of a tensor as there are indices."""
    op = _writer(g, base)
    base, index, axis, flat = _along(op, base, dim, index)
    kind = "" if reduce is None else _REDUCTIONS[parsed(reduce, "s")]
    source = _sized(op, source, index)
    return _done(op, _scattered(op, base, index, source, axis, kind), flat)


def _sized(op: Writer, source: Any, index: Any) -> Any:
    """Return ``source`` in the shape of ``index``: its first elements, or the number spread."""
    sizes, source = op.shape(index), op.cast(source)
    rank = rank_of(source)
    if rank == 0:
        return op("Expand", source, sizes)
    return op("Slice", source, op.ints(*[0] * rank), sizes, op.ints(*range(rank)))


def scatter_add(g: Any, base: Any, dim: Any, index: Any, source: Any) -> Any:
    """``torch.scatter_add``."""
    op = _writer(g, base)
    base, index, axis, flat = _along(op, base, dim, index)
    added = _scattered(op, base, index, _sized(op, source, index), axis, "add")
    return _done(op, added, flat)


def scatter_reduce(
    g: Any, base: Any, dim: Any, index: Any, source: Any, reduce: Any, include: Any
) -> Any:
    """``torch.scatter_reduce``, which may leave out what was in the places before."""
    op = _writer(g, base)
    base, index, axis, flat = _along(op, base, dim, index)
    name, included = parsed(reduce, "s"), parsed(include, "b")
    source = _sized(op, source, index)
    sizes = op.shape(index)
    first = base
    if not included:
        nothing = op("Expand", op.number(_neutral(name, op.dtype)), sizes)
        first = _scattered(op, base, index, nothing, axis)
    result = _scattered(op, first, index, source, axis, _REDUCTIONS[name])
    if name == "mean":
        ones = op("Expand", op.number(1), sizes)
        counts = op("Expand", op.number(int(included)), op.shape(base))
        counts = _scattered(op, counts, index, ones, axis, "add")
        result = _quotient(op, result, op("Max", counts, 1))
    return _done(op, result, flat)


def _neutral(name: str, dtype: torch.dtype) -> float:
    """Return the number that changes nothing in a reduction."""
    if name == "prod":
        return 1
    if name not in ("amax", "amin"):
        return 0
    if dtype.is_floating_point:
        return -math.inf if name == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if name == "amax" else limits.max


def _quotient(op: Writer, total: Any, count: Any) -> Any:
    if op.dtype.is_floating_point:
        return op("Div", total, count)
    rest = op("Mod", total, count)
    return op("Div", op("Sub", total, rest), count)


def index_add(g: Any, base: Any, dim: Any, index: Any, source: Any, alpha: Any = None) -> Any:
    """``torch.index_add``, also of an index that names a place twice."""
    op = _writer(g, base)
    base, index, axis, flat = _along(op, base, dim, index, one=True)
    source = lifted(op, op.cast(source))
    if alpha is not None and not torch_exporter.is_none(alpha):
        source = op("Mul", source, op.cast(alpha))
    source = op("Reshape", source, op.shape(index))
    return _done(op, _scattered(op, base, index, source, axis, "add"), flat)


def index_fill(g: Any, base: Any, dim: Any, index: Any, value: Any) -> Any:
    """``torch.index_fill``."""
    op = _writer(g, base)
    base, index, axis, flat = _along(op, base, dim, index, one=True)
    filled = op("Expand", op.cast(value), op.shape(index))
    return _done(op, _scattered(op, base, index, filled, axis), flat)


SCATTERS: dict[str, Symbolic] = {
    "aten::scatter": scatter,
    "aten::scatter_add": scatter_add,
    "aten::scatter_reduce": scatter_reduce,
    "aten::index_add": index_add,
    "aten::index_fill": index_fill,
}
"""Operators of this file."""
