"""This project's ONNX forms of operators, for programs captured with ``torch.export``.

PyTorch's exporter of such programs has forms of its own that are not right for numbers that are
large, negative, a tie or -0, as that of TorchScript has.  Both get the same ones instead.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from onnxscript import opset18

from stateful_pipeline.model.torch_internals import exporters_form, has_form
from stateful_pipeline.stages.export.exported_numbers import is_number, typed
from stateful_pipeline.stages.export.symbolics import SYMBOLICS
from stateful_pipeline.stages.export.symbolics.whole import Whole
from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Writer,
    dtype_of,
)

op: Any = opset18  # its types know no values of the IR


def element_by_element() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of operators, for ``custom_translation_table``."""
    own = {
        overload: _translation(overload, form)
        for name, form in SYMBOLICS.items()
        if isinstance(form, Elementwise)
        for overload in _overloads(name)
    }
    whole = {
        overload: functools.partial(_whole, overload, form)
        for name, form in SYMBOLICS.items()
        if isinstance(form, Whole)
        for overload in _overloads(name, several=True)
    }
    met = {o: functools.partial(_exporters, o) for o in _known(_MEET)}
    filled = {o: functools.partial(_filled, o) for o in _known(_FILL)}
    indexed = {o: functools.partial(_indexed, o) for o in _known(_INDEXED)}
    made = {o: functools.partial(_made, o) for name in _MADE for o in _overloads(name)}
    return met | filled | indexed | made | own | whole


_MEET = (
    *("aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::div", "aten::pow"),
    *("aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge"),
    *("aten::maximum", "aten::minimum", "aten::where"),
)
"""Operators of which the exporter's own forms take tensors, and Python numbers that it knows."""


def _exporters(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """Write the exporter's own form, with the numbers among its operands in their dtype."""
    args = tuple(map(typed, args))
    if any(map(is_number, args)):
        operands = [o for o in args if isinstance(o, ir.Value | int | float)]
        given = [_shapeless(operand, "Tensor") for operand in operands]
        pairs = itertools.combinations(given, 2)
        dtype = functools.reduce(torch.promote_types, itertools.starmap(torch.result_type, pairs))
        args = _cast_numbers(args, dtype)
        overload = _of_tensors(overload)
    return exporters_form(overload)(*args, **kwargs)


def _of_tensors(overload: Any) -> Any:
    """Return ``aten.sub.Tensor`` for ``aten.sub.Scalar``, whose form makes constants of numbers."""
    name = overload._schema.overload_name.replace("Scalar", "Tensor")
    other = getattr(overload.overloadpacket, name, overload)
    return other if has_form(other) else overload


def _cast_numbers(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    writer = Writer(_Recorder(), dtype)
    return tuple(writer.cast(value) if is_number(value) else value for value in args)


_FILL = (
    *("aten::full", "aten::full_like", "aten::fill", "aten::masked_fill", "aten::scalar_tensor"),
    *("aten::arange", "aten::index_fill"),
)
"""Operators that make tensors of numbers, or put numbers into tensors."""


def _filled(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """Write the exporter's own form, with the numbers in the dtype of the result."""
    args = tuple(map(typed, args))
    if any(map(is_number, args)):
        code = kwargs.get("dtype", -1)
        named = {} if code == -1 else {"dtype": to_torch_dtype(ir.DataType(code))}
        args = _cast_numbers(args, _result_dtype(overload, args, named))
    made = exporters_form(overload)(*args, **kwargs)
    if overload is torch.ops.aten.scalar_tensor.default and isinstance(args[0], int | float):
        made.meta[_EXACT] = args[0]
    return made


_EXACT = "stateful_pipeline.exact"
"""Where a 0-d tensor keeps the Python number that the exporter made it of, in fewer digits."""

_INDEXED = ("aten::index_put", "aten::_unsafe_index_put")
"""Operators that write to places of an index, which the exporter's own forms leave as it is."""


def _indexed(overload: Any, base: Any, indices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Write the exporter's own form, with the indices in int64: ONNX has no narrower ones."""
    long = Writer(_Recorder(), torch.int64)
    wide = [
        long.cast(index) if _dtype(index) in (torch.int32, torch.int16, torch.int8) else index
        for index in indices
    ]
    for index, given in zip(wide, indices, strict=True):
        if index is not given:
            index.dtype, index.shape = ir.DataType.INT64, given.shape
    return exporters_form(overload)(base, wide, *args, **kwargs)


_MADE = (
    *("aten::hann_window", "aten::hamming_window", "aten::blackman_window"),
    *("aten::bartlett_window", "aten::kaiser_window"),
    *("aten::fft_fftfreq", "aten::fft_rfftfreq"),
)
"""Operators that make tensors of nothing but numbers that are known."""


def _made(overload: Any, *args: Any, dtype: int = -1, **kwargs: Any) -> Any:
    """Write what the operator gives: the formulas of ONNX have other factors."""
    if any(isinstance(value, ir.Value) for value in args):
        raise RuntimeError("the length of what is made varies: only fixed lengths have a form")
    given = {} if dtype in (-1, None) else {"dtype": to_torch_dtype(ir.DataType(dtype))}
    return op.Constant(value=ir.tensor(overload(*args, **given)))


def _known(names: Sequence[str]) -> list[Any]:
    """Return the overloads for which the exporter has a form; it decomposes the others."""
    return [o for name in names for o in _overloads(name) if has_form(o)]


def _overloads(name: str, *, several: bool = False) -> list[Any]:
    """Return what computes an operator, ``aten::div``, in a graph without writes.

    Args:
        name: The name of the operator.
        several: Whether it may have several results.
    """
    name = name.removeprefix("aten::")
    if name.startswith("__"):
        name += "_"  # which TorchScript's exporter takes off
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return []  # an operator of TorchScript alone
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return [o for o in overloads if _is_functional(o._schema) and (several or _is_one(o._schema))]


def _is_functional(schema: Any) -> bool:
    return not schema.is_mutable and all(str(result.type) == "Tensor" for result in schema.returns)


def _is_one(schema: Any) -> bool:
    return len(schema.returns) == 1


def _translation(overload: Any, form: Elementwise) -> Callable[..., Any]:
    def translate(*args: Any, **kwargs: Any) -> Any:
        arguments = _in_order(overload, tuple(map(typed, args)), kwargs)
        result = _result_dtype(overload, args, kwargs)
        operands = [_held_by(o, result) for o in arguments[: form.operands]]
        if form.only not in (None, result) or form.leaves(result, operands):
            return _exporters(overload, *args, **kwargs)
        writer = form.writer(_Recorder(), _dtype(arguments[0]), result)
        given = [_operand(writer, o, form.promotes) for o in arguments[: form.operands]]
        made = writer.cast(form.form(writer, *given, *arguments[form.operands :]), result)
        return op.Identity(made) if any(made is value for value in arguments) else made

    return translate


def _whole(overload: Any, form: Whole, *args: Any, **kwargs: Any) -> Any:
    """Write the form of an operator on whole tensors, or the exporter's own where it has none."""
    arguments = _in_order(overload, tuple(map(typed, args)), kwargs)
    made = form.write(_Recorder(), arguments)
    if made is NotImplemented:
        return exporters_form(overload)(*args, **kwargs)
    results = made if isinstance(made, tuple) else (made,)
    new = [op.Identity(v) if any(v is given for given in arguments) else v for v in results]
    return tuple(new) if isinstance(made, tuple) else new[0]


def _in_order(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return all arguments in the order of the operator's schema, as TorchScript has them."""
    parameters = overload._schema.arguments
    rest = [kwargs.get(p.name, p.default_value) for p in parameters[len(args) :]]
    return [*args, *rest]


def _dtype(value: Any) -> torch.dtype | None:
    return dtype_of(value) if isinstance(value, ir.Value) else None


def _is_exact(value: Any) -> bool:
    """Whether a value is a Python number of which a tensor keeps fewer digits."""
    is_kept = isinstance(value, ir.Value) and _EXACT in value.meta
    return is_kept and value.dtype != ir.DataType.DOUBLE


def _held_by(value: Any, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype of a value; of a Python number, ``dtype`` where that holds it, or None."""
    number = value.meta[_EXACT] if _is_exact(value) else value
    if isinstance(number, int | float):
        return dtype if torch.tensor(number, dtype=dtype).item() == number else None
    return _dtype(value)


def _operand(writer: Writer, value: Any, promotes: bool) -> Any:
    if isinstance(value, ir.Value):
        if promotes and _is_exact(value):
            return writer.number(value.meta[_EXACT])
        return writer.cast(value) if promotes else value
    return None if value is None else writer.number(value)


def _result_dtype(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.dtype:
    """Return the dtype that PyTorch gives the result, which it is asked without any data."""
    types = {p.name: str(p.type) for p in overload._schema.arguments}
    given = [_shapeless(value, kind) for value, kind in zip(args, types.values(), strict=False)]
    result = overload(*given, **{k: _shapeless(v, types[k]) for k, v in kwargs.items()})
    dtype: torch.dtype = result.dtype
    return dtype


def _shapeless(value: Any, kind: str) -> Any:
    """Return what has the dtype and the rank of a value, for a parameter of a type."""
    if isinstance(value, list | tuple):
        return [_shapeless(item, kind) for item in value]
    if not isinstance(value, ir.Value):
        return value
    if "Tensor" not in kind or is_number(value):
        return torch.ones((), dtype=dtype_of(value)).item()
    if value.shape is None:
        raise RuntimeError("an operator needs the rank of a tensor, which is not known")
    return torch.empty([1] * value.shape.rank(), dtype=dtype_of(value), device="meta")


class _Recorder:
    """Where a writer writes to: the node that the exporter is translating.

    Attributes of ONNX operators are named with their type, as for a TorchScript graph: ``axis_i``.
    """

    def op(self, kind: str, *values: Any, **attributes: Any) -> Any:
        """Write an operator; return its value, of which the exporter knows no dtype."""
        named = {n.rpartition("_")[0]: v for n, v in attributes.items() if n != "outputs"}
        if kind == "Constant":
            return op.Constant(value=ir.tensor(named["value"]))
        return getattr(op, kind)(*values, **named)
