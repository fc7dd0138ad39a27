"""Products of vectors and matrices that PyTorch makes of others."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.whole import Whole
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, rank_of


def inner(op: Writer, a: Any, b: Any) -> Any:
    """``torch.inner``: products along the last dimensions of both."""
    ranks = rank_of(a), rank_of(b)
    a, b = op.cast(a), op.cast(b)
    if 0 in ranks:
        return op.cast(op("Mul", a, b), op.result)
    if ranks[1] == 1:
        return op.cast(op("MatMul", a, b), op.result)
    rows = op("Reshape", b, op("Concat", op.ints(-1), op.shape(b, [ranks[1] - 1]), axis_i=0))
    product = op("MatMul", a, op("Transpose", rows, perm_i=[1, 0]))
    others = op.shape(b, list(range(ranks[1] - 1)))
    if ranks[0] == 1:
        return op.cast(op("Reshape", product, others), op.result)
    sizes = op("Concat", op.shape(a, list(range(ranks[0] - 1))), others, axis_i=0)
    return op.cast(op("Reshape", product, sizes), op.result)


def vdot(op: Writer, a: Any, b: Any) -> Any:
    """``torch.vdot`` of real vectors."""
    return op.cast(op("MatMul", op.cast(a), op.cast(b)), op.result)


def _added(op: Writer, start: Any, product: Any, beta: float, alpha: float) -> Any:
    """Return ``beta * start + alpha * product``; a ``beta`` of 0 leaves ``start`` out."""
    if alpha != 1:
        product = op("Mul", product, alpha)
    if beta == 0:
        return op.cast(product, op.result)
    start = op.cast(start) if beta == 1 else op("Mul", op.cast(start), beta)
    return op.cast(op("Add", start, product), op.result)


def addmv(op: Writer, start: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    """``torch.addmv``: of a matrix and a vector."""
    return _added(op, start, op("MatMul", op.cast(a), op.cast(b)), beta, alpha)


def addr(op: Writer, start: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    """``torch.addr``: of each element of a vector and each of another."""
    column = op("Unsqueeze", op.cast(a), op.ints(1))
    return _added(op, start, op("Mul", column, op.cast(b)), beta, alpha)


def addbmm(op: Writer, start: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    """``torch.addbmm``: of all matrices of two batches, added up."""
    product = op("MatMul", op.cast(a), op.cast(b))
    return _added(op, start, op("ReduceSum", product, op.ints(0), keepdims_i=0), beta, alpha)


def multi_dot(op: Writer, tensors: list[Any]) -> Any:
    """``torch.linalg.multi_dot``, from the left."""
    product = functools.reduce(lambda a, b: op("MatMul", a, b), map(op.cast, tensors))
    return op.cast(product, op.result)


def kron(op: Writer, a: Any, b: Any) -> Any:
    """``torch.kron``: each element of one times the whole other."""
    ranks = rank_of(a), rank_of(b)
    rank = max(ranks)
    a, b = op.cast(a), op.cast(b)
    a, b = (
        op("Unsqueeze", v, op.ints(*range(rank - r))) if r < rank else v
        for v, r in zip((a, b), ranks, strict=True)
    )
    left = op("Unsqueeze", a, op.ints(*(2 * dim + 1 for dim in range(rank))))
    right = op("Unsqueeze", b, op.ints(*(2 * dim for dim in range(rank))))
    sizes = op.of(torch.int64)("Mul", op.shape(a), op.shape(b))
    return op.cast(op("Reshape", op("Mul", left, right), sizes), op.result)


def bilinear(op: Writer, a: Any, b: Any, weight: Any, bias: Any = None) -> Any:
    """``F.bilinear``: ``a W_k bᵀ`` for each k."""
    a, b = op.cast(a), op.cast(b)
    first = op("Unsqueeze", op("Unsqueeze", a, op.ints(-2)), op.ints(-2))
    half = op("Squeeze", op("MatMul", first, op.cast(weight)), op.ints(-2))
    product = op("Squeeze", op("MatMul", half, op("Unsqueeze", b, op.ints(-1))), op.ints(-1))
    product = product if bias is None else op("Add", product, op.cast(bias))
    return op.cast(product, op.result)


PRODUCTS: dict[str, Symbolic] = {
    "aten::inner": Whole(inner),
    "aten::vdot": Whole(vdot),
    "aten::addmv": Whole(addmv),
    "aten::addr": Whole(addr),
    "aten::addbmm": Whole(addbmm),
    "aten::linalg_multi_dot": Whole(multi_dot),
    "aten::kron": Whole(kron),
    "aten::bilinear": Whole(bilinear),
}
"""Operators of this file."""
