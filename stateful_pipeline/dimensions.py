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
