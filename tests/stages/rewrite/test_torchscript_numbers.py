"""Numbers that leave a tensor and come back: as Python has them, also where TorchScript rounds."""

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("table", torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        k = int(self.n)
        third = k / 3.0
        y = x * torch.tensor(0.1, dtype=torch.float64) + torch.tensor(third, dtype=torch.float64)
        y = y * torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
        self.table[k % 3] = third
        y = torch.lerp(y, self.table, third - 0.3)
        return y * x.sum().item() + self.table


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        scale = x[0].item() * self.n.item()
        if self.n.item() % 2 == 0:
            scale = scale + (x[1] > 0).item()
        return x * scale + torch.tensor([0.1, 2.0, 3.0])


@pytest.mark.parametrize(
    ("module", "dtype"),
    [(Double, torch.float64), (Single, torch.float32)],
    ids=["double", "single"],
)
def test_numbers_have_the_digits_that_python_gives_them(module, dtype, tmp_path):
    eager, path = module().eval(), tmp_path / "m.onnx"
    x = torch.tensor([1.3, -0.7, 2.9], dtype=dtype)
    sp.export_onnx(module().eval(), (x,), path, frontend="torchscript")
    runner = sp.StatefulRunner(path)
    for step in range(10):
        got, expected = runner.run({"x": (x + step).numpy()})["output"], eager(x + step).numpy()
        rounding = 1e-14 if dtype == torch.float64 else 1e-6
        np.testing.assert_allclose(got, expected, rtol=rounding, err_msg=f"step {step}")
