"""Writing to places that an index names: ``scatter``, ``index_add`` and the like.

``ScatterElements`` takes an index of the shape of what is written.  With a reduction, what goes to
one place is added up, or multiplied, or the largest or smallest is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.whole import Whole
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, rank_of

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


@dataclass(frozen=True)
class _Places:
    """Where to write in a tensor.

    Attributes:
        base: The tensor, of one dimension at least, in the dtype that is computed in.
        index: For each place of its shape, which element along ``axis`` it means.
        axis: The dimension, not negative.
        flat: Whether ``base`` was a tensor without dimensions, and the result is.
    """

    base: Any
    index: Any
    axis: int
    flat: bool

    @staticmethod
    def of(op: Writer, base: Any, dim: int, index: Any, *, one: bool = False) -> _Places:
        """Return the places of ``index``; of ``one`` that is a vector, all along the others."""
        rank = rank_of(base)
        value, places = op.cast(base), op.cast(index, torch.int64)
        if rank == 0:
            value = op("Reshape", value, op.ints(1))
        axis, rank = dim % (rank or 1), rank or 1
        if one:
            column = [1] * rank
            column[axis] = -1
            places = op("Reshape", places, op.ints(*column))
            sizes = op.shape(value)
            count = op.shape(places, [axis])
            parts = [op("Slice", sizes, op.ints(0), op.ints(axis), op.ints(0)), count]
            parts.append(op("Slice", sizes, op.ints(axis + 1), op.ints(rank), op.ints(0)))
            places = op("Expand", places, op("Concat", *parts, axis_i=0))
        elif rank_of(index) == 0:
            places = op("Reshape", places, op.ints(1))
        return _Places(value, places, axis, flat=rank_of(base) == 0)

    def result(self, op: Writer, value: Any) -> Any:
        """Return what was written as the result of the node."""
        return op.cast(op("Squeeze", value, op.ints(0)) if self.flat else value, op.result)


def scatter(op: Writer, base: Any, dim: int, index: Any, source: Any, reduce: str = "") -> Any:
    """``torch.scatter`` of a number, or of as much of a tensor as there are indices."""
    to = _Places.of(op, base, dim, index)
    kind = _REDUCTIONS[reduce] if reduce else ""
    source = _sized(op, source, to.index)
    return to.result(op, _scattered(op, to.base, to.index, source, to.axis, kind))


def _sized(op: Writer, source: Any, index: Any) -> Any:
    """Return ``source`` in the shape of ``index``: its first elements, or the number spread."""
    sizes = op.shape(index)
    if isinstance(source, int | float):
        return op("Expand", op.number(source), sizes)
    rank, source = rank_of(source), op.cast(source)
    if rank == 0:
        return op("Expand", source, sizes)
    return op("Slice", source, op.ints(*[0] * rank), sizes, op.ints(*range(rank)))


def scatter_add(op: Writer, base: Any, dim: int, index: Any, source: Any) -> Any:
    """``torch.scatter_add``."""
    return scatter(op, base, dim, index, source, "add")


def scatter_reduce(
    op: Writer, base: Any, dim: int, index: Any, source: Any, reduce: str, include: bool = True
) -> Any:
    """``torch.scatter_reduce``, which may leave out what was in the places before."""
    to = _Places.of(op, base, dim, index)
    return _reduced(op, to, _sized(op, source, to.index), reduce, include)


def _reduced(op: Writer, to: _Places, source: Any, reduce: str, include: bool) -> Any:
    sizes, first = op.shape(to.index), to.base
    if not include:
        nothing = op("Expand", op.number(_neutral(reduce, op.dtype)), sizes)
        first = _scattered(op, to.base, to.index, nothing, to.axis)
    result = _scattered(op, first, to.index, source, to.axis, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = op("Expand", op.number(1), sizes)
        counts = op("Expand", op.number(int(include)), op.shape(to.base))
        counts = _scattered(op, counts, to.index, ones, to.axis, "add")
        result = _quotient(op, result, op("Max", counts, 1))
    return to.result(op, result)


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


def index_add(op: Writer, base: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Any:
    """``torch.index_add``, also of an index that names a place twice."""
    to = _Places.of(op, base, dim, index, one=True)
    source = op.cast(source)
    if alpha != 1:
        source = op("Mul", source, alpha)
    source = op("Reshape", source, op.shape(to.index))
    return to.result(op, _scattered(op, to.base, to.index, source, to.axis, "add"))


def index_reduce(
    op: Writer, base: Any, dim: int, index: Any, source: Any, reduce: str, include: bool = True
) -> Any:
    """``torch.index_reduce``, as ``scatter_reduce`` of all that lies along the others."""
    to = _Places.of(op, base, dim, index, one=True)
    source = op("Reshape", op.cast(source), op.shape(to.index))
    return _reduced(op, to, source, reduce, include)


def index_fill(op: Writer, base: Any, dim: int, index: Any, value: Any) -> Any:
    """``torch.index_fill``."""
    to = _Places.of(op, base, dim, index, one=True)
    filled = op.number(value) if isinstance(value, int | float) else op.cast(value)
    filled = op("Expand", filled, op.shape(to.index))
    return to.result(op, _scattered(op, to.base, to.index, filled, to.axis))


def index_copy(op: Writer, base: Any, dim: int, index: Any, source: Any) -> Any:
    """``torch.index_copy``: one ``ScatterElements``, which a runtime can do in place."""
    op = op.of(op.result)  # nothing is computed
    to = _Places.of(op, base, dim, index, one=True)
    source = op("Reshape", op.cast(source), op.shape(to.index))
    return to.result(op, _scattered(op, to.base, to.index, source, to.axis))


SCATTERS: dict[str, Symbolic] = {
    "aten::index_copy": Whole(index_copy),
    "aten::scatter": Whole(scatter),
    "aten::scatter_add": Whole(scatter_add),
    "aten::scatter_reduce": Whole(scatter_reduce),
    "aten::index_add": Whole(index_add),
    "aten::index_reduce": Whole(index_reduce),
    "aten::index_fill": Whole(index_fill),
}
"""Operators of this file."""
