"""A sigmoid keeps its digits near 0 where a logarithm or a quotient is taken of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
from torch import nn

import stateful_pipeline as sp

LARGE = np.array([[-88.0, -50.0, -20.0, -15.0, -1.0, 0.0, 3.0, 90.0]], np.float32)


class Decay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        gate = torch.sigmoid(x)
        self.h = self.h * 0.5 + torch.log(gate)
        weights = (2 * gate)[:, :4]
        return self.h + 0, weights / weights.sum(-1, keepdim=True), F.silu(x)


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_the_logarithm_of_a_sigmoid_and_its_quotients_are_those_of_eager(tmp_path, frontend):
    path = tmp_path / "model.onnx"
    sp.export_onnx(Decay(), (torch.ones(1, 8),), path, frontend=frontend)
    runner, eager = sp.StatefulRunner(path), Decay()
    for scale in (1.0, 0.25, 1.0):
        expected = eager(torch.from_numpy(scale * LARGE))
        logarithm, quotient, gated = runner.run({"x": scale * LARGE}).values()
        np.testing.assert_allclose(logarithm, expected[0].numpy(), rtol=1e-5)
        np.testing.assert_allclose(quotient, expected[1].numpy(), rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(gated, expected[2].numpy(), atol=1e-5)  # stays one operator


class Small(nn.Module):
    def __init__(self, read) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(torch.sigmoid(x))


@pytest.mark.parametrize(
    "read",
    [
        torch.sqrt,
        lambda gate: (gate + 1e-12).log(),
        lambda gate: (gate + gate.flip(-1)).log(),
        lambda gate: gate.mean(-1).log(),
        lambda gate: gate.prod(-1).log(),
    ],
    ids=["root", "with a constant", "of two", "mean", "product"],
)
def test_roots_and_logarithms_of_sums_of_sigmoids_are_those_of_eager(tmp_path, read):
    path, x = tmp_path / "model.onnx", np.linspace(-40, -15, 4, dtype=np.float32)[None]
    sp.export_onnx(Small(read), (torch.zeros(1, 4),), path)
    got, expected = sp.StatefulRunner(path).run({"x": x}), Small(read)(torch.from_numpy(x))
    np.testing.assert_allclose(got["output"], expected.numpy(), rtol=1e-5)


def test_a_residual_that_is_normalized_keeps_its_gate_as_one_operator(tmp_path):
    class Residual(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x + F.silu(x)
            return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)

    path = tmp_path / "model.onnx"
    sp.export_onnx(Residual(), (torch.ones(1, 3),), path)
    assert "Exp" not in [node.op_type for node in onnx.load(path).graph.node]


def test_a_gate_that_only_multiplies_stays_one_operator(tmp_path):
    path = tmp_path / "model.onnx"
    sp.export_onnx(nn.Sequential(nn.Linear(3, 3), nn.SiLU()), (torch.ones(1, 3),), path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert "Sigmoid" in kinds
    assert "Exp" not in kinds
