"""Operands of two dtypes meet in the dtype that PyTorch says, also where both are 0-d."""

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp

FLOATS = (torch.float64, torch.float32, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS)


class Meeting(nn.Module):
    """Combines a 0-d state of one dtype with 0-d buffers of all dtypes, and with vectors."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("a", torch.tensor(3).to(dtype))
        for name, other in zip("stuvwyz", DTYPES, strict=True):
            self.register_buffer(name, torch.tensor(2).to(other))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        vector = torch.zeros(2, dtype=torch.float64)
        for other in (self.s, self.t, self.u, self.v, self.w, self.y, self.z):
            total = total + (self.a * other + 1.7 * self.a)
            total = total + (self.a * 1.1 - other).double() * 0.3
            total = total + torch.where(self.a < other, self.a.double(), other)
            total = total + (other - self.a > 0.3).double() / (1 + other)
            vector = vector + (x * self.a) * other + (x > self.a * other).double()
            vector = vector + x.to(torch.int32) * other
        self.a = (total * 0.01 + self.a).to(self.a.dtype)
        return torch.cat((vector, total.reshape(1)))


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_meet_in_the_dtype_that_pytorch_says(dtype, frontend, tmp_path):
    module = Meeting(dtype).eval()
    path = tmp_path / "m.onnx"
    x = torch.tensor([1.3, -2.7], dtype=torch.float64)
    sp.export_onnx(module, (x,), path, frontend=frontend)
    runner = sp.StatefulRunner(path)
    rounding = 1e-3 if dtype == torch.float16 else 1e-12
    for _ in range(5):
        got, expected = runner.run({"x": x.numpy()})["output"], module(x).numpy()
        np.testing.assert_allclose(got[:2], expected[:2], rtol=max(rounding, 1e-6))
        np.testing.assert_allclose(got[2], expected[2], rtol=rounding)
