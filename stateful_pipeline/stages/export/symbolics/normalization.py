"""Normalization, for which ONNX's operators keep epsilon in float32, or have no float64 kernel.

Each is ``(x - mean) / sqrt(variance + epsilon) * weight + bias``; RMSNorm takes 0 for the mean.
But for RMSNorm, these are for float64 only, and ONNX's operators for other dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.reductions import Reduction, reduction
from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Symbolic,
    Writer,
    parsed,
    rank_of,
    result_dtype,
)


def _for_float64(symbolic: Symbolic) -> Symbolic:
    """Make an operator of one that is for results of float64 only."""

    def chosen(g: Any, *arguments: Any) -> Any:
        return symbolic(g, *arguments) if result_dtype(g) == torch.float64 else NotImplemented

    return chosen


def rms_norm(g: Any, value: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
    """``F.rms_norm``; epsilon is that of the dtype that is computed in if it is left out."""
    made = _last(g, value, shape)
    least = (
        torch.finfo(made.op.dtype).eps
        if torch_exporter.is_none(epsilon)
        else float(parsed(epsilon, "f"))
    )
    result = _normal(made, made.value, least)
    return made.result(_affine(made.op, result, weight, None))


def layer_norm(
    g: Any, value: Any, shape: Any, weight: Any, bias: Any, epsilon: Any, fast: Any
) -> Any:
    """``F.layer_norm``."""
    made = _last(g, value, shape)
    result = _normal(made, _distance(made), parsed(epsilon, "f"))
    return made.result(_affine(made.op, result, weight, bias))


def group_norm(
    g: Any, value: Any, groups: Any, weight: Any, bias: Any, epsilon: Any, fast: Any
) -> Any:
    """``F.group_norm``: each group of channels of an example has a mean and a variance."""
    op = Writer(g, torch.float64)
    grouped = op("Reshape", value, op.ints(0, parsed(groups, "i"), -1))
    made = Reduction(op, grouped, [2], keeps=True)
    result = op("Reshape", _normal(made, _distance(made), parsed(epsilon, "f")), op.shape(value))
    return _affine(op, result, *_of_channels(op, value, weight, bias))


def batch_norm(
    g: Any,
    value: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: Any,
    momentum: Any,
    epsilon: Any,
    fast: Any,
) -> Any:
    """``F.batch_norm`` in eval mode, by a mean and a variance that are given."""
    if parsed(training, "b"):
        return NotImplemented
    op = Writer(g, torch.float64)
    mean, variance = _of_channels(op, value, mean, variance)
    deviation = op("Sqrt", op("Add", variance, parsed(epsilon, "f")))
    result = op("Div", op("Sub", value, mean), deviation)
    return _affine(op, result, *_of_channels(op, value, weight, bias))


def instance_norm(
    g: Any,
    value: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    measured: Any,
    momentum: Any,
    epsilon: Any,
    fast: Any,
) -> Any:
    """``F.instance_norm``: each channel of an example has a mean and a variance."""
    if not parsed(measured, "b"):
        return NotImplemented
    op = Writer(g, torch.float64)
    made = Reduction(op, value, list(range(2, rank_of(value))), keeps=True)
    result = _normal(made, _distance(made), parsed(epsilon, "f"))
    return _affine(op, result, *_of_channels(op, value, weight, bias))


def addmm(op: Writer, value: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Any:
    """``torch.addmm``: ``beta * value + alpha * (a @ b)``."""
    return op("Add", op("Mul", value, beta), op("Mul", op("MatMul", a, b), alpha))


def _last(g: Any, value: Any, shape: Any) -> Reduction:
    """Return a reduction along the last dimensions, as many as ``shape`` has sizes."""
    packed = torch_exporter.is_listed(shape)
    sizes = torch_exporter.items(shape) if packed else parsed(shape, "is")
    made = reduction(g, value, None, None)
    return replace(made, axes=made.axes[-len(sizes) :], keeps=True)


def _distance(made: Reduction) -> Any:
    return made.op("Sub", made.value, made("ReduceMean", made.value))


def _normal(made: Reduction, distance: Any, epsilon: float) -> Any:
    """Divide by the root of the mean square."""
    square = made("ReduceMean", made.op("Mul", distance, distance))
    return made.op("Div", distance, made.op("Sqrt", made.op("Add", square, epsilon)))


def _of_channels(op: Writer, value: Any, *parameters: Any) -> tuple[Any, ...]:
    """Return parameters of channels, which are the second dimension of ``value``."""
    shape = op.ints(-1, *[1] * (rank_of(value) - 2))
    return tuple(None if torch_exporter.is_none(p) else op("Reshape", p, shape) for p in parameters)


def _affine(op: Writer, value: Any, weight: Any, bias: Any) -> Any:
    if not torch_exporter.is_none(weight):
        value = op("Mul", value, op.cast(weight))
    return value if torch_exporter.is_none(bias) else op("Add", value, op.cast(bias))


_FLOAT64: dict[str, Callable[..., Any]] = {
    "aten::layer_norm": layer_norm,
    "aten::group_norm": group_norm,
    "aten::batch_norm": batch_norm,
    "aten::instance_norm": instance_norm,
}
NORMALIZATION: dict[str, Symbolic] = {
    "aten::rms_norm": rms_norm,
    **{name: _for_float64(symbolic) for name, symbolic in _FLOAT64.items()},
    "aten::addmm": Elementwise(addmm, 5, only=torch.float64),
}
"""Operators of this file, and the other that has attributes of float32."""
