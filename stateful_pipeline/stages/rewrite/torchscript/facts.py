"""Operators that ask about a tensor rather than compute with it: ranks, sizes, dtypes.

Where the answer is the same at all sizes it is a constant here, and the operator disappears.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.model.program import dim_text
from stateful_pipeline.stages.rewrite.torchscript.containers import new_list
from stateful_pipeline.stages.rewrite.torchscript.values import Held, Known, Plain, Ref
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

Fact = Callable[[Writer, list[Any]], Any]


def _of_fake(ask: Callable[[torch.Tensor], Any]) -> Fact:
    """Return a handler that answers from the fake tensor, if there is one."""

    def handle(writer: Writer, inputs: list[Any]) -> Any:
        held = _held(writer, inputs)
        return None if held is None or held.fake is None else Known(ask(held.fake))

    return handle


def _held(writer: Writer, inputs: list[Any]) -> Held | None:
    """Return a value with the shape and dtype of the tensor that is asked about."""
    if len(inputs) != 1 and not (inputs and isinstance(inputs[0], Ref)):
        return None
    return writer.read(inputs[0]) if isinstance(inputs[0], Ref) else None


def _size(writer: Writer, inputs: list[Any]) -> Any:
    held = _held(writer, inputs)
    if held is None or held.fake is None:
        return None
    if len(inputs) == 1:
        dims = [_dimension(writer, held, index) for index in range(held.fake.dim())]
        return new_list(writer, dims, jit.INT)
    if not isinstance(inputs[1], Known):
        return None
    index = inputs[1].value
    if not -held.fake.dim() <= index < held.fake.dim():
        raise writer.refusal(f"dimension {index} of a tensor that has {held.fake.dim()}")
    return _dimension(writer, held, index)


def _dimension(writer: Writer, held: Held, index: int) -> Any:
    assert held.fake is not None  # the caller asked
    size = held.fake.shape[index]
    known = dim_text(size, {})
    if isinstance(known, int):
        return Known(known)
    values = [held.value, writer.constant(index)]
    [output] = writer.node_of("aten::size", values, [jit.INT])
    return Plain(output, writer.scope, size)


def _length(writer: Writer, inputs: list[Any]) -> Any:
    held = _held(writer, inputs)
    if held is None or held.fake is None or held.fake.dim() == 0:
        return None
    return _dimension(writer, held, 0)


def _numel(writer: Writer, inputs: list[Any]) -> Any:
    held = _held(writer, inputs)
    if held is None:
        return None
    number = writer.number("aten::numel", held)
    return Known(number.fake) if isinstance(number.fake, int) else number


def _false(writer: Writer, inputs: list[Any]) -> Any:
    return Known(False)


def _learning(writer: Writer, inputs: list[Any]) -> Any:
    """Answer as under ``no_grad``, unless that leads to a fused kernel of a Transformer layer."""
    return Known(writer.has_fast_path)


FACTS: dict[str, Fact] = {
    "aten::dim": _of_fake(lambda fake: fake.dim()),
    "prim::ndim": _of_fake(lambda fake: fake.dim()),
    "aten::size": _size,
    "aten::len": _length,
    "aten::numel": _numel,
    "prim::dtype": _of_fake(lambda fake: jit.dtype_code(fake.dtype)),
    "prim::device": lambda writer, inputs: Known(torch.device("cpu")),
    "prim::layout": _of_fake(lambda fake: 0),
    "aten::is_floating_point": _of_fake(lambda fake: fake.is_floating_point()),
    "aten::is_complex": _of_fake(lambda fake: fake.is_complex()),
    "prim::is_cuda": _false,
    "prim::is_sparse": _false,
    "prim::is_quantized": _false,
    "prim::is_mkldnn": _false,
    "prim::is_nested": _false,
    "prim::is_mps": _false,
    "prim::is_meta": _false,
    "prim::requires_grad": _learning,
    "aten::is_grad_enabled": _learning,
    "aten::requires_grad": _learning,
    "aten::is_autocast_enabled": _false,
    "aten::is_autocast_cpu_enabled": _false,
    "aten::is_scripting": lambda writer, inputs: Known(True),
}
"""How to answer, by kind of operator; a handler returns None to leave the operator in the graph."""
