"""Dimensions that are expressions of an axis: remainders and quotients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp


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
