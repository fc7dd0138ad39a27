"""Operators that sort: medians, quantiles, and places in what is sorted.

NaN is the greatest number to PyTorch, and equal numbers stay in their order.  ``TopK`` keeps that
order, but does not know what to do with NaN: it gets the numbers with infinity in the place of NaN,
and those that are NaN behind all others from the start.

Which of several equal numbers ``median`` and ``kthvalue`` name by its index, PyTorch leaves open;
here it is the one that a sort that keeps the order puts there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.pairs import lerp
from stateful_pipeline.stages.export.symbolics.whole import (
    Lanes,
    Whole,
    counting,
    is_real,
    largest,
    piece,
    positions,
)
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, dtype_of, rank_of


def _top(op: Writer, value: Any, count: Any, axis: int, down: bool = False) -> tuple[Any, Any]:
    """Return the least or greatest numbers along an axis in their order, and their indices."""
    values, places = op(
        "TopK", value, count, axis_i=axis, largest_i=int(down), sorted_i=1, outputs=2
    )
    return values, places


def _ordered(op: Writer, lanes: Lanes, down: bool = False) -> tuple[Any, Any]:
    """Return the numbers of each lane in their order, and the index of each."""
    value, axis, count = lanes.value, lanes.axis, lanes.length(op)
    if not is_real(op):
        return _top(op, value, count, axis, down)
    nan = op("IsNaN", value)
    clean = op.where(nan, op.number(math.inf), value)
    _, parted = _top(op, op.cast(nan, torch.int32), count, axis, down)
    _, again = _top(op, op("GatherElements", clean, parted, axis_i=axis), count, axis, down)
    places = op("GatherElements", parted, again, axis_i=axis)
    return op("GatherElements", value, places, axis_i=axis), places


def sort(op: Writer, x: Any, *rest: Any) -> Any:
    """``torch.sort``, given ``(dim, descending)`` or ``(stable, dim, descending)``."""
    dim, down = rest[-2:]
    wide = counting(op)
    lanes = Lanes.of(wide, x, dim if rank_of(x) else None)
    values, places = _ordered(wide, lanes, bool(down))
    return op.cast(lanes.all(op, values), op.result), lanes.all(op, places)


def argsort(op: Writer, x: Any, *rest: Any) -> Any:
    """``torch.argsort``: equal numbers stay in their order, whether that is asked for or not."""
    return sort(op, x, *rest)[1]


def msort(op: Writer, x: Any) -> Any:
    """``torch.msort``: along the first dimension."""
    return sort(op, x, 0, False)[0]


def median(op: Writer, x: Any, dim: int | None = None, keeps: bool = False) -> Any:
    """``torch.median``: the lower of two in the middle; NaN where there is one."""
    wide = counting(op)
    lanes = Lanes.of(wide, x, dim)
    half = wide.of(torch.int64)("Div", wide.of(torch.int64)("Add", lanes.length(op), 1), 2)
    value, nan = lanes.value, None
    if is_real(wide):
        nan = wide("IsNaN", value)
        value = wide.where(nan, wide.number(math.inf), value)
    found = [piece(op, v, lanes.axis, -1) for v in _top(wide, value, half, lanes.axis)]
    if nan is not None:
        counted = wide.cast(nan, torch.int32)
        axis = op.ints(lanes.axis)
        some = op.cast(op("ReduceMax", counted, axis, keepdims_i=1), torch.bool)
        first = op("ArgMax", counted, axis_i=lanes.axis, keepdims_i=1)
        found = [wide.where(some, wide.number(math.nan), found[0]), op.where(some, first, found[1])]
    return _results(op, lanes, found, dim, keeps)


def _results(op: Writer, lanes: Lanes, found: Any, dim: int | None, keeps: bool) -> Any:
    """Return values and indices, or the value alone where there is one of all elements."""
    values, places = (lanes.one(op, value, keeps) for value in found)
    values = op.cast(values, op.result)
    return values if dim is None else (values, places)


def nanmedian(op: Writer, x: Any, dim: int | None = None, keeps: bool = False) -> Any:
    """``torch.nanmedian``: the median of what is not NaN, and NaN where nothing is left."""
    if not is_real(op):
        return median(op, x, dim, keeps)
    lanes = Lanes.of(op, x, dim)
    ordered = _ordered(op, lanes)
    long = op.of(torch.int64)
    there = op("Not", op("IsNaN", lanes.value))
    count = long("ReduceSum", long.cast(there), op.ints(lanes.axis), keepdims_i=1)
    at = long("Div", long("Max", long("Sub", count, 1), 0), 2)
    found = [op("GatherElements", v, at, axis_i=lanes.axis) for v in ordered]
    return _results(op, lanes, found, dim, keeps)


def kthvalue(op: Writer, x: Any, k: int, dim: int = -1, keeps: bool = False) -> Any:
    """``torch.kthvalue``: the number that ``k - 1`` others come before."""
    wide = counting(op)
    lanes = Lanes.of(wide, x, dim)
    found = [piece(op, v, lanes.axis, k - 1, k) for v in _ordered(wide, lanes)]
    return _results(op, lanes, found, dim, keeps)


def mode(op: Writer, x: Any, dim: int = -1, keeps: bool = False) -> Any:
    """``torch.mode``: the least of the most frequent numbers, and the last index of it."""
    wide = counting(op)
    lanes = Lanes.of(wide, x, dim)
    value, count = lanes.last(op), lanes.length(op)
    same = op("Equal", op("Unsqueeze", value, op.ints(-1)), op("Unsqueeze", value, op.ints(-2)))
    often = op("ReduceSum", op.cast(same, torch.int32), op.ints(-1), keepdims_i=0)
    most = op("Equal", often, op("ReduceMax", often, op.ints(-1), keepdims_i=1))
    candidates = wide.where(most, value, wide.number(largest(wide.dtype)))
    least = wide("ReduceMin", candidates, op.ints(-1), keepdims_i=1)
    long = op.of(torch.int64)
    there = long.where(op("Equal", value, least), positions(op, count), long.number(-1))
    last = long("ReduceMax", there, op.ints(-1), keepdims_i=1)
    return _results(op, lanes, [lanes.back(op, v) for v in (least, last)], dim, keeps)


def quantile(
    op: Writer,
    x: Any,
    q: Any,
    dim: int | None = None,
    keeps: bool = False,
    interpolation: str = "linear",
    *,
    skips: bool = False,
) -> Any:
    """``torch.quantile``, of one share or of a vector of them, whose dimension comes first."""
    lanes = Lanes.of(op, x, dim)
    value = lanes.last(op)
    nan = op.cast(op("IsNaN", value))
    missing = op("ReduceSum", nan, op.ints(-1), keepdims_i=1)
    last = Lanes(value, lanes.rank - 1, lanes.rank, flat=False)
    ordered, _ = _ordered(op, last)
    count = op.cast(last.length(op))
    if skips:
        count = op("Max", op("Sub", count, missing), 1)
    shares = op.number(q) if isinstance(q, int | float) else op.cast(q)
    ranks = op("Mul", op("Reshape", shares, op.ints(-1)), op("Sub", count, 1))
    found = _between(op, ordered, ranks, interpolation)
    if not skips:
        found = op.where(op("Greater", missing, 0), op.number(math.nan), found)
    found = op.cast(found, op.result)
    found = op("Transpose", found, perm_i=[lanes.rank - 1, *range(lanes.rank - 1)])
    several = not isinstance(q, int | float) and rank_of(q) == 1
    if keeps and rank_of(x):
        ones = range(1, rank_of(x) + 1) if dim is None else [lanes.axis + 1]
        found = op("Unsqueeze", found, op.ints(*ones))
    return found if several else op("Squeeze", found, op.ints(0))


def _between(op: Writer, ordered: Any, ranks: Any, interpolation: str) -> Any:
    """Return the numbers at ``ranks``, which need not be whole, along the last dimension."""
    one_each = op.shape(piece(op, ordered, -1, 0, 1))

    def at(places: Any) -> Any:
        index = op("Expand", op.cast(places, torch.int64), one_each)
        return op("GatherElements", ordered, index, axis_i=-1)

    if interpolation in ("lower", "higher", "nearest"):
        kinds = {"lower": "Floor", "higher": "Ceil", "nearest": "Round"}
        return at(op(kinds[interpolation], ranks))
    low = op("Floor", ranks)
    share = op.number(0.5) if interpolation == "midpoint" else op("Sub", ranks, low)
    return lerp(op, at(low), at(op("Ceil", ranks)), share)


def nanquantile(op: Writer, *arguments: Any) -> Any:
    """``torch.nanquantile``: of what is not NaN."""
    return quantile(op, *arguments, skips=True)


def searchsorted(
    op: Writer,
    sequence: Any,
    values: Any,
    short: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """``torch.searchsorted``: how many numbers of a sorted sequence come before each value."""
    wide = counting(op.of(_common(op.dtype, values)))
    rank = rank_of(sequence)
    sequence, values = wide.cast(sequence), wide.cast(values)
    if sorter is not None:
        sequence = op("GatherElements", sequence, sorter, axis_i=-1)
    if rank > 1:
        sequence = op("Unsqueeze", sequence, op.ints(-2))
    values = op("Unsqueeze", values, op.ints(-1))
    after = "Greater" if right or side == "right" else "GreaterOrEqual"
    before = op.cast(op("Not", wide(after, sequence, values)), torch.int64)
    return op.cast(
        op("ReduceSum", before, op.ints(-1), keepdims_i=0), torch.int32 if short else torch.int64
    )


def _common(dtype: torch.dtype, values: Any) -> torch.dtype:
    """Return the dtype in which a sequence of a dtype is compared with values, or a number."""
    if isinstance(values, int | float):
        return torch.float64 if isinstance(values, float) and not dtype.is_floating_point else dtype
    return torch.promote_types(dtype, dtype_of(values) or dtype)


ORDER: dict[str, Symbolic] = {
    "aten::sort": Whole(sort),
    "aten::argsort": Whole(argsort),
    "aten::msort": Whole(msort),
    "aten::median": Whole(median),
    "aten::nanmedian": Whole(nanmedian),
    "aten::kthvalue": Whole(kthvalue),
    "aten::mode": Whole(mode),
    "aten::quantile": Whole(quantile),
    "aten::nanquantile": Whole(nanquantile),
    "aten::searchsorted": Whole(searchsorted),
}
"""Operators of this file."""
