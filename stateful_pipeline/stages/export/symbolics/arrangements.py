"""Operators that put the elements of tensors in other places, or pick some of them."""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.matrices import swapped
from stateful_pipeline.stages.export.symbolics.whole import Lanes, Whole, piece, positions, size_of
from stateful_pipeline.stages.export.symbolics.writing import END, Symbolic, Writer, rank_of


def flipped(op: Writer, value: Any, *axes: int) -> Any:
    """Return ``value`` with the order along ``axes`` turned round."""
    count = len(axes)
    bounds = (op.ints(*[-1] * count), op.ints(*[-END] * count), op.ints(*axes))
    return op("Slice", value, *bounds, op.ints(*[-1] * count))


def rot90(op: Writer, x: Any, times: int = 1, dims: list[int] | None = None) -> Any:
    """``torch.rot90``: a turn from the first of two dimensions towards the second."""
    rank = rank_of(x)
    first, second = (dim % rank for dim in (dims or [0, 1]))
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    if times % 4 == 0:
        return op("Identity", x)
    if times % 4 == 2:
        return flipped(op, x, first, second)
    turned = op("Transpose", x, perm_i=order)
    return flipped(op, turned, first if times % 4 == 1 else second)


def matrices_turned(op: Writer, x: Any) -> Any:
    """``x.mT``: matrices with rows for columns."""
    return swapped(op, x, rank_of(x))


def channel_shuffle(op: Writer, x: Any, groups: int) -> Any:
    """``F.channel_shuffle``: the first channel of each group, then the second of each."""
    rank = rank_of(x)
    parted = op("Concat", op.shape(x, [0]), op.ints(groups, -1), axis_i=0)
    others = [op.shape(x, list(range(2, rank)))] if rank > 2 else []
    value = op("Reshape", x, op("Concat", parted, *others, axis_i=0))
    value = op("Transpose", value, perm_i=[0, 2, 1, *range(3, rank + 1)])
    return op("Reshape", value, op.shape(x))


def take_along_dim(op: Writer, x: Any, index: Any, dim: int | None = None) -> Any:
    """``torch.take_along_dim``: both are broadcast along the other dimensions."""
    if dim is None:
        flat = op("Reshape", x, op.ints(-1))
        return op("GatherElements", flat, op("Reshape", index, op.ints(-1)), axis_i=0)
    rank = rank_of(x)
    axis = dim % rank
    one_x, one_index = op.shape(piece(op, x, axis, 0, 1)), op.shape(piece(op, index, axis, 0, 1))
    return op(
        "GatherElements",
        op("Expand", x, one_index),
        op("Expand", op.cast(index, torch.int64), one_x),
        axis_i=axis,
    )


def masked_select(op: Writer, x: Any, mask: Any) -> Any:
    """``torch.masked_select``: what is under a mask, in one row."""
    sizes = op.shape(op("Expand", mask, op.shape(x)))
    flat = [op("Reshape", op("Expand", v, sizes), op.ints(-1)) for v in (x, mask)]
    return op("Compress", *flat, axis_i=0)


def argwhere(op: Writer, x: Any) -> Any:
    """``torch.argwhere``: the indices of what is not 0, one row each."""
    if rank_of(x) == 0:
        return NotImplemented
    return op("Transpose", op("NonZero", x), perm_i=[1, 0])


def repeat_interleave(op: Writer, x: Any, *rest: Any) -> Any:
    """``torch.repeat_interleave`` of a tensor, each element as often as a vector says.

    Others have forms that are right.
    """
    if len(rest) != 3 or isinstance(rest[0], int):
        return NotImplemented
    repeats, dim, _ = rest
    long = op.of(torch.int64)
    lanes = Lanes.of(op.of(op.result), x, dim)
    times = op("Reshape", op.cast(repeats, torch.int64), op.ints(-1))
    times = op("Expand", times, lanes.length(op))
    ends = long("CumSum", times, op.ints(0))
    count = op("ReduceSum", times, op.ints(0), keepdims_i=1)
    column = op("Unsqueeze", positions(op, count), op.ints(-1))
    passed = op.cast(op("LessOrEqual", ends, column), torch.int64)
    index = op("ReduceSum", passed, op.ints(-1), keepdims_i=0)
    return op("Gather", lanes.value, index, axis_i=lanes.axis)


def copy(op: Writer, to: Any, source: Any, waits: bool = False) -> Any:
    """``torch.Tensor.copy_`` as a function: ``source`` in the shape and dtype of ``to``."""
    value = op.cast(source, op.result)
    if rank_of(to) == rank_of(source):
        sizes = [(size_of(to, dim), size_of(source, dim)) for dim in range(rank_of(to))]
        if all(wanted is not None and wanted == given for wanted, given in sizes):
            return op("Identity", value)
    return op("Expand", value, op.shape(to))


ARRANGEMENTS: dict[str, Symbolic] = {
    "aten::rot90": Whole(rot90),
    "aten::mT": Whole(matrices_turned),
    "aten::fliplr": Whole(lambda op, x: flipped(op, x, 1)),
    "aten::flipud": Whole(lambda op, x: flipped(op, x, 0)),
    "aten::channel_shuffle": Whole(channel_shuffle),
    "aten::take_along_dim": Whole(take_along_dim),
    "aten::masked_select": Whole(masked_select),
    "aten::argwhere": Whole(argwhere),
    "aten::repeat_interleave": Whole(repeat_interleave),
    "aten::copy": Whole(copy),
}
"""Operators of this file."""
