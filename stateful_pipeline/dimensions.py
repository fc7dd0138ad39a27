"""Dimensions of shapes: a number, the name of an axis, or an integer expression over axes.

``"batch"`` is an axis; ``"past + time"``, ``"(time//2)"`` and ``"Max(1, time)"`` are expressions,
in the form that sympy prints.  With a size for each axis, every dimension is a number.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from stateful_pipeline.errors import ContractError

Dim = int | str
Shape = tuple[Dim, ...]

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"Max": max, "Min": min}


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(arg, sizes) for arg in args))
    raise ContractError(f"'{ast.unparse(node)}' is not an integer expression over axes")


@lru_cache(maxsize=1024)
def _parsed(dim: str) -> ast.expr:
    try:
        return ast.parse(dim, mode="eval").body
    except SyntaxError as error:
        raise ContractError(f"'{dim}' is not an integer expression over axes") from error


@lru_cache(maxsize=1024)
def axes_of(dim: Dim) -> frozenset[str]:
    """Return the names of the axes that ``dim`` depends on: none for a number."""
    if isinstance(dim, int):
        return frozenset()
    names = {node.id for node in ast.walk(_parsed(dim)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def resolve(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size of ``dim`` where the axes have the ``sizes``.

    Raises:
        ContractError: An axis has no size, or the expression is not one.
    """
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    missing = axes_of(dim) - sizes.keys()
    if missing:
        raise ContractError(f"axis '{min(missing)}' of '{dim}' has no size yet")
    return _evaluate(_parsed(dim), sizes)


def resolve_shape(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return ``shape`` in numbers: :func:`resolve` for each dimension."""
    return tuple(resolve(dim, sizes) for dim in shape)


def bounds(dim: Dim, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return limits of ``dim`` where each axis lies in its range, both ends included.

    By interval arithmetic (Moore, Interval Analysis, 1966): every size that ``dim`` can have lies
    within them; they are the tightest ones where each axis occurs once.

    Raises:
        ContractError: An axis has no range, the expression is none, or it may divide by zero.
    """
    if isinstance(dim, int):
        return dim, dim
    missing = axes_of(dim) - ranges.keys()
    if missing:
        raise ContractError(f"axis '{min(missing)}' of '{dim}' has no range")
    return _bounds(_parsed(dim), ranges)


def _bounds(node: ast.expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    match node:
        case ast.Constant(value=int(value)):
            return value, value
        case ast.Name(id=name):
            return ranges[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            low, high = _bounds(operand, ranges)
            return -high, -low
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combined(node, type(op), _bounds(left, ranges), _bounds(right, ranges))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            inner = [_bounds(arg, ranges) for arg in args]
            choose = _FUNCTIONS[name]
            return choose(*(low for low, _ in inner)), choose(*(high for _, high in inner))
    raise ContractError(f"'{ast.unparse(node)}' is not an integer expression over axes")


def _combined(
    node: ast.expr, op: type[ast.operator], left: tuple[int, int], right: tuple[int, int]
) -> tuple[int, int]:
    """Return the limits of a binary operation, which lie at its corners but for a remainder.

    Raises:
        ContractError: It may divide by zero.
    """
    if op in (ast.FloorDiv, ast.Mod) and right[0] <= 0 <= right[1]:
        raise ContractError(f"'{ast.unparse(node)}' may divide by zero")
    if op is ast.Mod:
        return _remainder(left, right)
    corners = [_OPERATORS[op](a, b) for a in left for b in right]
    if op is ast.Pow and left[0] < 0 < left[1]:
        corners.append(0)
    return min(corners), max(corners)


def _remainder(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    if right[0] == right[1] and left[0] // right[0] == left[1] // right[0]:
        ends = left[0] % right[0], left[1] % right[0]
        return min(ends), max(ends)
    return (0, right[1] - 1) if right[0] > 0 else (right[0] + 1, 0)
