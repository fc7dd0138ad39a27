"""Activations, and losses of single elements.

ONNX's own operators are written where ONNX Runtime has a kernel for the dtype::

    softplus x   = log(1 + exp(beta x)) / beta, and x where beta x is above a threshold
    logsigmoid x = -softplus(-x)
    mish x       = x tanh(softplus x)
"""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.stages.export.symbolics.functions import expm1, log1p
from stateful_pipeline.stages.export.symbolics.writing import (
    Elementwise,
    Symbolic,
    Writer,
    parsed,
    unary,
)

_DOUBLE = torch.float64
"""What ONNX Runtime has no kernel for, of many operators that ONNX has."""
_LINEAR = 20.0
"""From here on, ``softplus x`` is ``x`` to the last digit of float32."""


def _soft(op: Writer, x: Any) -> Any:
    """``log(1 + exp x)``."""
    if op.dtype != _DOUBLE:
        return op("Softplus", x)
    return op("Add", op("Max", x, 0), log1p(op, op("Exp", op("Neg", op("Abs", x)))))


def softplus(op: Writer, x: Any, beta: Any, threshold: Any) -> Any:
    """``F.softplus``."""
    steepness, end = parsed(beta, "f"), parsed(threshold, "f")
    if steepness == 1 and end >= _LINEAR and op.dtype != _DOUBLE:
        return _soft(op, x)
    scaled = op("Mul", x, steepness)
    curved = op("Div", _soft(op, scaled), steepness)
    return op.where(op("Greater", scaled, end), x, curved)


def log_sigmoid(op: Writer, x: Any) -> Any:
    """``F.logsigmoid``."""
    return op("Neg", _soft(op, op("Neg", x)))


def mish(op: Writer, x: Any) -> Any:
    """``F.mish``."""
    return op("Mul", x, op("Tanh", _soft(op, x)))


def _below(op: Writer, x: Any, negative: Any, positive: Any) -> Any:
    """``positive`` where ``x`` is above 0, and elsewhere ``negative``."""
    return op.where(op("Greater", x, 0), positive, negative)


def _elu(op: Writer, x: Any, alpha: float, scale: float, steepness: float) -> Any:
    curved = expm1(op, op("Mul", x, steepness))
    return _below(op, x, op("Mul", curved, alpha * scale), op("Mul", x, scale))


def elu(op: Writer, x: Any, alpha: Any, scale: Any, steepness: Any) -> Any:
    """``F.elu``."""
    return _elu(op, x, *(parsed(value, "f") for value in (alpha, scale, steepness)))


def celu(op: Writer, x: Any, alpha: Any) -> Any:
    """``F.celu``."""
    slope = parsed(alpha, "f")
    return _elu(op, x, slope, 1.0, 1 / slope)


def selu(op: Writer, x: Any) -> Any:
    """``F.selu``, with the constants of its paper (Klambauer et al., 2017)."""
    return _elu(op, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


def leaky_relu(op: Writer, x: Any, slope: Any) -> Any:
    """``F.leaky_relu``."""
    return _below(op, x, op("Mul", x, slope), x)


def hard_sigmoid(op: Writer, x: Any) -> Any:
    """``F.hardsigmoid``: ``x + 3`` between 0 and 6, divided by 6."""
    return op("Div", op("Clip", op("Add", x, 3), 0, 6), 6)


def hard_swish(op: Writer, x: Any) -> Any:
    """``F.hardswish``."""
    return op("Div", op("Mul", x, op("Clip", op("Add", x, 3), 0, 6)), 6)


def hard_shrink(op: Writer, x: Any, bound: Any) -> Any:
    """``F.hardshrink``: 0 between ``-bound`` and ``bound``; NaN stays NaN."""
    return op.where(op("LessOrEqual", op("Abs", x), bound), op.number(0), x)


def soft_shrink(op: Writer, x: Any, bound: Any) -> Any:
    """``F.softshrink``: nearer to 0 by ``bound``, as far as that goes; NaN stays NaN."""
    nearer = op("Sub", op("Abs", x), bound)
    negative = op("Less", op("Add", x, bound), 0)
    return op.signed(op.where(op("Less", nearer, 0), op.number(0), nearer), negative)


def logit(op: Writer, x: Any, epsilon: Any) -> Any:
    """``torch.logit``, of numbers that are kept off 0 and 1 by ``epsilon``."""
    least = parsed(epsilon, "f")
    if least is not None:
        x = op("Min", op("Max", x, least), 1 - least)
    return op("Log", op("Div", x, op("Sub", 1, x)))


def threshold(op: Writer, x: Any, bound: Any, value: Any) -> Any:
    """``F.threshold``: ``value`` where ``x`` is not above ``bound``."""
    return op.where(op("LessOrEqual", x, bound), value, x)


def smooth_l1_loss(op: Writer, x: Any, y: Any, reduction: Any, beta: Any) -> Any:
    """``F.smooth_l1_loss``: a square near 0, and a distance elsewhere."""
    distance, turn = op("Abs", op("Sub", x, y)), parsed(beta, "f")
    if turn == 0:
        return _reduced(op, distance, reduction)
    square = op("Div", op("Mul", op("Mul", distance, 0.5), distance), turn)
    line = op("Sub", distance, 0.5 * turn)
    return _reduced(op, op.where(op("Less", distance, turn), square, line), reduction)


def huber_loss(op: Writer, x: Any, y: Any, reduction: Any, delta: Any) -> Any:
    """``F.huber_loss``: ``delta`` times what the smooth L1 loss is."""
    distance, turn = op("Abs", op("Sub", x, y)), parsed(delta, "f")
    square = op("Mul", op("Mul", distance, 0.5), distance)
    line = op("Mul", op("Sub", distance, 0.5 * turn), turn)
    return _reduced(op, op.where(op("LessOrEqual", distance, turn), square, line), reduction)


def cross_entropy_with_logits(
    op: Writer, x: Any, y: Any, weight: Any, positive: Any, reduction: Any
) -> Any:
    """``F.binary_cross_entropy_with_logits``, which no logit makes infinite."""
    tail = _soft(op, op("Neg", x))
    if positive is not None:
        tail = op("Mul", op("Add", op("Mul", op("Sub", positive, 1), y), 1), tail)
    losses = op("Add", tail, op("Mul", op("Sub", 1, y), x))
    if weight is not None:
        losses = op("Mul", losses, weight)
    return _reduced(op, losses, reduction)


def _reduced(op: Writer, losses: Any, reduction: Any) -> Any:
    """Return the losses, their mean or their sum, as PyTorch numbers these."""
    kind = ("", "ReduceMean", "ReduceSum")[parsed(reduction, "i")]
    return op(kind, losses, keepdims_i=0) if kind else losses


ACTIVATIONS: dict[str, Symbolic] = {
    "aten::softplus": Elementwise(softplus, 1),
    "aten::log_sigmoid": unary(log_sigmoid),
    "aten::mish": unary(mish),
    "aten::elu": Elementwise(elu, 1, only=_DOUBLE),
    "aten::celu": Elementwise(celu, 1, only=_DOUBLE),
    "aten::selu": Elementwise(selu, 1, only=_DOUBLE),
    "aten::leaky_relu": Elementwise(leaky_relu, 2, only=_DOUBLE),
    "aten::hardsigmoid": Elementwise(hard_sigmoid, 1, only=_DOUBLE),
    "aten::hardswish": Elementwise(hard_swish, 1, only=_DOUBLE),
    "aten::hardshrink": Elementwise(hard_shrink, 2),
    "aten::softshrink": Elementwise(soft_shrink, 2),
    "aten::logit": Elementwise(logit, 1),
    "aten::threshold": Elementwise(threshold, 3),
    "aten::smooth_l1_loss": Elementwise(smooth_l1_loss, 2, reduces=True),
    "aten::huber_loss": Elementwise(huber_loss, 2, reduces=True),
    "aten::binary_cross_entropy_with_logits": Elementwise(
        cross_entropy_with_logits, 4, reduces=True
    ),
}
"""Operators of this file."""
