"""What ``and``, ``or`` and chained comparisons mean in Python, where TorchScript's mean less.

In Python, ``a or b`` is one of its operands; TorchScript makes a bool of it.  Where only its truth
matters, as in the test of an ``if``, that is the same.  And ``a < f() < b`` calls ``f`` once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

_TESTED = "_is_test"
_BOOL_FUNCTIONS = frozenset({"bool", "isinstance", "hasattr", "any", "all", "callable"})
_CHANGE_HOLDERS = frozenset(
    {"append", "appendleft", "clear", "extend", "insert", "pop", "popitem", "popleft", "remove"}
    | {"reverse", "rotate", "setdefault", "sort", "update"}
)


def mark_tests(tree: ast.AST) -> None:
    """Mark each ``and`` and ``or`` of which only the truth matters."""
    for node in ast.walk(tree):
        for test in _tests(node):
            _mark(test)


def _tests(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool":
        yield from node.args


def _mark(test: ast.expr) -> None:
    if isinstance(test, ast.BoolOp):
        setattr(test, _TESTED, True)
        for value in test.values:
            _mark(value)


def is_test(node: ast.BoolOp) -> bool:
    """Whether only the truth of ``node`` matters."""
    return getattr(node, _TESTED, False)


def is_bool(node: ast.expr) -> bool:
    """Whether an expression is a bool, or what a comparison gives, by its form."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_bool, node.values))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _BOOL_FUNCTIONS
    return isinstance(node, ast.Compare)


def may_change_something(node: ast.AST, this: str, own: set[str]) -> bool:
    """Whether the evaluation of an expression may change what the module holds.

    Args:
        node: The expression.
        this: The name of the function's first parameter.
        own: The names that the user's code defines.
    """
    return any(
        isinstance(inner, ast.NamedExpr)
        or (isinstance(inner, ast.Call) and _may_change(inner.func, this, own))
        for inner in ast.walk(node)
    )


def _may_change(function: ast.expr, this: str, own: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in own
    if not isinstance(function, ast.Attribute):
        return True
    if function.attr in _CHANGE_HOLDERS or function.attr.endswith("_"):
        return True
    holder = function.value
    while isinstance(holder, ast.Attribute | ast.Subscript):
        holder = holder.value
    of_this = isinstance(holder, ast.Name) and holder.id == this
    return of_this and not hasattr(torch.Tensor, function.attr)
