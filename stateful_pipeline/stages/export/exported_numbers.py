"""ONNX forms of arithmetic on Python numbers, for programs captured with ``torch.export``.

A number that depends on data (``x.mean().item()``, a counter that is a state) is a symbol to
``torch.export``, and what is computed from it are calls of Python's operators.  Here they are
written in int64, float64 and bool as Python computes them, with the forms that TorchScript's
operators on numbers have, too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from stateful_pipeline.model import python_math
from stateful_pipeline.stages.export.python_numbers.forms import FORMS
from stateful_pipeline.stages.export.python_numbers.nodes import DTYPES, Nodes, Number

op: Any = opset18  # its types know no values of the IR

_KINDS: dict[Callable[..., Any], str] = {
    operator.add: "aten::add",
    operator.sub: "aten::sub",
    operator.mul: "aten::mul",
    operator.truediv: "aten::div",
    operator.floordiv: "aten::floordiv",
    operator.mod: "aten::remainder",
    operator.pow: "aten::pow",
    operator.neg: "aten::neg",
    operator.abs: "prim::abs",
    operator.lshift: "aten::__lshift__",
    operator.rshift: "aten::__rshift__",
    operator.and_: "aten::__and__",
    operator.or_: "aten::__or__",
    operator.eq: "aten::eq",
    operator.ne: "aten::ne",
    operator.lt: "aten::lt",
    operator.le: "aten::le",
    operator.gt: "aten::gt",
    operator.ge: "aten::ge",
    math.floor: "aten::floor",
    math.ceil: "aten::ceil",
    math.trunc: "aten::Int",
    round: "aten::round",
    torch.sym_not: "aten::__not__",
    torch.sym_min: "prim::min",
    torch.sym_max: "prim::max",
    torch.sym_float: "aten::Float",
    torch.sym_int: "aten::Int",
    torch.sym_sqrt: "aten::sqrt",
}
"""The operators of TorchScript that compute what these functions do on numbers."""

_GIVES = {
    **dict.fromkeys(("aten::div", "aten::Float", "aten::sqrt"), "f"),
    **dict.fromkeys(("aten::Int", "aten::floor", "aten::ceil", "aten::round"), "i"),
    **dict.fromkeys((f"aten::{kind}" for kind in ("eq", "ne", "lt", "le", "gt", "ge")), "b"),
    "aten::__not__": "b",
}
"""The type of a result, by its first letter, where the operands do not say it."""
NUMBER = "stateful_pipeline.symbol"
"""The key under which values that are Python numbers, and no tensors, note their dtype.

The exporter takes all that are floats for float32.
"""
_LOGICAL = frozenset({"aten::__and__", "aten::__or__"})


def arithmetic() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of functions of numbers, for ``custom_translation_table``."""
    return {
        **{function: functools.partial(_translated, kind) for function, kind in _KINDS.items()},
        torch.sym_sum: _sum,
        torch.ops.aten._local_scalar_dense.default: _item,
        **{python_math.operator(n): functools.partial(_function, n) for n in python_math.NAMES},
    }


class _Traced(Nodes):
    """Nodes that go to the exporter, which is translating a call."""

    def _node(
        self,
        kind: str,
        values: list[ir.Value],
        attributes: dict[str, Any],
        dtype: ir.DataType | None,
    ) -> ir.Value:
        made: ir.Value = getattr(op, kind)(*values, **attributes)
        assert dtype is not None  # numbers have dtypes from the start
        made.type = ir.TensorType(dtype)
        made.shape = ir.Shape([])
        made.meta[NUMBER] = dtype
        return made


def is_number(value: Any) -> bool:
    """Whether a value of the exporter is a Python number: it promotes as one."""
    return isinstance(value, ir.Value) and NUMBER in value.meta


def typed(value: Any) -> Any:
    """Return an argument; where it is a Python number, give the value its own dtype first."""
    if is_number(value):
        value.type = ir.TensorType(value.meta[NUMBER])
    return value


def restore_types(model: ir.Model) -> None:
    """Give all values that are Python numbers their own dtypes."""
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                typed(value)


def _translated(kind: str, *numbers: Number) -> ir.Value:
    o = _Traced()
    letters = "".join(_letter(typed(number)) for number in numbers)
    gives = _GIVES.get(kind, "")
    common = next(letter for letter in "fib" if letter in letters + gives * (gives == "f"))
    if common == "b" and not gives and kind not in _LOGICAL:
        common = "i"  # True + True is 2
    operands = [o.cast(number, common) for number in numbers]
    result = o.cast(FORMS[kind](o, *operands), gives or common)
    return _own(result) if any(result is number for number in numbers) else result


def _own(value: ir.Value) -> ir.Value:
    """Return a value of the same number; the exporter names what a translation returns."""
    same: ir.Value = op.Identity(value)
    same.meta[NUMBER] = value.dtype
    return same


def _letter(number: Number) -> str:
    if not isinstance(number, ir.Value):
        return type(number).__name__[0]
    assert number.dtype is not None  # a symbol of the program, of which the exporter knows it
    return _letter_of(number.dtype)


def _letter_of(dtype: ir.DataType) -> str:
    return "b" if dtype == DTYPES["b"] else "f" if dtype.is_floating_point() else "i"


def _sum(numbers: list[ir.Value]) -> ir.Value:
    return functools.reduce(functools.partial(_translated, "aten::add"), numbers)


def _function(name: str, numbers: list[ir.Value]) -> ir.Value:
    """A function of ``math``, on tensors without dimensions."""
    kind = "prim::abs" if name == "fabs" else f"aten::{name}"
    same: ir.Value = op.Identity(FORMS[kind](_Traced(), *numbers))
    return same


def _item(tensor: ir.Value) -> ir.Value:
    """``tensor.item()``: the number in a tensor of one element."""
    flat = op.Reshape(tensor, op.Constant(value=ir.tensor([], dtype=ir.DataType.INT64)))
    assert tensor.dtype is not None
    return _Traced().cast(flat, _letter_of(tensor.dtype))
