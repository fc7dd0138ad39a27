"""Operators of this project on Python numbers, by which graphs name them while they are converted.

Those that compute take the place of one of TorchScript each, such as
``stateful_pipeline::number_floordiv``, and have the same overloads.  PyTorch's exporter writes them
as they are, in a domain of their own; :mod:`.forms` writes them in operators of ONNX.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.onnx import JitScalarType  # type: ignore[attr-defined]

from stateful_pipeline.model import jit
from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.python_numbers.forms import (
    DOMAIN,
    FORMS,
    GIVES,
    READS,
    own_name,
)

TYPES = {"int": jit.INT, "float": jit.FLOAT, "bool": jit.BOOL}
"""The types of numbers, by their names in schemas."""
DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_LETTERS = {dtype: kind[0] for kind, dtype in DTYPES.items()}
_PYTHON: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}

_OURS = "stateful_pipeline"
READ = {kind: f"{_OURS}::number_read_{kind}" for kind in TYPES}
"""Operators that read a number from a tensor of one element."""
CAST = f"{_OURS}::number_cast"
"""A number in the dtype of a code, to be given to an operator that computes in that dtype."""
TENSOR = f"{_OURS}::number_tensor"
"""A tensor without dimensions of a number, in the dtype of a code."""
_LIBRARY: Any = torch.library.Library(_OURS, "FRAGMENT")  # type: ignore[no-untyped-call]
"""The operators can be run, since TorchScript's passes do that where all operands are constants."""


def ours(kind: str) -> str:
    """Return our name of an operator on numbers."""
    return f"{_OURS}::{own_name(kind)}"


@functools.cache
def number_schemas(kind: str) -> tuple[Any, ...]:
    """Return the schemas of an operator that are about numbers of known types alone."""
    return tuple(schema for schema in jit.overloads(kind) if _is_of_numbers(schema))


def _is_of_numbers(schema: Any) -> bool:
    if schema.overload_name == "int_to_int":  # of pow, which gives floats in TorchScript's code
        return False
    types = [str(part.type) for part in (*schema.arguments, *schema.returns)]
    return len(schema.returns) == 1 and all(kind in TYPES for kind in types)


def _defined() -> tuple[str, ...]:
    """Define the operators; return the names of those that compute numbers from numbers."""
    for kind, name in READ.items():
        _define(f"{name}(Tensor value) -> {kind}", _PYTHON[kind])
    for kind in ("int", "float"):
        _define(f"{CAST}.{kind}({kind} value, int dtype) -> {kind}", lambda value, code: value)
        _define(f"{TENSOR}.{kind}({kind} value, int dtype) -> Tensor", _tensor)
    for kind in FORMS:
        for schema in number_schemas(kind):
            function = jit.operator(kind, schema.overload_name)
            _define(str(schema).replace(kind, ours(kind), 1), function)
    return tuple(map(ours, FORMS))


def _tensor(value: float, code: int) -> torch.Tensor:
    return torch.tensor(value, dtype=jit.dtype_of(code))


def _define(schema: str, function: Callable[..., Any] | None) -> None:
    own = schema.removeprefix(f"{_OURS}::")
    _LIBRARY.define(own)
    _LIBRARY.impl(own.partition("(")[0], function, "CompositeExplicitAutograd")


_COMPUTING = _defined()


def forms() -> dict[str, Callable[..., Any]]:
    """Return what the exporter writes for the operators of this file, by their names."""
    return {
        **dict.fromkeys(_COMPUTING, _computation),
        **dict.fromkeys(READ.values(), _read),
        CAST: _as_dtype,
        TENSOR: _as_dtype,
    }


def _computation(g: Any, *numbers: Any) -> Any:
    """An operator of our own, with the types of the numbers that it reads and gives as letters."""
    node = g.original_node
    types = [value.type() for value in node.inputs()]
    operands = [_of_type(g, *pair) for pair in zip(numbers, types, strict=True)]
    letters = {
        f"{READS}_s": "".join(_LETTERS[type_.dtype()] for type_ in types),
        f"{GIVES}_s": _LETTERS[node.output().type().dtype()],
    }
    # An operator of ONNX is not to be called as one that has a symbolic function.
    name = node.kind().partition("::")[2]
    result = g.op(f"{DOMAIN}::{name}", *operands, **letters)
    result.setType(node.output().type())
    return result


def _of_type(g: Any, number: Any, type_: Any) -> Any:
    """A number of the dtype that its type in the program has, which the exporter may have lost."""
    dtype = JitScalarType.from_dtype(type_.dtype())
    if JitScalarType.from_value(number, JitScalarType.UNDEFINED) == dtype:
        return number
    return g.op("Cast", number, to_i=dtype.onnx_type())


def _read(g: Any, value: Any) -> Any:
    """The element of a tensor as a number."""
    if torch_exporter.rank(value) != 0:
        shape = g.op("Constant", value_t=torch.empty(0, dtype=torch.int64))
        value = g.op("Reshape", value, shape)
    dtype = g.original_node.output().type().dtype()
    return g.op("Cast", value, to_i=JitScalarType.from_dtype(dtype).onnx_type())


def _as_dtype(g: Any, number: Any, code: Any) -> Any:
    """A number as a tensor without dimensions, of the dtype that an operator computes in."""
    dtype = JitScalarType(torch_exporter.argument(code, "i"))
    return g.op("Cast", number, to_i=dtype.onnx_type())
