"""Integrals, histograms, and other sums and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.distances import norm
from stateful_pipeline.stages.export.symbolics.whole import (
    Whole,
    counting,
    dtype_given,
    is_real,
    piece,
)
from stateful_pipeline.stages.export.symbolics.writing import (
    Symbolic,
    Writer,
    computing_dtype,
    dtype_of,
    rank_of,
)


def _areas(op: Writer, y: Any, rest: tuple[Any, ...]) -> tuple[Writer, Any, int]:
    """Return what writes the areas between neighbours, these areas, and their dimension.

    The rest of the arguments is the places ``(x, dim)``, or the distance ``(dx, dim)``.
    """
    step, dim = rest
    if not is_real(op):
        raise RuntimeError("only the trapezoids of floating-point numbers have a form")
    rank = rank_of(y)
    axis = dim % rank
    y = op.cast(y)
    total = op("Add", piece(op, y, axis, 1), piece(op, y, axis, 0, -1))
    if isinstance(step, int | float):
        return op, op("Mul", total, step / 2), axis
    x, own = op.cast(step), rank_of(step)
    if own == 1:
        column = [1] * rank
        column[axis] = -1
        x, own = op("Reshape", x, op.ints(*column)), rank
    along = axis - rank + own
    width = op("Sub", piece(op, x, along, 1), piece(op, x, along, 0, -1))
    return op, op("Div", op("Mul", total, width), 2), axis


def trapezoid(op: Writer, y: Any, *rest: Any) -> Any:
    """``torch.trapezoid``: the area under lines from point to point."""
    op, areas, axis = _areas(op, y, rest)
    return op.cast(op("ReduceSum", areas, op.ints(axis), keepdims_i=0), op.result)


def cumulative_trapezoid(op: Writer, y: Any, *rest: Any) -> Any:
    """``torch.cumulative_trapezoid``: the area up to each point but the first."""
    op, areas, axis = _areas(op, y, rest)
    return op.cast(op("CumSum", areas, op.ints(axis)), op.result)


def nanmean(op: Writer, x: Any, dims: Any = None, keeps: bool = False, dtype: Any = None) -> Any:
    """``torch.nanmean``: the mean of what is not NaN, and NaN where nothing is left."""
    result = dtype_given(dtype) or op.result
    op = op.of(computing_dtype(result))
    rank = rank_of(x)
    axes = [dim % rank for dim in dims or range(rank)]
    x = op.cast(x)
    if not axes:
        return op.cast(x, result)
    there = op("Not", op("IsNaN", x))
    kept = op.where(there, x, op.number(0))
    total = op("ReduceSum", kept, op.ints(*axes), keepdims_i=int(keeps))
    count = op("ReduceSum", op.cast(there), op.ints(*axes), keepdims_i=int(keeps))
    return op.cast(op("Div", total, count), result)


def renorm(op: Writer, x: Any, p: float, dim: int, most: float) -> Any:
    """``torch.renorm``: parts along a dimension whose ``p``-norm is too large are scaled down."""
    rank = rank_of(x)
    axis = dim % rank
    x = op.cast(x)
    size = norm(op, x, float(p), [d for d in range(rank) if d != axis], keeps=True)
    factor = op("Div", most, op("Add", size, 1e-7))
    return op.cast(op.where(op("Greater", size, most), op("Mul", x, factor), x), op.result)


def histc(op: Writer, x: Any, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """``torch.histc``: how many numbers are in each of equal bins; the last has its end.

    The bins go from the least number to the greatest where no others are given.
    """
    x = op("Reshape", op.cast(x), op.ints(-1))
    if low == high:
        first = op("ReduceMin", x, op.ints(0), keepdims_i=1)
        last = op("ReduceMax", x, op.ints(0), keepdims_i=1)
        more = op.cast(op("Equal", first, last))
        first, last = op("Sub", first, more), op("Add", last, more)
    else:
        first, last = op.number(low), op.number(high)
    inside = op("And", op("GreaterOrEqual", x, first), op("LessOrEqual", x, last))
    share = op("Div", op("Sub", x, first), op("Sub", last, first))
    place = op("Min", op("Floor", op("Mul", share, bins)), bins - 1)
    place = op.where(inside, place, op.number(-1))
    numbers = op("Constant", value_t=torch.arange(bins, dtype=op.dtype))
    hit = op("Equal", op("Unsqueeze", place, op.ints(-1)), numbers)
    return op.cast(op("ReduceSum", op.cast(hit), op.ints(0), keepdims_i=0), op.result)


def bincount(op: Writer, x: Any, weights: Any = None, least: int = 0) -> Any:
    """``torch.bincount``: how often each number from 0 on is there, or the sum of its weights."""
    long = op.of(torch.int64)
    x = long.cast(x)
    top = long("ReduceMax", long("Concat", x, op.ints(least - 1), axis_i=0), op.ints(0))
    size = long("Add", op("Reshape", top, op.ints(1)), 1)
    if weights is None:
        to, added = long, op("Expand", long.number(1), op.shape(x))
    else:
        to = op.of(torch.float32 if dtype_of(weights) == torch.float32 else torch.float64)
        added = to.cast(weights)
    zeros = op("Expand", to.number(0), size)
    return to("ScatterElements", zeros, x, added, axis_i=0, reduction_s="add")


def _extreme_of_all(kind: str) -> Callable[..., Any]:
    """Make ``amax`` or ``amin`` of all elements; that along dimensions is the exporter's."""

    def form(op: Writer, x: Any, dims: Any = None, keeps: bool = False) -> Any:
        if dims:
            return NotImplemented
        return _extreme(op, kind, x, keeps)

    return form


def _extreme(op: Writer, kind: str, x: Any, keeps: bool, *axes: Any) -> Any:
    """Return the greatest or the least number, or NaN: that engines may pass over."""
    wide = counting(op)
    value = wide.cast(x)
    found = wide(kind, value, *axes, keepdims_i=int(keeps))
    if is_real(wide):
        nan = op.cast(op("IsNaN", value), torch.int32)
        some = op.cast(op("ReduceMax", nan, *axes, keepdims_i=int(keeps)), torch.bool)
        found = wide.where(some, wide.number(float("nan")), found)
    return op.cast(found, op.result)


def aminmax(op: Writer, x: Any, dim: int | None = None, keeps: bool = False) -> Any:
    """``torch.aminmax``: the least and the greatest number."""
    axes = [] if dim is None or rank_of(x) == 0 else [op.ints(dim)]
    return tuple(_extreme(op, kind, x, keeps, *axes) for kind in ("ReduceMin", "ReduceMax"))


def isin(op: Writer, x: Any, among: Any, unique: bool = False, inverted: bool = False) -> Any:
    """``torch.isin``: which elements are among others."""
    if isinstance(among, int | float):
        found = op("Equal", op.cast(x), among)
    else:
        column = op("Unsqueeze", op.cast(x), op.ints(-1))
        hit = op("Equal", column, op("Reshape", op.cast(among), op.ints(-1)))
        count = op("ReduceSum", op.cast(hit, torch.int32), op.ints(-1), keepdims_i=0)
        found = op.cast(count, torch.bool)
    return op("Not", found) if inverted else found


def fake_quantize(op: Writer, x: Any, scale: Any, zero_point: Any, least: int, most: int) -> Any:
    """``fake_quantize_per_tensor_affine`` to ranges that are not those of ONNX's operators."""
    if (least, most) in ((0, 255), (-128, 127), (0, 127)) or not isinstance(scale, float):
        return NotImplemented
    inverse = 1 / torch.tensor(scale, dtype=torch.float32)
    places = op("Add", op("Round", op("Mul", op.cast(x), float(inverse))), float(zero_point))
    held = op("Min", op("Max", places, float(least)), float(most))
    return op.cast(op("Mul", op("Sub", held, float(zero_point)), scale), op.result)


SUMS: dict[str, Symbolic] = {
    "aten::trapezoid": Whole(trapezoid),
    "aten::cumulative_trapezoid": Whole(cumulative_trapezoid),
    "aten::nanmean": Whole(nanmean),
    "aten::renorm": Whole(renorm),
    "aten::amax": Whole(_extreme_of_all("ReduceMax")),
    "aten::amin": Whole(_extreme_of_all("ReduceMin")),
    "aten::aminmax": Whole(aminmax),
    "aten::histc": Whole(histc),
    "aten::bincount": Whole(bincount),
    "aten::isin": Whole(isin),
    "aten::fake_quantize_per_tensor_affine": Whole(fake_quantize),
}
"""Operators of this file."""
