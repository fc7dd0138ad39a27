"""Finds writes in the user's Python that TorchScript compiled into nothing, or into something else.

``torch.jit.script`` takes ``m[i]`` with a tensor ``i`` for a copy, where Python gives a view of one
row: the compiler then drops ``m[i].add_(x)`` as a statement without effect.  And it makes
``d["a"] = d["a"] + x`` of ``d["a"] += x``, where Python writes to the tensor that is there.  What
the compiler dropped is in no graph, so the source is compared with the graph: each statement that
writes to a part of something needs an operator there that writes.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from stateful_pipeline.errors import Place, StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Graph, Node
from stateful_pipeline.model.user_code import is_user_file

_IN_PLACE = re.compile(r"[a-z]\w*[^_]_$")
_DECIDED = re.compile(
    r"\bis (not )?None\b|\bisinstance\(|\bhasattr\(|\bis_scripting\(|TYPE_CHECKING"
)
"""Tests that the compiler decides; the branch that is not taken is in no graph."""

_NUMBERS = ("int", "float", "bool", "len", "min", "max", "abs", "round", "sum", "range", "str")

_Lines = dict[str, dict[int, list[Node]]]


def refuse_dropped_writes(module: nn.Module, method: str, graph: Graph) -> None:
    """Refuse a module of whose writes one is not in its graph.

    Args:
        module: The module that was scripted: Python's, not a ScriptModule.
        method: Its entry point.
        graph: The graph of this, calls inlined, as the compiler made it.

    Raises:
        StateError: A statement does not write where it does in Python.
    """
    lines = _lines(graph)
    code = getattr(inspect.unwrap(getattr(type(module), method)), "__code__", None)
    if code is not None and is_user_file(code.co_filename):
        last = max(line for *_, line in code.co_lines() if line is not None)
        lines[code.co_filename][last] += []  # compiled, also where nothing is left of it
    for file, nodes in lines.items():
        for function in _functions(file, set(nodes)):
            for statement, reason, hint in _unlike_python(function, nodes):
                raise StateError(reason, place=Place(file, statement.lineno), hint=hint)


def _unlike_python(
    function: ast.FunctionDef, nodes: dict[int, list[Node]]
) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yield statements that TorchScript compiles to something else: why, and what to do."""
    for branch in _decided_by_scripting(function):
        yield (
            branch,
            f"changes a state under {ast.unparse(branch.test)}, which eager mode does not",
            "let both do the same, or export with torch.export",
        )
    for loop in _loops_over_slices(function):
        yield (
            loop,
            f"TorchScript keeps '{ast.unparse(loop.target)}' from an earlier loop in a loop over a "
            "slice of modules",
            "give the loop's variable another name",
        )
    for statement in _writes(function):
        if not _is_there(statement, nodes):
            yield (
                statement,
                f"TorchScript does not write where Python does: {_text(statement)}",
                _how_to_write(statement),
            )


def _lines(graph: Graph) -> _Lines:
    """Return the nodes of each line of the user's files."""
    lines: _Lines = defaultdict(lambda: defaultdict(list))
    pending: list[Any] = [graph]
    while pending:
        for node in pending.pop().nodes():
            pending += node.blocks()
            place = jit.place_of(node)
            if place is not None and place.line and is_user_file(place.file):
                lines[place.file][place.line].append(node)
    return lines


def _functions(file: str, lines: set[int]) -> Iterator[ast.FunctionDef]:
    """Yield the innermost functions of a file in which one of ``lines`` lies."""
    path = Path(file)
    if not path.is_file():
        return
    every = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    compiled = {
        min(around, key=lambda f: (f.end_lineno or f.lineno) - f.lineno)
        for line in lines
        if (around := [f for f in every if f.lineno <= line <= (f.end_lineno or f.lineno)])
    }
    yield from sorted(compiled, key=lambda function: function.lineno)


def _writes(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield the statements of a function that write to a part of something, in order."""
    parts = {
        name.id
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign) and _may_be_part(statement.value)
        for name in statement.targets
        if isinstance(name, ast.Name)
    }
    yield from (s for s in _statements(function.body) if _is_write(s, parts))


def _is_write(statement: ast.stmt, parts: set[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return _is_call_in_place(statement.value, parts)
    if isinstance(statement, ast.AugAssign):
        return _is_part(statement.target, parts)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(t, ast.Subscript) and _is_part(t.value, parts) for t in targets)


def _loops_over_slices(function: ast.FunctionDef) -> Iterator[ast.For]:
    """Yield loops over slices whose variable an earlier loop has, too."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    names: set[str] = set()
    for loop in sorted(loops, key=lambda loop: loop.lineno):
        target = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        sliced = any(isinstance(node, ast.Slice) for node in ast.walk(loop.iter))
        of_modules = ast.unparse(loop.iter).startswith(("self.", "enumerate(self.", "zip(self."))
        if sliced and of_modules and target & names:
            yield loop
        names |= target


def _decided_by_scripting(function: ast.FunctionDef) -> Iterator[ast.If]:
    """Yield the branches on ``torch.jit.is_scripting()`` in which something is stored."""
    for statement in ast.walk(function):
        if isinstance(statement, ast.If) and "is_scripting(" in ast.unparse(statement.test):
            inner = [node for part in statement.body + statement.orelse for node in ast.walk(part)]
            if any(isinstance(node, ast.stmt) and _stores(node) for node in inner):
                yield statement


def _stores(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        return isinstance(function, ast.Attribute) and bool(_IN_PLACE.match(function.attr))
    return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements in order, but for those behind a test that the compiler decides."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and _DECIDED.search(ast.unparse(statement.test)):
            continue
        for name in ("body", "orelse"):
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                yield from _statements(getattr(statement, name, []))


def _may_be_part(value: ast.expr) -> bool:
    """Whether an expression may give a part of a tensor, as many functions do."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id not in _NUMBERS
    return isinstance(value, ast.Subscript | ast.Call)


def _is_part(target: ast.expr, parts: set[str]) -> bool:
    """Whether an expression is a part of something, or a name for one."""
    return isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Name) and target.id in parts
    )


def _is_call_in_place(value: ast.expr, parts: set[str]) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        target = value.func.value
        if _IN_PLACE.match(value.func.attr) and (
            isinstance(target, ast.Call) or _is_part(target, parts)
        ):
            return True
        value = target
    return False


def _is_there(statement: ast.stmt, nodes: dict[int, list[Node]]) -> bool:
    """Whether an operator of a statement's lines writes, or computes with numbers alone."""
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    here = [node for line in lines for node in nodes.get(line, [])]
    if any(map(_writes_to_tensor, here)):
        return True
    if not isinstance(statement, ast.AugAssign):
        return False
    made = [output for node in here for output in node.outputs()]
    numbers = [output for output in made if not jit.is_tensor_type(output.type())]
    return bool(numbers) and len(numbers) == len(made)


def _writes_to_tensor(node: Node) -> bool:
    schema = jit.schema_of(node)
    return schema is not None and any(
        jit.writes(argument) and jit.is_tensor_type(value.type())
        for argument, value in zip(schema.arguments, node.inputs(), strict=False)
    )


def _how_to_write(statement: ast.stmt) -> str:
    """Return what writes, in TorchScript too."""
    hint = (
        "write to the tensor itself, not to what a function gave; index with int(i), or use "
        "index_add_, index_copy_ or index_put_"
    )
    if not isinstance(statement, ast.AugAssign):
        return hint
    target = statement.target
    plain = f"{_text(target)} = {ast.unparse(ast.BinOp(target, statement.op, statement.value))}"
    return f"for an item of a dict or a list, {plain}; {hint}"


def _text(statement: ast.AST) -> str:
    return ast.unparse(statement).splitlines()[0]
