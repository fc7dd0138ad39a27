"""Python numbers that 16 bits would round keep their digits where eager keeps them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.model.arrays import to_numpy


class Leaky(nn.Module):
    """In bfloat16, 0.99 is 0.98828: the state would end 15 % too low."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(8, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.99 + x
        return (self.h - 0.3) / 0.7 + 0.7 / (x.abs() + 0.1)


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_state_that_decays_slowly_does_not_drift(dtype, frontend, tmp_path) -> None:
    module, path = Leaky(dtype).eval(), tmp_path / "model.onnx"
    sp.export_onnx(module, (torch.ones(8, dtype=dtype),), path, frontend=frontend)
    runner, eager = sp.StatefulRunner(path), copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        x = torch.rand(8, generator=generator).to(dtype)
        got, expected = runner.run({"x": to_numpy(x)})["output"], to_numpy(eager(x))
        np.testing.assert_array_equal(got, expected, err_msg=f"step {step}")
