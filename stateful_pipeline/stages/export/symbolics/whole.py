"""Operators on whole tensors that have one form for both exporters.

A form gets the arguments of an operator in the order of its schema: tensors as values of the graph
that is being written, all others as Python has them.  What it does not know before the model runs,
such as a size that varies, it computes in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from stateful_pipeline.model import jit
from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import (
    END,
    Writer,
    computing_dtype,
    constant_of,
    dtype_of,
    parsed,
    rank_of,
)

_KINDS = {"int": "i", "SymInt": "i", "float": "f", "bool": "b", "str": "s"}
"""How the exporter of TorchScript names the types of arguments."""


@dataclass(frozen=True)
class Whole:
    """An operator on whole tensors.

    Attributes:
        form: Takes a writer on the dtype that is computed in, and the arguments; gives the result,
            or as many of the results as anybody reads.  ``NotImplemented`` leaves the node to
            PyTorch's exporter.
    """

    form: Callable[..., Any]

    def write(self, graph: Any, arguments: Sequence[Any]) -> Any:
        """Write the operator; ``arguments`` are as the form wants them."""
        tensors = [v for a in arguments for v in (a if isinstance(a, list) else [a])]
        dtype = next((dtype_of(value) for value in tensors if _is_value(value)), None)
        if dtype is None:
            raise RuntimeError("an operator needs the dtype of a tensor, which is not known")
        return self.form(Writer(graph, computing_dtype(dtype), dtype), *arguments)

    def __call__(self, g: Any, *arguments: Any) -> Any:
        """Write a node of a TorchScript graph."""
        parameters = _parameters(g.original_node.kind(), arguments)
        return self.write(g, list(map(_argument, parameters, arguments)))


def _is_value(value: Any) -> bool:
    return isinstance(value, ir.Value | torch._C.Value)


def _parameters(kind: str, arguments: Sequence[Any]) -> list[str]:
    """Return the types of an operator's parameters, of the overload that fits the arguments.

    The node does not say which one it is, once its inputs are those of ONNX.
    """
    schemas = [schema for schema in jit.overloads(kind) if not schema.is_mutable]
    kinds = [[str(parameter.real_type) for parameter in s.arguments] for s in schemas]
    kinds = [types for types in kinds if len(types) == len(arguments) and "Dimname" not in types]
    return max(kinds, key=lambda types: sum(map(_fits, types, arguments)))


def _fits(kind: str, value: Any) -> bool:
    known = None if torch_exporter.is_none(value) else constant_of(value)
    number = known is not None and known.dim() == 0
    return (kind == "Tensor") != number


def _argument(kind: str, value: Any) -> Any:
    """Return an argument of a TorchScript graph as Python has it, or the value of a tensor."""
    kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional") else kind
    if torch_exporter.is_none(value):
        return None
    if kind == "Tensor":
        return value
    if kind == "List[Tensor]":
        return torch_exporter.items(value)
    if kind.startswith("List["):
        return torch_exporter.argument(value, "is")
    if kind == "number":
        known = constant_of(value)
        return value if known is None else known.item()
    if kind == "ScalarType":
        return jit.dtype_of(parsed(value, "i"))
    if kind == "bool":
        return bool(parsed(value, "b"))
    return parsed(value, _KINDS[kind])


def dtype_given(value: Any) -> torch.dtype | None:
    """Return the dtype in an argument: PyTorch's, or ONNX's number of it."""
    if value is None or isinstance(value, torch.dtype):
        return value
    return None if value == -1 else to_torch_dtype(ir.DataType(value))


def size_of(value: Any, dim: int) -> int | None:
    """Return a size of a tensor, or None where it varies."""
    if isinstance(value, ir.Value):
        size = None if value.shape is None else value.shape[dim]
        return size if isinstance(size, int) else None
    return torch_exporter.size(value, dim % rank_of(value))


def is_real(op: Writer) -> bool:
    """Whether what is written are floating-point numbers, which may be NaN."""
    return op.dtype.is_floating_point


def counting(op: Writer) -> Writer:
    """Return what writes numbers of the dtype that engines order, sum up and compare.

    They have no such operators for truth values and small integers.
    """
    return op if is_real(op) or op.dtype == torch.int64 else op.of(torch.int32)


def piece(op: Writer, value: Any, axis: int, start: int, end: int = END) -> Any:
    """Return what lies from ``start`` to ``end`` along ``axis``."""
    return op("Slice", value, op.ints(start), op.ints(end), op.ints(axis))


def largest(dtype: torch.dtype) -> float:
    """Return what no number of ``dtype`` is greater than."""
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def smallest(dtype: torch.dtype) -> float:
    """Return what no number of ``dtype`` is less than."""
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def positions(op: Writer, count: Any) -> Any:
    """Return 0, 1, ... as many as ``count``, an int64 vector of one element, says."""
    whole = op("Squeeze", count, op.ints(0))
    long = op.of(torch.int64)
    return long("Range", 0, whole, 1)


@dataclass(frozen=True)
class Lanes:
    """The elements along one dimension, for each position along the others.

    Attributes:
        value: A tensor of one dimension at least, in the dtype that is computed in.
        axis: The dimension, not negative.
        rank: How many dimensions ``value`` has.
        flat: Whether it was a tensor without dimensions, and the results are.
    """

    value: Any
    axis: int
    rank: int
    flat: bool

    @staticmethod
    def of(op: Writer, value: Any, dim: int | None) -> Lanes:
        """Return the lanes of ``value`` along ``dim``, or one of all elements."""
        rank = rank_of(value)
        if rank == 0 or dim is None:
            flat = op("Reshape", op.cast(value), op.ints(-1))
            return Lanes(flat, 0, 1, flat=True)
        return Lanes(op.cast(value), dim % rank, rank, flat=False)

    def length(self, op: Writer) -> Any:
        """Return how many elements a lane has, as a vector of one element."""
        return op.shape(self.value, [self.axis])

    def last(self, op: Writer) -> Any:
        """Return the tensor with the lanes along its last dimension."""
        others = [dim for dim in range(self.rank) if dim != self.axis]
        return self._moved(op, self.value, [*others, self.axis])

    def back(self, op: Writer, value: Any) -> Any:
        """Return a tensor with its last dimension where the lanes were."""
        order = list(range(self.rank - 1))
        order.insert(self.axis, self.rank - 1)
        return self._moved(op, value, order)

    def _moved(self, op: Writer, value: Any, order: list[int]) -> Any:
        same = order == list(range(self.rank))
        return value if same else op("Transpose", value, perm_i=order)

    def one(self, op: Writer, value: Any, keeps: bool) -> Any:
        """Return a result with one element for each lane; the dimension is there, of size 1."""
        return value if keeps and not self.flat else op("Squeeze", value, op.ints(self.axis))

    def all(self, op: Writer, value: Any) -> Any:
        """Return a result with as many elements as the operand."""
        return op("Squeeze", value, op.ints(0)) if self.flat else value
