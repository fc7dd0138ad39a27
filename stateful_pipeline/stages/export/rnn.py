"""ONNX forms of ``nn.RNN``'s operators, which PyTorch's exporter would unroll over time.

``aten::rnn_tanh`` and ``aten::rnn_relu`` are, layer by layer, the operator ``RNN`` of ONNX: the
same equation h' = f(W x + b_w + R h + b_r), the same order of weights and of directions.  Only
layouts differ: ONNX wants time first, gives ``[time, directions, batch, hidden]``, and takes both
biases as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset18

op: Any = opset18  # its types know no Python lists, which tracing turns into constants


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations to hand to ``torch.onnx.export`` as ``custom_translation_table``."""
    return {
        torch.ops.aten.rnn_tanh.input: _rnn_tanh,
        torch.ops.aten.rnn_relu.input: _rnn_relu,
    }


def _rnn_tanh(
    sequence: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    return _rnn("Tanh", sequence, hx, params, has_biases, num_layers, bidirectional, batch_first)


def _rnn_relu(
    sequence: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    return _rnn("Relu", sequence, hx, params, has_biases, num_layers, bidirectional, batch_first)


def _rnn(
    activation: str,
    sequence: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    directions = 2 if bidirectional else 1
    step = 4 if has_biases else 2
    value = op.Transpose(sequence, perm=[1, 0, 2]) if batch_first else sequence
    last = []
    for layer in range(num_layers):
        first = layer * directions
        own = [params[(first + d) * step : (first + d + 1) * step] for d in range(directions)]
        biases = [op.Concat(b_w, b_r, axis=0) for _, _, b_w, b_r in own] if has_biases else []
        value, h = op.RNN(
            value,
            _stack([weights[0] for weights in own]),
            _stack([weights[1] for weights in own]),
            _stack(biases) if has_biases else None,
            None,
            op.Slice(hx, [first], [first + directions], [0]),
            activations=[activation] * directions,
            direction="bidirectional" if bidirectional else "forward",
            hidden_size=int(hx.shape[2]),
        )
        # [time, directions, batch, hidden] -> [time, batch, directions * hidden]
        value = op.Reshape(op.Transpose(value, perm=[0, 2, 1, 3]), [0, 0, -1])
        last.append(h)
    output = op.Transpose(value, perm=[1, 0, 2]) if batch_first else value
    return output, op.Concat(*last, axis=0)


def _stack(tensors: Sequence[Any]) -> Any:
    return op.Concat(*(op.Unsqueeze(tensor, [0]) for tensor in tensors), axis=0)
