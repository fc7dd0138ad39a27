"""Writing to a part of a tensor, and views that the exporter lacks."""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import END, Symbolic, rank_of


def select_scatter(g: Any, base: Any, source: Any, dim: Any, index: Any) -> Any:
    """``base`` with ``source`` at ``index`` along ``dim``: one row of ``ScatterElements``."""
    axis = torch_exporter.argument(dim, "i")
    source = torch_exporter.unsqueezed(g, source, [axis])
    index = g.op("Reshape", index, g.op("Constant", value_t=torch.tensor([1] * rank_of(source))))
    index = g.op("Expand", index, g.op("Shape", source))
    return g.op("ScatterElements", base, index, source, axis_i=axis)


def slice_scatter(g: Any, base: Any, source: Any, dim: Any, start: Any, end: Any, step: Any) -> Any:
    """``base`` with ``source`` at a slice of ``dim``.

    The same slice of all positions along ``dim`` says where each row goes, so that bounds mean what
    they mean for ``Slice``: negative, beyond the end or empty.
    """
    axis = torch_exporter.argument(dim, "i")
    rank = rank_of(base)
    axis = axis % rank
    size = g.op("Gather", g.op("Shape", base), g.op("Constant", value_t=torch.tensor(axis)))
    zero, one = (g.op("Constant", value_t=torch.tensor(n)) for n in (0, 1))
    positions = g.op("Range", zero, size, one)
    starts = _vector(g, start, 0)
    ends = _vector(g, end, END)
    axes = g.op("Constant", value_t=torch.tensor([0]))
    positions = g.op("Slice", positions, starts, ends, axes, _vector(g, step, 1))
    column = [1] * rank
    column[axis] = -1
    index = g.op("Reshape", positions, g.op("Constant", value_t=torch.tensor(column)))
    index = g.op("Expand", index, g.op("Shape", source))
    return g.op("ScatterElements", base, index, source, axis_i=axis)


def _vector(g: Any, value: Any, default: int) -> Any:
    """Return a bound of a slice as a vector of one element."""
    if torch_exporter.is_none(value):
        return g.op("Constant", value_t=torch.tensor([default]))
    return g.op("Reshape", value, g.op("Constant", value_t=torch.tensor([1])))


def roll(g: Any, value: Any, shifts: Any, dims: Any) -> Any:
    """``torch.roll``; without ``dims`` it rolls the elements in their order."""
    by = torch_exporter.argument(shifts, "is")
    along = torch_exporter.argument(dims, "is")
    if along:
        result = value
        for shift, axis in zip(by, along, strict=True):
            result = _rolled(g, result, shift, axis)
        return result
    flat = g.op("Reshape", value, g.op("Constant", value_t=torch.tensor([-1])))
    return g.op("Reshape", _rolled(g, flat, by[0], 0), g.op("Shape", value))


def _rolled(g: Any, value: Any, shift: int, axis: int) -> Any:
    """``value`` with its last ``shift`` elements along ``axis`` first.

    ``shift`` counts modulo the size, which may be known at run time only.
    """
    index = g.op("Constant", value_t=torch.tensor([axis]))
    if axis < 0:
        axis += rank_of(value)
        index = g.op("Constant", value_t=torch.tensor([axis]))
    size = g.op("Gather", g.op("Shape", value), index)
    one = g.op("Constant", value_t=torch.tensor([1]))
    shift_ = g.op("Mod", g.op("Constant", value_t=torch.tensor([shift])), g.op("Max", size, one))
    cut = g.op("Sub", size, shift_)
    zero = g.op("Constant", value_t=torch.tensor([0]))
    end = g.op("Constant", value_t=torch.tensor([END]))
    last = g.op("Slice", value, cut, end, index)
    first = g.op("Slice", value, zero, cut, index)
    return g.op("Concat", last, first, axis_i=axis)


def index_put(g: Any, base: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    """``base[indices] = values`` as ``ScatterND``, as NumPy's advanced indexing has it.

    The indexed dimensions go first, since that is where ``ScatterND`` looks, and back afterwards.
    A mask stands for the positions where it is true.  ``values`` broadcast to the shape of
    ``base[indices]``: the shape of the indices, broadcast together, in the place of the indexed
    dimensions if they are neighbours and first if not, and the other dimensions.
    """
    entries = _entries(g, indices)
    rank = rank_of(base)
    indexed = [dim for dim, index in enumerate(entries) if index is not None]
    others, before = _not_indexed(rank, indexed)
    order = [*indexed, *others]
    shape = g.op("Shape", base)
    where, common, width = _where(g, [entries[dim] for dim in indexed])

    after = [dim for dim in others if dim not in before]
    parts = [_dims(g, shape, before), common, _dims(g, shape, after)]
    wanted = g.op("Concat", *(part for part in parts if part is not None), axis_i=0)
    values = g.op("Expand", values, wanted)
    if before:
        lead = list(range(len(before), len(before) + width))
        rest = [*range(len(before)), *range(len(before) + width, len(others) + width)]
        values = g.op("Transpose", values, perm_i=[*lead, *rest])
    reduction = {"reduction_s": "add"} if torch_exporter.argument(accumulate, "b") else {}
    if order == list(range(rank)):
        return g.op("ScatterND", base, where, values, **reduction)
    moved = g.op("Transpose", base, perm_i=order)
    put = g.op("ScatterND", moved, where, values, **reduction)
    return g.op("Transpose", put, perm_i=[order.index(dim) for dim in range(rank)])


def index(g: Any, base: Any, indices: Any) -> Any:
    """``base[indices]`` with several tensors of integers, as ``GatherND``; others are not ours.

    The exporter counts elements from the start, where a negative index in all but the first tensor
    counts from the end of the row before.
    """
    packed = torch_exporter.is_listed(indices)
    given = [i for i in torch_exporter.items(indices) if not torch_exporter.is_none(i)]
    if not packed or len(given) < 2 or all(map(torch_exporter.is_truth, given)):
        return NotImplemented
    entries = _entries(g, indices)
    rank = rank_of(base)
    indexed = [dim for dim, entry in enumerate(entries) if entry is not None]
    others, before = _not_indexed(rank, indexed)
    where, _, width = _where(g, [entries[dim] for dim in indexed])
    order = [*indexed, *others]
    moved = base if order == list(range(rank)) else g.op("Transpose", base, perm_i=order)
    found = g.op("GatherND", moved, where)
    if not before:
        return found
    lead = [width + place for place in range(len(before))]
    rest = range(width + len(before), width + len(others))
    return g.op("Transpose", found, perm_i=[*lead, *range(width), *rest])


def _not_indexed(rank: int, indexed: list[int]) -> tuple[list[int], list[int]]:
    """Return the dimensions that are not indexed, and those of them that stay in front."""
    others = [dim for dim in range(rank) if dim not in indexed]
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    return others, [dim for dim in others if dim < indexed[0]] if together else []


def _where(g: Any, positions: list[Any]) -> tuple[Any, Any, int]:
    """Return the positions as ``ScatterND`` has them, their common shape, and its length."""
    common = positions[0]
    for index in positions[1:]:
        common = g.op("Add", common, index)
    width = rank_of(common)
    common = g.op("Shape", common)
    last = g.op("Constant", value_t=torch.tensor([-1]))
    columns = [g.op("Unsqueeze", g.op("Expand", p, common), last) for p in positions]
    where = columns[0] if len(columns) == 1 else g.op("Concat", *columns, axis_i=-1)
    return where, common, width


def _entries(g: Any, indices: Any) -> list[Any]:
    """Return an int64 index, or None for all, for each leading dimension."""
    packed = torch_exporter.is_listed(indices)
    entries: list[Any] = []
    for index in torch_exporter.items(indices) if packed else [indices]:
        if torch_exporter.is_none(index):
            entries.append(None)
        elif torch_exporter.is_truth(index):
            entries += _positions(g, index)
        else:
            entries.append(g.op("Cast", index, to_i=7))
    return entries


def _positions(g: Any, mask: Any) -> list[Any]:
    """Return, for each dimension of ``mask``, the positions where it is true."""
    found = g.op("NonZero", mask)
    if rank_of(mask) == 0:
        raise RuntimeError("a mask without dimensions is used as an index")
    axis = g.op("Constant", value_t=torch.tensor([0]))
    rows = [g.op("Constant", value_t=torch.tensor([dim])) for dim in range(rank_of(mask))]
    return [g.op("Squeeze", g.op("Gather", found, row, axis_i=0), axis) for row in rows]


def _dims(g: Any, shape: Any, dims: list[int]) -> Any:
    if not dims:
        return None
    return g.op("Gather", shape, g.op("Constant", value_t=torch.tensor(dims)))


def diagonal(g: Any, value: Any, offset: Any, dim1: Any, dim2: Any) -> Any:
    """``torch.diagonal`` of a matrix of known size: its elements, gathered from the flat matrix."""
    rank = rank_of(value)
    rows, columns = (torch_exporter.argument(dim, "i") % rank for dim in (dim1, dim2))
    sizes = g.original_node.inputsAt(0).type().varyingSizes() or [None] * rank
    height, width = sizes[rows], sizes[columns]
    if height is None or width is None:
        raise RuntimeError("the diagonal of a matrix whose size is known at run time only")
    shift = torch_exporter.argument(offset, "i")
    down, right = max(-shift, 0), max(shift, 0)
    count = max(min(height - down, width - right), 0)
    index = [(down + i) * width + right + i for i in range(count)]
    others = [dim for dim in range(rank) if dim not in (rows, columns)]
    last = g.op("Transpose", value, perm_i=[*others, rows, columns])
    end = g.op("Constant", value_t=torch.tensor([-1]))
    shape = [part for part in (_dims(g, g.op("Shape", value), others), end) if part is not None]
    target = shape[0] if len(shape) == 1 else g.op("Concat", *shape, axis_i=0)
    flat = g.op("Reshape", last, target)
    positions = g.op("Constant", value_t=torch.tensor(index, dtype=torch.int64))
    return g.op("Gather", flat, positions, axis_i=len(others))


def unflatten(g: Any, value: Any, dim: Any, sizes: Any) -> Any:
    """``torch.unflatten`` as a ``Reshape`` whose rank shows."""
    rank = rank_of(value)
    axis = torch_exporter.argument(dim, "i") % rank
    into = list(torch_exporter.argument(sizes, "is"))
    known = [torch_exporter.size(value, d) for d in range(rank)]
    target = [*known[:axis], *into, *known[axis + 1 :]]
    target = [-1 if size is None else size for size in target]
    if target.count(-1) <= 1:
        return g.op("Reshape", value, g.op("Constant", value_t=torch.tensor(target)))
    shape = g.op("Shape", value)
    parts = [_dims(g, shape, list(range(axis))), g.op("Constant", value_t=torch.tensor(into))]
    parts.append(_dims(g, shape, list(range(axis + 1, rank))))
    target = g.op("Concat", *(part for part in parts if part is not None), axis_i=0)
    return g.op("Reshape", value, target)


VIEWS: dict[str, Symbolic] = {
    "aten::select_scatter": select_scatter,
    "aten::slice_scatter": slice_scatter,
    "aten::_unsafe_index_put": index_put,
    "aten::index": index,
    "aten::roll": roll,
    "aten::unflatten": unflatten,
    "aten::diagonal": diagonal,
}
"""Operators of this file."""
