"""Operators that put tensors together, or take differences of what lies side by side."""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.views import diagonal
from stateful_pipeline.stages.export.symbolics.writing import (
    END,
    Symbolic,
    Writer,
    computing_dtype,
    parsed,
    rank_of,
    result_dtype,
)


def diff(g: Any, value: Any, times: Any, dim: Any, prepend: Any = None, append: Any = None) -> Any:
    """``torch.diff``: differences of neighbours along a dimension."""
    op = Writer(g, result_dtype(g) or torch.float32)
    axis = parsed(dim, "i") % rank_of(value)
    parts = [part for part in (prepend, value, append) if not torch_exporter.is_none(part)]
    if len(parts) > 1:
        value = op("Concat", *(op.cast(part) for part in parts), axis_i=axis)
    minus = "Xor" if op.dtype == torch.bool else "Sub"
    along = op.ints(axis)
    for _ in range(parsed(times, "i")):
        later = op("Slice", value, op.ints(1), op.ints(END), along)
        value = op(minus, later, op("Slice", value, op.ints(0), op.ints(-1), along))
    return value


def cumsum(g: Any, value: Any, dim: Any, dtype: Any = None) -> Any:
    """``torch.cumsum``; integers and truth values are summed in int64."""
    result = result_dtype(g)
    if result is None:
        return NotImplemented
    wide = computing_dtype(result) if result.is_floating_point else torch.int64
    op = Writer(g, wide, result)
    value = op.cast(value)
    if rank_of(value):
        value = op("CumSum", value, op.ints(parsed(dim, "i") % rank_of(value)))
    return op.cast(value, result)


def diag(g: Any, value: Any, offset: Any) -> Any:
    """``torch.diag``: the matrix that has a vector on a diagonal, or the diagonal of a matrix."""
    op = Writer(g, result_dtype(g) or torch.float32)
    if rank_of(value) == 2:
        return diagonal(g, value, offset, 0, 1)
    shift = parsed(offset, "i")
    padded = op("Pad", value, op.ints(0, abs(shift)))
    size = op.shape(padded)
    square = op("Concat", size, size, axis_i=0)
    line = op("Unsqueeze", padded, op.ints(1 if shift > 0 else 0))
    spread = op("Expand", line, square)
    return op.where(op.diagonal(square, shift), spread, op.number(0))


def hstack(g: Any, tensors: Any) -> Any:
    """``torch.hstack``: along the second dimension, or the only one."""
    op = Writer(g, result_dtype(g) or torch.float32)
    parts = []
    for tensor in torch_exporter.items(tensors):
        flat = rank_of(tensor) == 0
        part = op.cast(tensor)
        parts.append(op("Unsqueeze", part, op.ints(0)) if flat else part)
    return op("Concat", *parts, axis_i=min(1, rank_of(parts[0]) - 1))


SHAPES: dict[str, Symbolic] = {
    "aten::diff": diff,
    "aten::cumsum": cumsum,
    "aten::diag": diag,
    "aten::hstack": hstack,
}
"""Operators of this file."""
