"""What the ONNX forms of operators are written with.

A form is written on tensors of one dtype, the one that PyTorch computes in, and Python numbers are
constants of this dtype.  It serves both exporters: values are those of a TorchScript graph, or of
the IR of ONNX.  The TorchScript exporter counts each 0-d tensor as a Python number and casts it as
one; where that would lose digits, a form gets 0-d tensors with one dimension instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch.onnx import JitScalarType  # type: ignore[attr-defined]

from stateful_pipeline.stages.export import torch_exporter

Symbolic = Callable[..., Any]
"""Writes one node of a TorchScript graph as ONNX operators: graph, inputs -> results.

``NotImplemented`` instead of a result leaves the node to PyTorch's exporter.
"""
_AS_NUMBERS = frozenset({torch.float32, torch.int64, torch.bool})
"""Dtypes that the exporter takes for 0-d tensors of their kind."""
_HALVES = frozenset({torch.float16, torch.bfloat16})
END = 2**63 - 1
"""The end of a slice that goes to the last element."""


class Writer:
    """Writes ONNX operators on values of one dtype.

    Attributes:
        graph: The exporter's graph.
        dtype: The dtype that Python numbers get.
        result: The dtype of what is written in the end, float16 where it is computed in float32.
    """

    def __init__(self, graph: Any, dtype: torch.dtype, result: torch.dtype | None = None):
        self.graph = graph
        self.dtype = dtype
        self.result = result or dtype

    def __call__(self, kind: str, *operands: Any, **attributes: Any) -> Any:
        """Write the operator ``kind``; Python numbers among its operands become constants."""
        values = [self.number(o) if isinstance(o, int | float) else o for o in operands]
        return self.graph.op(kind, *values, **attributes)

    def of(self, dtype: torch.dtype) -> Writer:
        """Return what writes values of another dtype to this graph."""
        return Writer(self.graph, dtype)

    def number(self, number: float) -> Any:
        """Return a constant of this writer's dtype."""
        return self.graph.op("Constant", value_t=torch.tensor(number, dtype=self.dtype))

    def ints(self, *numbers: int) -> Any:
        """Return a constant int64 vector, as shapes and axes are."""
        return self.graph.op("Constant", value_t=torch.tensor(numbers, dtype=torch.int64))

    def cast(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """Return ``value``, a tensor or a number, in this writer's dtype or in another."""
        wanted = dtype or self.dtype
        if isinstance(value, int | float):
            return self.of(wanted).number(value)
        known = constant_of(value)
        if known is not None:
            return self.graph.op("Constant", value_t=known.to(wanted))
        if dtype_of(value) == wanted:
            return value
        return self.graph.op("Cast", value, to_i=onnx_type(wanted))

    def rounded(self, value: Any) -> Any:
        """Return ``value`` with the digits that the dtype of the result has."""
        return self.cast(self.cast(value, self.result))

    def shape(self, value: Any, dims: Sequence[int] | None = None) -> Any:
        """Return the sizes of ``value``, of all its dimensions or of ``dims``, as a vector."""
        shape = self.graph.op("Shape", value)
        return shape if dims is None else self.graph.op("Gather", shape, self.ints(*dims))

    def signbit(self, value: Any) -> Any:
        """Return where floating-point numbers are negative, or -0."""
        return self.either(self("Less", value, 0), self("Less", self("Reciprocal", value), 0))

    def signed(self, value: Any, negative: Any) -> Any:
        """Return the size of ``value``, negative where ``negative`` holds, also if it is 0.

        It is a product, since ONNX Runtime's ``Where`` may give 0 for -0.
        """
        return self(
            "Mul", self("Abs", value), self.where(negative, self.number(-1), self.number(1))
        )

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Return ``yes`` where ``condition`` holds and ``no`` elsewhere."""
        return self("Where", condition, yes, no)

    def diagonal(self, shape: Any, shift: int = 0) -> Any:
        """Return where the diagonal of a matrix of ``shape`` is, ``shift`` columns to the right."""
        ones = self(
            "EyeLike", self("ConstantOfShape", shape), dtype_i=onnx_type(torch.int32), k_i=shift
        )
        return self("Cast", ones, to_i=onnx_type(torch.bool))

    def either(self, *conditions: Any) -> Any:
        """Return where one of ``conditions`` holds."""
        first, *others = conditions
        for other in others:
            first = self("Or", first, other)
        return first


def rank_of(value: Any) -> int:
    """Return the rank of a tensor.

    Raises:
        RuntimeError: It is not known.
    """
    if isinstance(value, ir.Value):
        rank = None if value.shape is None else value.shape.rank()
    else:
        rank = torch_exporter.rank(value)
    if rank is None:
        raise RuntimeError("an operator needs the rank of a tensor, which is not known")
    return rank


def onnx_type(dtype: torch.dtype) -> int:
    """Return the number that ONNX has for ``dtype``."""
    code: Any = JitScalarType.from_dtype(dtype).onnx_type()
    return int(code)


def dtype_of(value: Any) -> torch.dtype | None:
    """Return the dtype of a tensor, or of a constant; None if it is not known."""
    if isinstance(value, ir.Value):
        return None if value.dtype is None else to_torch_dtype(value.dtype)
    kind = value.type()
    return kind.dtype() if kind.kind() == "TensorType" else None


def constant_of(value: Any) -> torch.Tensor | None:
    """Return what a value of a TorchScript graph is, if it is a constant tensor.

    Those of the other exporter are folded when its model is complete.
    """
    if isinstance(value, ir.Value):
        return None
    node = value.node()
    known = node.kind() == "onnx::Constant" and node.kindOf("value") == "t"
    return node.t("value") if known else None


def result_dtype(g: Any, index: int = 0) -> torch.dtype | None:
    """Return the dtype that a result of the node that is being written has in PyTorch."""
    return dtype_of(list(g.original_node.outputs())[index])


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return what PyTorch computes results of ``dtype`` in: float32 for float16 and bfloat16."""
    return torch.float32 if dtype in _HALVES else dtype


def parsed(value: Any, kind: str) -> Any:
    """Return an argument that is known before the model runs: "i", "f", "b", "s", or "is".

    None stays None, and so does what is no value of a TorchScript graph.
    """
    if not isinstance(value, torch._C.Value):
        return value
    return None if torch_exporter.is_none(value) else torch_exporter.constant(value, kind)


def parsed_dims(value: Any, rank: int) -> list[int]:
    """Return dimensions, none of them negative; all of them where none are given."""
    dims: list[int] = []
    if not torch_exporter.is_none(value):
        single = value.node().kind() == "onnx::Constant" and value.node().t("value").dim() == 0
        dims = [parsed(value, "i")] if single else torch_exporter.argument(value, "is")
    return [dim % rank for dim in dims] or list(range(rank))


def lifted(op: Writer, value: Any) -> Any:
    """Return a 0-d tensor with one dimension if the exporter would cast it, and others as is."""
    if torch_exporter.rank(value) != 0 or value.node().kind() == "onnx::Constant":
        return value
    result = op("Unsqueeze", value, op.ints(0))
    result.setType(value.type().with_sizes([1]))
    return result


@dataclass(frozen=True)
class Elementwise:
    """An operator that computes element by element.

    Attributes:
        form: Takes a writer, the operands and the other inputs of the node, and gives the result.
        operands: How many inputs of the node are operands; those left out are None.
        dtype: What to compute in; otherwise it is the dtype of the result, and for a result of
            bool that of the first operand.
        only: The dtype of the results that the form is for; others are the exporter's.
        promotes: Whether operands are cast to that dtype.
        reduces: Whether the form itself gives a tensor of the rank of the result.
        exact: Whether the form is for numbers that results of 16 bits would round.
    """

    form: Callable[..., Any]
    operands: int
    _: KW_ONLY
    dtype: torch.dtype | None = None
    only: torch.dtype | None = None
    promotes: bool = True
    reduces: bool = False
    exact: bool = False

    def leaves(self, result: torch.dtype, operands: Sequence[torch.dtype | None]) -> bool:
        """Whether operands of these dtypes, None for such numbers, are left to the exporter."""
        return self.exact and result in _HALVES and set(operands) == {result}

    def writer(self, graph: Any, first: torch.dtype | None, result: torch.dtype) -> Writer:
        """Return what to write results with, for a first operand of a dtype, or a number."""
        used = first if result == torch.bool else result
        return Writer(graph, self.dtype or computing_dtype(used or result), result)

    def __call__(self, g: Any, *arguments: Any) -> Any:
        """Write a node of a TorchScript graph; see :data:`Symbolic`."""
        result = result_dtype(g)
        if result is None or self.only not in (None, result):
            return NotImplemented
        if self.leaves(result, [dtype_of(value) for value in arguments[: self.operands]]):
            return NotImplemented
        op = self.writer(g, dtype_of(arguments[0]), result)
        given = [None if torch_exporter.is_none(v) else v for v in arguments[: self.operands]]
        lifts = not {op.dtype, *(dtype_of(value) for value in given if value)} <= _AS_NUMBERS
        if self.promotes:
            given = [value and op.cast(value) for value in given]
        if lifts:
            given = [value and lifted(op, value) for value in given]
        made = self.form(op, *given, *arguments[self.operands :])
        if lifts and not self.reduces and g.original_node.output().type().dim() == 0:
            made = op("Squeeze", made, op.ints(0))
        return op.cast(made, result)


def unary(form: Callable[..., Any]) -> Elementwise:
    """Make an operator on one tensor of a form, which takes a writer and the tensor."""
    return Elementwise(form, 1)


def binary(form: Callable[..., Any]) -> Elementwise:
    """Make an operator on two tensors or numbers of a form on a writer and these."""
    return Elementwise(form, 2)
