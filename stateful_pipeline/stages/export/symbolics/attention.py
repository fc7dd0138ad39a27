"""Attention with a mask: a query that may see nothing gets zeros, where a softmax gives NaN."""

from __future__ import annotations

import math
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.whole import Whole, positions, size_of
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, dtype_of, rank_of


def attention(
    op: Writer,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Any:
    """``scaled_dot_product_attention`` with a mask, or with fewer heads of keys and values.

    The exporters' forms are right for all else.
    """
    if mask is None and not grouped:
        return NotImplemented
    size = size_of(query, -1)
    if scale is None and size is None:
        raise RuntimeError("the size of the heads varies: only fixed sizes have a form")
    factor = math.sqrt(1 / math.sqrt(size or 1) if scale is None else scale)
    rank = rank_of(key)
    query, key, value = op.cast(query), op.cast(key), op.cast(value)
    if grouped:
        key, value = (_repeated(op, heads, query, rank) for heads in (key, value))
    turned = op("Transpose", key, perm_i=[*range(rank - 2), rank - 1, rank - 2])
    scores = op("MatMul", op("Mul", query, factor), op("Mul", turned, factor))
    unseen = None
    if causal:
        mask = _not_later(op, query, key)
    if mask is not None:
        scores, unseen = _masked(op, scores, mask, causal)
    weights = op("Softmax", scores, axis_i=-1)
    if unseen is not None:
        weights = op.where(unseen, op.number(0), weights)
    return op.cast(op("MatMul", weights, value), op.result)


def _repeated(op: Writer, heads: Any, query: Any, rank: int) -> Any:
    """Return as many heads as ``query`` has, each of the given ones several times."""
    sizes = op.shape(heads)
    count, wanted = op.shape(heads, [rank - 3]), op.shape(query, [rank - 3])
    first = op("Slice", sizes, op.ints(0), op.ints(rank - 3), op.ints(0))
    last = op("Slice", sizes, op.ints(rank - 2), op.ints(rank), op.ints(0))
    times = op.of(torch.int64)("Div", wanted, count)
    spread = op(
        "Expand",
        op("Unsqueeze", heads, op.ints(rank - 2)),
        op("Concat", first, count, times, last, axis_i=0),
    )
    return op("Reshape", spread, op("Concat", first, wanted, last, axis_i=0))


def _not_later(op: Writer, query: Any, key: Any) -> Any:
    """Return which keys each query may see: no later ones, counted from the first."""
    rows, columns = (positions(op, op.shape(value, [-2])) for value in (query, key))
    return op("LessOrEqual", columns, op("Unsqueeze", rows, op.ints(-1)))


def _masked(op: Writer, scores: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """Return scores that are -infinity where nothing may be seen, and which rows are so."""
    if causal or dtype_of(mask) == torch.bool:
        seen = op("ReduceMax", op.cast(mask, torch.int32), op.ints(-1), keepdims_i=1)
        return op.where(mask, scores, op.number(-math.inf)), op("Equal", seen, _zero(op))
    added = op.cast(mask)
    most = op("ReduceMax", added, op.ints(-1), keepdims_i=1)
    return op("Add", scores, added), op("Equal", most, -math.inf)


def _zero(op: Writer) -> Any:
    return op.of(torch.int32).number(0)


ATTENTION: dict[str, Symbolic] = {"aten::scaled_dot_product_attention": Whole(attention)}
"""Operators of this file."""
