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


class Padded(nn.Module):
    """Pads a chunk to a multiple of 4, so that a dimension is a remainder of an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.pad(x, (0, (4 - x.shape[1] % 4) % 4))
        self.h = self.h * 0.5 + y.mean()
        return y + self.h


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(2, 3, 3, stride=2)
        self.register_buffer("context", torch.zeros(1, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([self.context, x], 2)
        self.context = padded[:, :, -2:]
        return self.conv(padded)


@pytest.mark.parametrize(
    ("module", "shape"), [(Padded, (1, 6)), (Strided, (1, 2, 6))], ids=["remainder", "quotient"]
)
def test_dimensions_that_are_expressions_of_an_axis(module, shape, tmp_path) -> None:
    path, axis = tmp_path / "model.onnx", len(shape) - 1
    sp.export_onnx(module().eval(), (torch.randn(shape),), path, dynamic_axes={"x": {axis: "time"}})
    runner, eager = sp.StatefulRunner(path), module().eval()
    for time in (4, 5, 6, 7, 9):
        x = torch.randn(*shape[:-1], time)
        with torch.no_grad():
            expected = eager(x).numpy()
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], expected, atol=1e-6)
