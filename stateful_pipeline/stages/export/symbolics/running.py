"""Operators that gather up what comes before each element of a dimension.

A row of all elements stands beside each of them, and those that come later are blanked out: the
work grows with the square of the length, and nothing depends on a length that is known.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.whole import (
    Lanes,
    Whole,
    counting,
    dtype_given,
    is_real,
    largest,
    positions,
    smallest,
)
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, computing_dtype


class _Rows:
    """For each element, the row of its lane; ``before`` says what is not later than it."""

    def __init__(self, op: Writer, x: Any, dim: int) -> None:
        self.op = op
        self.lanes = Lanes.of(op, x, dim)
        self.value = op("Unsqueeze", self.lanes.last(op), op.ints(-2))
        self.places = positions(op, self.lanes.length(op))
        self.before = op("LessOrEqual", self.places, op("Unsqueeze", self.places, op.ints(-1)))

    def kept(self, value: Any, blank: float) -> Any:
        """Return rows with ``blank`` in the place of what is later."""
        return self.op.where(self.before, value, self.op.number(blank))

    def result(self, value: Any) -> Any:
        """Return the result of each row where its element was."""
        return self.lanes.all(self.op, self.lanes.back(self.op, value))


def _extreme(kind: str, x_op: Writer, x: Any, dim: int) -> Any:
    """Return the greatest or least number so far, and the last index of it; NaN is above all."""
    op = counting(x_op)
    rows = _Rows(op, x, dim)
    blank = smallest(op.dtype) if kind == "ReduceMax" else largest(op.dtype)
    last, long = op.ints(-1), op.of(torch.int64)
    value = rows.value
    if is_real(op):
        value = op.where(op("IsNaN", value), op.number(blank), value)
    found = op(kind, rows.kept(value, blank), last, keepdims_i=1)
    hit = op("And", rows.before, op("Equal", rows.value, found))
    if is_real(op):
        nan = op("And", rows.before, op("IsNaN", rows.value))
        some = op("ReduceMax", op.cast(nan, torch.int32), last, keepdims_i=1)
        some = op.cast(some, torch.bool)
        hit = op.either(nan, op("And", op("Not", some), hit))
        found = op.where(some, op.number(math.nan), found)
    places = long("ReduceMax", long.where(hit, rows.places, long.number(-1)), last, keepdims_i=0)
    values = op.cast(op("Squeeze", found, last), x_op.result)
    return rows.result(values), rows.result(places)


def cummax(op: Writer, x: Any, dim: int) -> Any:
    """``torch.cummax``."""
    return _extreme("ReduceMax", op, x, dim)


def cummin(op: Writer, x: Any, dim: int) -> Any:
    """``torch.cummin``."""
    return _extreme("ReduceMin", op, x, dim)


def cumprod(op: Writer, x: Any, dim: int, dtype: Any = None) -> Any:
    """``torch.cumprod``; integers and truth values are multiplied in int64."""
    result = dtype_given(dtype) or (op.result if is_real(op) else torch.int64)
    wide = op.of(computing_dtype(result) if result.is_floating_point else torch.int64)
    rows = _Rows(wide, x, dim)
    product = wide("ReduceProd", rows.kept(rows.value, 1), op.ints(-1), keepdims_i=0)
    return op.cast(rows.result(product), result)


def logcumsumexp(op: Writer, x: Any, dim: int) -> Any:
    """``torch.logcumsumexp``."""
    rows = _Rows(op, x, dim)
    kept = rows.kept(rows.value, -math.inf)
    return op.cast(rows.result(op("ReduceLogSumExp", kept, op.ints(-1), keepdims_i=0)), op.result)


RUNNING: dict[str, Symbolic] = {
    "aten::cummax": Whole(cummax),
    "aten::cummin": Whole(cummin),
    "aten::cumprod": Whole(cumprod),
    "aten::logcumsumexp": Whole(logcumsumexp),
}
"""Operators of this file."""
