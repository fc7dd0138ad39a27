"""Cells of recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import Symbolic


def _gates(g: Any, value: Any, weight: Any, bias: Any) -> Any:
    """``value @ weight.T + bias``; ``bias`` may be None."""
    inputs = [value, weight] + ([] if torch_exporter.is_none(bias) else [bias])
    return g.op("Gemm", *inputs, transB_i=1)


def gru_cell(
    g: Any, x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """``nn.GRUCell``: reset and update gates, and PyTorch's order of reset gate and product."""
    i_r, i_z, i_n = g.op("Split", _gates(g, x, w_ih, b_ih), axis_i=1, num_outputs_i=3, outputs=3)
    h_r, h_z, h_n = g.op("Split", _gates(g, h, w_hh, b_hh), axis_i=1, num_outputs_i=3, outputs=3)
    reset = g.op("Sigmoid", g.op("Add", i_r, h_r))
    update = g.op("Sigmoid", g.op("Add", i_z, h_z))
    new = g.op("Tanh", g.op("Add", i_n, g.op("Mul", reset, h_n)))
    return g.op("Add", new, g.op("Mul", update, g.op("Sub", h, new)))


def lstm_cell(
    g: Any, x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """``nn.LSTMCell``: the gates are input, forget, cell and output, in this order."""
    h, c = torch_exporter.items(hx)
    sums = g.op("Add", _gates(g, x, w_ih, b_ih), _gates(g, h, w_hh, b_hh))
    i, f, new, o = g.op("Split", sums, axis_i=1, num_outputs_i=4, outputs=4)
    kept = g.op("Mul", g.op("Sigmoid", f), c)
    cell = g.op("Add", kept, g.op("Mul", g.op("Sigmoid", i), g.op("Tanh", new)))
    return g.op("Mul", g.op("Sigmoid", o), g.op("Tanh", cell)), cell


def _rnn_cell(activation: str) -> Callable[..., Any]:
    """``nn.RNNCell`` with the ONNX operator ``activation``."""

    def cell(
        g: Any, x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Any:
        return g.op(activation, g.op("Add", _gates(g, x, w_ih, b_ih), _gates(g, h, w_hh, b_hh)))

    return cell


CELLS: dict[str, Symbolic] = {
    "aten::gru_cell": gru_cell,
    "aten::lstm_cell": lstm_cell,
    "aten::rnn_tanh_cell": _rnn_cell("Tanh"),
    "aten::rnn_relu_cell": _rnn_cell("Relu"),
}
"""Operators of this file."""
