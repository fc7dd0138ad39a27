"""Decides, while rewriting, what numbers and flags are, where sizes and constants determine it.

Integers of Python are exact and have no side effects, so that an operator on known or symbolic ones
is computed here.  What depends on the values of tensors stays in the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.sizes import decided
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Known,
    Plain,
    Ref,
    Root,
)

_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": torch.sym_not,
    "aten::Int": lambda value: value,
    "prim::min": torch.sym_min,
    "prim::max": torch.sym_max,
}
"""Operators on integers that symbolic ones have too."""

_IDENTITY: dict[str, Callable[[Any, Any], bool]] = {
    "aten::__is__": lambda a, b: a is b,
    "aten::__isnot__": lambda a, b: a is not b,
}


def identity(kind: str, a: Any, b: Any) -> Known | None:
    """Return what ``a is b`` gives, where that is known: for None and for tensors."""
    if kind not in _IDENTITY:
        return None
    none = Known(None)
    if a == none or b == none or (isinstance(a, Ref) and isinstance(b, Ref)):
        same = a == b
        if not same and isinstance(a, Ref) and isinstance(b, Ref) and not _is_one(a, b):
            return None
        return Known(same if kind == "aten::__is__" else not same)
    return None


def _is_one(a: Ref, b: Ref) -> bool:
    """Whether both references mean one object each, whichever way a loop or a branch went."""
    return all(isinstance(x.base, Root) and not x.base.sources for x in (a, b))


def fold(kind: str, overload: str, arguments: list[Any]) -> Known | None:
    """Return the result of an operator, or None if it is no number, flag or string.

    Args:
        kind: The operator.
        overload: Its overload.
        arguments: Numbers, flags, strings, lists of them, and tensors.
    """
    function = jit.operator(kind, overload)
    if function is None or not arguments:
        return None
    try:
        result = function(*arguments)
    except Exception:  # noqa: BLE001 - eager raises it too, if it ever gets there
        return None
    plain = isinstance(result, bool | int | float | str | torch.device) or result is None
    return Known(result) if plain else None


def symbolic(kind: str, arguments: list[Any]) -> Any:
    """Return the symbolic result of an operator on integers, or None if there is none.

    A result that is the same at all sizes comes as a :class:`Known`.
    """
    function = _SYMBOLIC.get(kind)
    values = [_symbol(argument) for argument in arguments]
    if function is None or not values or any(value is None for value in values):
        return None
    try:
        result = function(*values)
    except Exception:  # noqa: BLE001 - such as a division by a symbol that may be zero
        return None
    truth = decided(result)
    if truth is not None:
        return Known(truth)
    if isinstance(result, torch.SymInt):
        expression = result.node.expr
        return Known(int(expression)) if expression.is_Integer else result
    return Known(result) if isinstance(result, int) else result


def _symbol(argument: Any) -> Any:
    if isinstance(argument, Known):
        return argument.value if isinstance(argument.value, int) else None
    return argument.fake if isinstance(argument, Plain) else None
