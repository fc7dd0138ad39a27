"""Losses at logits that overflow where they are not computed in a stable form."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's name
from torch import nn

import stateful_pipeline as sp


class Losses(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plain = F.binary_cross_entropy_with_logits(x, y)
        self.total = self.total + plain
        each = F.binary_cross_entropy_with_logits(
            x, y, weight=y + 0.5, pos_weight=y + 2.0, reduction="none"
        )
        return plain, each


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_a_loss_of_large_logits_is_finite(scale, tmp_path):
    path = tmp_path / "m.onnx"
    x, y = torch.tensor([0.3, -0.2, 1.0, -1.0]), torch.tensor([0.0, 1.0, 1.0, 0.25])
    sp.export_onnx(Losses().eval(), (x, y), path, frontend="torchscript")
    got = sp.StatefulRunner(path).run({"x": (x * scale).numpy(), "y": y.numpy()})
    for value, expected in zip(got.values(), Losses()(x * scale, y), strict=True):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)
