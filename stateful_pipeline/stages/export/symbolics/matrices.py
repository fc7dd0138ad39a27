"""Systems of linear equations of small matrices, solved by elimination that is written out.

The elimination is that of Gauss and Jordan, with the largest pivot of each column::

    [A | B]   the row of the largest |a_ik|, i >= k, goes to place k
              row k is divided by its pivot, and taken off all others as often as column k says

Column k is done with then, and left out.  What is left of the rows is the solution of A X = B.
Engines have no operator for it, and the size has to be known; it is `LARGEST` at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.whole import Whole, piece, size_of
from stateful_pipeline.stages.export.symbolics.writing import Symbolic, Writer, rank_of

LARGEST = 16
"""The most rows of a matrix whose elimination is written out, in some 15 operators for each."""


@dataclass(frozen=True)
class Eliminated:
    """What the elimination of ``[A | B]`` found.

    Attributes:
        solution: X in A X = B.
        pivots: The pivots, ``[..., 1, 1]`` each, negative where rows were exchanged for one.
    """

    solution: Any
    pivots: list[Any]

    def determinant(self, op: Writer) -> Any:
        """Return the determinant of A, of shape ``[...]``."""
        product = self.pivots[0]
        for pivot in self.pivots[1:]:
            product = op("Mul", product, pivot)
        return op("Squeeze", product, op.ints(-2, -1))

    def info(self, op: Writer) -> Any:
        """Return LAPACK's ``info``: the number of the first pivot that is 0, or else 0."""
        counts = op.of(torch.int32)
        info = counts.number(0)
        for place, pivot in reversed(list(enumerate(self.pivots))):
            zero = op("Equal", pivot, 0)
            info = counts.where(zero, counts.number(place + 1), info)
        return op("Squeeze", info, op.ints(-2, -1))


def size_of_square(value: Any) -> int:
    """Return the number of rows of square matrices.

    Raises:
        RuntimeError: It varies, or is too large to write the operator out.
    """
    size = size_of(value, -1)
    if size is None:
        raise RuntimeError("the size of the matrix varies: only fixed sizes have a form")
    if size > LARGEST:
        raise RuntimeError(f"the matrix has {size} rows: only up to {LARGEST} have a form")
    return size


def eliminated(op: Writer, a: Any, b: Any, size: int) -> Eliminated:
    """Eliminate ``[A | B]``; both have all batch dimensions."""
    rows = op("Concat", a, b, axis_i=-1)
    places = op.of(torch.int64)("Constant", value_t=torch.arange(size).reshape(size, 1))
    pivots = []
    for k in range(size):
        lead = rows
        row = piece(op, rows, -2, k, k + 1)
        sign = None
        if k < size - 1:
            column = op("Abs", piece(op, piece(op, rows, -2, k), -1, 0, 1))
            at = op("ArgMax", column, axis_i=-2, keepdims_i=1)
            at = op.of(torch.int64)("Add", at, k)
            found = op("GatherElements", rows, op("Expand", at, op.shape(row)), axis_i=-2)
            lead = op.where(op("Equal", places, at), row, rows)
            sign = op.where(op("Equal", at, op.ints(k)), op.number(1), op.number(-1))
            row = found
        pivot = piece(op, row, -1, 0, 1)
        pivots.append(pivot if sign is None else op("Mul", pivot, sign))
        row = op("Div", piece(op, row, -1, 1), pivot)
        others = op("Mul", piece(op, lead, -1, 0, 1), row)
        others = op("Sub", piece(op, lead, -1, 1), others)
        rows = op.where(op("Equal", places, op.ints(k)), row, others)
    return Eliminated(rows, pivots)


def identity(op: Writer, like: Any, size: int) -> Any:
    """Return identity matrices, as many as ``like`` has."""
    one = op("Constant", value_t=torch.eye(size, dtype=op.dtype))
    return op("Expand", one, op.shape(like))


def inverse_and_info(op: Writer, a: Any, check: bool = False) -> Any:
    """``torch.linalg.inv_ex``; a singular matrix has infinities and NaN in its inverse."""
    size = size_of_square(a)
    a = op.cast(a)
    found = eliminated(op, a, identity(op, a, size), size)
    return op.cast(found.solution, op.result), found.info(op)


def inverse(op: Writer, a: Any) -> Any:
    """``torch.linalg.inv``; of a singular matrix, which eager refuses, it is not finite."""
    return inverse_and_info(op, a)[0]


def swapped(op: Writer, value: Any, rank: int) -> Any:
    """Return matrices with rows for columns."""
    return op("Transpose", value, perm_i=[*range(rank - 2), rank - 1, rank - 2])


def batched(op: Writer, a: Any, b: Any, rank: int) -> tuple[Any, Any]:
    """Return matrices with all batch dimensions of both; ``rank`` is that of the larger."""
    if rank == 2:
        return a, b
    corners = [piece(op, piece(op, value, -1, 0, 1), -2, 0, 1) for value in (a, b)]
    sizes = op.shape(op("Add", *corners))
    return op("Expand", a, sizes), op("Expand", b, sizes)


def _is_vector(a: Any, b: Any) -> bool:
    """Whether what is on the right of a system is a vector for each matrix."""
    rank = rank_of(b)
    if rank == 1:
        return True
    sizes = [(size_of(a, dim), size_of(b, dim)) for dim in range(min(rank, rank_of(a) - 1))]
    return rank == rank_of(a) - 1 and all(m == n for m, n in sizes)


def solve_and_info(op: Writer, a: Any, b: Any, left: bool = True, check: bool = False) -> Any:
    """``torch.linalg.solve_ex``: X in A X = B, or in X A = B; B may be vectors."""
    size, vector = size_of_square(a), _is_vector(a, b)
    ranks = rank_of(a), rank_of(b) + vector
    rank = max(ranks)
    a, b = op.cast(a), op.cast(b)
    if vector:
        b = op("Unsqueeze", b, op.ints(-1))
    if not left:
        a, b = (swapped(op, value, r) for value, r in zip((a, b), ranks, strict=True))
    found = eliminated(op, *batched(op, a, b, rank), size)
    solution = found.solution if left else swapped(op, found.solution, rank)
    if vector:
        solution = op("Squeeze", solution, op.ints(-1))
    return op.cast(solution, op.result), found.info(op)


def _solve_with_parts(op: Writer, *arguments: Any) -> Any:
    """The operator that ``torch.linalg.solve`` is made of; its factors are nobody's to read."""
    solution, _ = solve_and_info(op, *arguments)
    return (solution,)


def solve(op: Writer, a: Any, b: Any, left: bool = True) -> Any:
    """``torch.linalg.solve``; with a singular matrix, which eager refuses, it is not finite."""
    return solve_and_info(op, a, b, left)[0]


def determinant(op: Writer, a: Any) -> Any:
    """``torch.linalg.det``; engines have it in float32."""
    if op.dtype == torch.float32:
        return op.cast(op("Det", op.cast(a)), op.result)
    return op.cast(_pivots(op, a).determinant(op), op.result)


def _pivots(op: Writer, a: Any) -> Eliminated:
    size = size_of_square(a)
    a = op.cast(a)
    return eliminated(op, a, piece(op, a, -1, 0, 0), size)


def sign_and_logarithm(op: Writer, a: Any) -> Any:
    """``torch.linalg.slogdet``: the sign of the determinant, and the logarithm of its size."""
    pivots = op("Concat", *_pivots(op, a).pivots, axis_i=-1)
    last = op.ints(-2, -1)
    sign = op("ReduceProd", op("Sign", pivots), last, keepdims_i=0)
    size = op("ReduceSum", op("Log", op("Abs", pivots)), last, keepdims_i=0)
    return op.cast(sign, op.result), op.cast(size, op.result)


def power(op: Writer, a: Any, n: int) -> Any:
    """``torch.linalg.matrix_power``, by squaring; negative powers are those of the inverse."""
    size = size_of_square(a) if n <= 0 else 0
    value = op.cast(a)
    if n == 0:
        return op.cast(identity(op, value, size), op.result)
    if n < 0:
        value, n = eliminated(op, value, identity(op, value, size), size).solution, -n
    product = None
    while n:
        if n % 2:
            product = value if product is None else op("MatMul", product, value)
        n //= 2
        if n:
            value = op("MatMul", value, value)
    return op.cast(product, op.result)


MATRICES: dict[str, Symbolic] = {
    "aten::inverse": Whole(inverse),
    "aten::linalg_inv": Whole(inverse),
    "aten::linalg_inv_ex": Whole(inverse_and_info),
    "aten::linalg_solve": Whole(solve),
    "aten::linalg_solve_ex": Whole(solve_and_info),
    "aten::_linalg_solve_ex": Whole(_solve_with_parts),
    "aten::det": Whole(determinant),
    "aten::linalg_det": Whole(determinant),
    "aten::slogdet": Whole(sign_and_logarithm),
    "aten::linalg_slogdet": Whole(sign_and_logarithm),
    "aten::_linalg_slogdet": Whole(sign_and_logarithm),
    "aten::matrix_power": Whole(power),
    "aten::linalg_matrix_power": Whole(power),
}
"""Operators of this file."""
