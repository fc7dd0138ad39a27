"""Triangular matrices: Cholesky's factor, and systems that are solved row by row.

Column j of the factor L of A = L Lᵀ is column j of what is left of A, from the diagonal down, over
the root of its diagonal element; what it explains is taken off A::

    l_j = a_j / sqrt(a_jj)        A <- A - l_j l_jᵀ
"""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.matrices import (
    batched,
    identity,
    size_of_square,
    swapped,
)
from stateful_pipeline.stages.export.symbolics.whole import Whole, piece
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, rank_of


def factor_and_info(op: Writer, a: Any, upper: bool = False, check: bool = False) -> Any:
    """``torch.linalg.cholesky_ex``; where A is not positive definite, the factor has NaN."""
    size, rank = size_of_square(a), rank_of(a)
    left = op.cast(a)
    if upper:
        left = swapped(op, left, rank)
    counts = op.of(torch.int32)
    columns, roots = [], []
    for j in range(size):
        root = op("Sqrt", piece(op, piece(op, left, -1, 0, 1), -2, 0, 1))
        column = op("Div", piece(op, left, -1, 0, 1), root)
        roots.append(root)
        above = op("Pad", column, op.ints(*[0] * (rank - 2), j, *[0] * (rank + 1)))
        columns.append(above if j else column)
        below = piece(op, column, -2, 1)
        outer = op("MatMul", below, swapped(op, below, rank))
        left = op("Sub", piece(op, piece(op, left, -1, 1), -2, 1), outer)
    factor = op("Concat", *columns, axis_i=-1)
    info = counts.number(0)
    for j, root in reversed(list(enumerate(roots))):
        positive = op("Greater", root, 0)
        info = counts.where(positive, info, counts.number(j + 1))
    if upper:
        factor = swapped(op, factor, rank)
    return op.cast(factor, op.result), op("Squeeze", info, op.ints(-2, -1))


def factor(op: Writer, a: Any, upper: bool = False) -> Any:
    """``torch.linalg.cholesky``; of a matrix that eager refuses, it has NaN."""
    return factor_and_info(op, a, upper)[0]


def _solved(op: Writer, a: Any, b: Any, size: int, upper: bool, unit: bool = False) -> Any:
    """Return X in A X = B, where A is triangular; both have all batch dimensions."""
    rows: list[Any] = []
    for k in reversed(range(size)) if upper else range(size):
        line = piece(op, a, -2, k, k + 1)
        row = piece(op, b, -2, k, k + 1)
        if rows:
            known = piece(op, line, -1, k + 1) if upper else piece(op, line, -1, 0, k)
            found = op("Concat", *rows, axis_i=-2) if len(rows) > 1 else rows[0]
            row = op("Sub", row, op("MatMul", known, found))
        if not unit:
            row = op("Div", row, piece(op, line, -1, k, k + 1))
        rows.insert(0 if upper else len(rows), row)
    return op("Concat", *rows, axis_i=-2) if len(rows) > 1 else rows[0]


def solve_triangular(
    op: Writer, a: Any, b: Any, upper: bool, left: bool = True, unit: bool = False
) -> Any:
    """``torch.linalg.solve_triangular``: X in A X = B, or in X A = B."""
    size, ranks = size_of_square(a), (rank_of(a), rank_of(b))
    a, b = op.cast(a), op.cast(b)
    if not left:
        a, b = (swapped(op, value, rank) for value, rank in zip((a, b), ranks, strict=True))
    a, b = batched(op, a, b, max(ranks))
    solution = _solved(op, a, b, size, upper == left, unit)
    return op.cast(solution if left else swapped(op, solution, max(ranks)), op.result)


def _old_solve(
    op: Writer, b: Any, a: Any, upper: bool = True, transposed: bool = False, unit: bool = False
) -> Any:
    """``torch.triangular_solve``: the solution, and the matrix that was given."""
    size, ranks = size_of_square(a), (rank_of(a), rank_of(b))
    matrix, b = op.cast(a), op.cast(b)
    if transposed:
        matrix = swapped(op, matrix, ranks[0])
    matrix, b = batched(op, matrix, b, max(ranks))
    return op.cast(_solved(op, matrix, b, size, upper != transposed, unit), op.result), a


def _factors(op: Writer, factor: Any, rank: int, upper: bool) -> tuple[Any, Any]:
    """Return the lower factor and the upper one, given either."""
    other = swapped(op, factor, rank)
    return (other, factor) if upper else (factor, other)


def cholesky_solve(op: Writer, b: Any, factor: Any, upper: bool = False) -> Any:
    """``torch.cholesky_solve``: X in L Lᵀ X = B."""
    size, rank = size_of_square(factor), max(rank_of(factor), rank_of(b))
    given, b = batched(op, op.cast(factor), op.cast(b), rank)
    lower, above = _factors(op, given, rank, upper)
    return op.cast(_solved(op, above, _solved(op, lower, b, size, False), size, True), op.result)


def cholesky_inverse(op: Writer, factor: Any, upper: bool = False) -> Any:
    """``torch.cholesky_inverse``: the inverse of L Lᵀ."""
    size, rank = size_of_square(factor), rank_of(factor)
    given = op.cast(factor)
    lower, above = _factors(op, given, rank, upper)
    first = _solved(op, lower, identity(op, given, size), size, False)
    return op.cast(_solved(op, above, first, size, True), op.result)


TRIANGLES: dict[str, Symbolic] = {
    "aten::cholesky": Whole(factor),
    "aten::linalg_cholesky": Whole(factor),
    "aten::linalg_cholesky_ex": Whole(factor_and_info),
    "aten::linalg_solve_triangular": Whole(solve_triangular),
    "aten::triangular_solve": Whole(_old_solve),
    "aten::cholesky_solve": Whole(cholesky_solve),
    "aten::cholesky_inverse": Whole(cholesky_inverse),
}
"""Operators of this file."""
