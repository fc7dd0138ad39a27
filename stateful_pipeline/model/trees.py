"""Makes parts of syntax trees for TorchScript's compiler, each at a place in the user's source."""

from __future__ import annotations

import ast
import copy
from typing import TypeVar

Tree = TypeVar("Tree", bound=ast.AST)


def located(node: Tree, like: ast.AST) -> Tree:
    """Return ``node``, with all of it that is new where ``like`` is."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.expr | ast.stmt) and not hasattr(inner, "lineno"):
            ast.copy_location(inner, like)
    return node


def loaded(target: ast.expr) -> ast.expr:
    """Return a copy of a target that is read."""
    read = copy.deepcopy(target)
    if isinstance(read, ast.Name | ast.Attribute | ast.Subscript):
        read.ctx = ast.Load()
    return read


def type_tree(kind: str, like: ast.expr | ast.arg) -> ast.expr:
    """Return the tree of a type.

    The compiler first looks up the source text that is at the place of a type, so that this must
    not be the name of anything: it begins where ``like`` ends.
    """
    made = ast.parse(kind, mode="eval").body
    line, column = like.end_lineno or like.lineno, like.end_col_offset or like.col_offset
    for inner in ast.walk(made):
        if isinstance(inner, ast.expr):
            inner.lineno = inner.end_lineno = line
            inner.col_offset = inner.end_col_offset = column
    return made


def branch_on_type(
    value: ast.expr, kind: str, then: list[ast.stmt], other: list[ast.stmt], like: ast.stmt
) -> ast.If:
    """Return a branch on the type of a value, which the compiler takes, in the place of ``like``.

    The statements share parts, which have to be apart to have places of their own.
    """
    name = ast.Name("isinstance", ast.Load())
    test = ast.Call(name, [loaded(value), type_tree(kind, value)], [])
    return located(ast.If(test, copy.deepcopy(then), copy.deepcopy(other)), like)
