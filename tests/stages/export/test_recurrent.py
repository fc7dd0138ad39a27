"""Recurrent layers keep a dynamic batch and a dynamic time, whatever their options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StageError


class Layer(nn.Module):
    def __init__(self, kind: type[nn.Module], batch: int = 1, **more) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(4, 6, **more)
        count = more.get("num_layers", 1) * (2 if more.get("bidirectional") else 1)
        self.register_buffer("h", torch.zeros(count, batch, more.get("proj_size", 6)))
        self.register_buffer("c", torch.zeros(count, batch, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.rnn, nn.LSTM):
            y, (self.h, self.c) = self.rnn(x, (self.h, self.c))
        else:
            y, self.h = self.rnn(x, self.h)
        return y


def axes(batch_first: bool) -> dict[int, str]:
    return {0: "batch", 1: "time"} if batch_first else {1: "batch", 0: "time"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "more",
    [
        {"batch_first": True},
        {"batch_first": False, "num_layers": 2},
        {"batch_first": True, "num_layers": 2, "bidirectional": True, "bias": False},
    ],
    ids=["plain", "two layers, time first", "both ways, no bias"],
)
def test_equals_eager_at_other_sizes(kind, more, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    first = more["batch_first"]
    example = torch.randn(1, 3, 4) if first else torch.randn(3, 1, 4)
    sp.export_onnx(Layer(kind, **more).eval(), (example,), path, dynamic_axes={"x": axes(first)})
    runner = sp.StatefulRunner(path)
    for batch in (1, 5):
        eager = Layer(kind, batch, **more).eval()
        runner.reset()
        for time in (1, 7, 2, 4):
            x = torch.randn((batch, time, 4) if first else (time, batch, 4))
            with torch.no_grad():
                expected = eager(x).numpy()
            got = runner.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(got, expected, atol=1e-6, rtol=1e-5)


def test_an_rnn_with_relu(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    build = lambda: Layer(nn.RNN, nonlinearity="relu", batch_first=True).eval()  # noqa: E731
    sp.export_onnx(build(), (torch.randn(1, 3, 4),), path, dynamic_axes={"x": {1: "time"}})
    runner, eager = sp.StatefulRunner(path), build()
    for time in (1, 6, 2):
        x = torch.randn(1, time, 4)
        with torch.no_grad():
            expected = eager(x).numpy()
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_lstm_is_refused_at_its_line(tmp_path) -> None:
    module = Layer(nn.LSTM, proj_size=3, batch_first=True).eval()
    with pytest.raises(StageError, match="proj_size") as caught:
        sp.export_onnx(module, (torch.randn(1, 3, 4),), tmp_path / "model.onnx")
    assert caught.value.file == __file__
    assert list(tmp_path.iterdir()) == []
