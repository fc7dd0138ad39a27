"""Dimensions of shapes: a number, the name of a dynamic axis, or an expression over axes."""

from __future__ import annotations

import ast
import keyword
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from stateful_pipeline.dimensions import Dim, axes_of
from stateful_pipeline.errors import ContractError
from stateful_pipeline.spec.base import LIMIT, SpecModel, problem
from stateful_pipeline.spec.faults import show

AXIS_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_AXIS = re.compile(AXIS_PATTERN)
_EXPRESSION = re.compile(r"[A-Za-z0-9_+*/%(), -]{1,200}")
_ALLOWED_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.Call,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
)  # fmt: skip

DType = Literal[
    "float16", "bfloat16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def is_axis(text: str) -> bool:
    """Return whether ``text`` can name an axis."""
    reserved = keyword.iskeyword(text) or text in ("Max", "Min")
    return _AXIS.fullmatch(text) is not None and not reserved


def _axis_name(value: Any) -> Any:
    if isinstance(value, str) and not is_axis(value):
        raise problem(f"{show(value)} cannot name an axis", "a word such as `batch`")
    return value


def _axis_pattern(value: Any) -> Any:
    if isinstance(value, str) and not is_axis(re.sub(r"[*?]", "_", value)):
        raise problem(
            f"{show(value)} cannot name an axis", "a word such as `batch`, or a pattern, `past_*`"
        )
    return value


def _dim(value: Any, least: int) -> Dim:
    if isinstance(value, str) and is_axis(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        if value < LIMIT:
            return value
        raise problem(f"a dimension is less than 2^31 ({LIMIT}), found {show(value)}")
    kind = "a positive whole number" if least else "a whole number, 0 or more,"
    raise problem(
        f"a dimension is {kind} or the name of an axis, found {show(value)}",
        "such as `[batch, 40]`",
    )


def _input_dim(value: Any) -> Dim:
    return _dim(value, 1)


def _state_dim(value: Any) -> Dim:
    return _dim(value, 0)


def _out_dim(value: Any) -> Dim:
    if not isinstance(value, str) or is_axis(value):
        return _dim(value, 0)
    if not axes_in(value):
        raise problem(
            f"{show(value)} is not an integer expression over axes",
            "axes and numbers with + - * // %, Max(a, b) and Min(a, b), such as `past + time`",
        )
    return value


def axes_in(text: str) -> frozenset[str]:
    """Return the axes of an axis name or an expression; none where ``text`` is neither."""
    if is_axis(text):
        return frozenset({text})
    if not _EXPRESSION.fullmatch(text):
        return frozenset()
    try:
        names = axes_of(text)
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (ContractError, SyntaxError, RecursionError, MemoryError):
        return frozenset()
    return names if _is_arithmetic(nodes) else frozenset()


def _is_arithmetic(nodes: list[ast.AST]) -> bool:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return (
        all(isinstance(node, _ALLOWED_NODES) for node in nodes)
        and all(
            type(node.value) is int and node.value < LIMIT
            for node in nodes
            if isinstance(node, ast.Constant)
        )
        and all(isinstance(call.func, ast.Name) and call.args for call in calls)
        and {call.func.id for call in calls if isinstance(call.func, ast.Name)} <= {"Max", "Min"}
        and not any(call.keywords for call in calls)
    )


def _schema(least: int, pattern: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": least, "exclusiveMaximum": LIMIT},
                {"type": "string", "pattern": f"^(?:{pattern})$"},
            ]
        }
    )


_Shape = Field(strict=False, max_length=32)

AxisName = Annotated[
    str,
    BeforeValidator(_axis_name),
    WithJsonSchema({"type": "string", "pattern": f"^{AXIS_PATTERN}$"}),
]
AxisPattern = Annotated[
    str,
    BeforeValidator(_axis_pattern),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z_*?][A-Za-z0-9_*?]*$"}),
]
"""The name of an axis, or a pattern for several."""
InputShape = Annotated[
    tuple[Annotated[Dim, BeforeValidator(_input_dim), _schema(1, AXIS_PATTERN)], ...], _Shape
]
StateShape = Annotated[
    tuple[Annotated[Dim, BeforeValidator(_state_dim), _schema(0, AXIS_PATTERN)], ...], _Shape
]
OutShape = Annotated[
    tuple[Annotated[Dim, BeforeValidator(_out_dim), _schema(0, _EXPRESSION.pattern)], ...], _Shape
]

Size = Annotated[int, Field(ge=1, lt=LIMIT)]


class AxisSpec(SpecModel):
    """The sizes of a dynamic axis: the smallest, the usual and the largest one.

    All three equal is a fixed axis.
    """

    min: Size = 1
    """The smallest size that the model is built and verified for."""
    opt: Size
    """The usual size: what engines are tuned for and benchmarks use."""
    max: Size
    """The largest size that the model is built and verified for."""
