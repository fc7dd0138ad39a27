"""Finds the line that writes to an attribute by reading the class's source.

For what no call was seen to change: the line is on a branch that was not taken.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from torch import nn

from stateful_pipeline.errors import Place
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.user_code import is_user_file

_CONSTRUCTORS = ("__init__", "__post_init__", "__new__")


def written_at(module: nn.Module, path: str) -> Place | None:
    """Return the first line, constructors left out, that may write to what is at ``path``.

    Args:
        module: The module.
        path: The path of a state in it.
    """
    above, _, name = path.rpartition(".")
    try:
        holder = read(module, above)
    except KeyError:
        return None
    for cls in type(holder).__mro__:
        place = _in_class(cls, name)
        if place is not None:
            return place
    return None


def _in_class(cls: type, name: str) -> Place | None:
    try:
        file = inspect.getsourcefile(cls)
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return None
    if file is None or not is_user_file(file):
        return None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    found = [line for function in _functions(tree) for line in _writes(function, name)]
    return Place(file, first + min(found) - 1) if found else None


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in _CONSTRUCTORS:
            yield node


def _writes(function: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines that assign to ``name``, or call a method of it that writes in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            target: ast.AST = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if not method.endswith("_") or method.endswith("__"):
                continue
            target = node.func.value
        else:
            continue
        if _attribute(target) == name:
            yield node.lineno


def _attribute(node: ast.AST) -> str | None:
    """Return the attribute that an expression reaches into: ``h`` for ``self.h[0]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else None
