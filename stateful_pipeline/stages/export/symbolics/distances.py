"""Distances of vectors from one another."""

from __future__ import annotations

import math
from typing import Any

from stateful_pipeline.stages.export.symbolics.whole import Whole, size_of
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer


def cdist(op: Writer, x: Any, y: Any, p: float = 2.0, mode: int | None = None) -> Any:
    """``torch.cdist``: the ``p``-norm of the difference of each vector of x and each of y."""
    x = op("Unsqueeze", op.cast(x), op.ints(-2))
    y = op("Unsqueeze", op.cast(y), op.ints(-3))
    return op.cast(norm(op, op("Sub", x, y), p, [-1]), op.result)


def norm(op: Writer, value: Any, p: float, dims: list[int], *, keeps: bool = False) -> Any:
    """Return the ``p``-norm along dimensions."""
    size = op("Abs", value)

    def reduced(kind: str, what: Any) -> Any:
        return op(kind, what, op.ints(*dims), keepdims_i=int(keeps))

    if math.isinf(p):
        return reduced("ReduceMax" if p > 0 else "ReduceMin", size)
    if p == 0:
        return reduced("ReduceSum", op.cast(op("Not", op("Equal", size, 0))))
    if p == 1:
        return reduced("ReduceSum", size)
    if p == 2:
        return op("Sqrt", reduced("ReduceSum", op("Mul", size, size)))
    return op("Pow", reduced("ReduceSum", op("Pow", size, p)), 1 / p)


def pdist(op: Writer, x: Any, p: float = 2.0) -> Any:
    """``torch.pdist``: the distance of each two vectors, of those before from those after."""
    count = size_of(x, 0)
    if count is None:
        raise RuntimeError("the number of vectors varies: only fixed sizes have a form")
    x = op.cast(x)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = (op("Gather", x, op.ints(*places)) for places in zip(*pairs, strict=True))
    return op.cast(norm(op, op("Sub", first, second), p, [-1]), op.result)


DISTANCES: dict[str, Symbolic] = {
    "aten::cdist": Whole(cdist),
    "aten::_cdist_forward": Whole(cdist),
    "aten::pdist": Whole(pdist),
    "aten::_pdist_forward": Whole(pdist),
}
"""Operators of this file."""
