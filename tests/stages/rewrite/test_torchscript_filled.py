"""Tensors made of Python numbers have the dtypes that eager gives them, through TorchScript."""

import importlib.util
import sys

import numpy as np
import pytest
import torch

import stateful_pipeline as sp

EXPRESSIONS = [
    "torch.full((3,), 2)",
    "torch.full((3,), self.n)",
    "torch.full((3,), self.n) // 2",
    "torch.full((3,), self.n) / 2",
    "torch.full((3,), self.n * 0.5)",
    "torch.full((3,), self.n + 16777216) + i",
    "torch.full((x.shape[0], 2), self.n)",
    "torch.full((self.n,), self.n)",
    "torch.full((3,), int(x.sum()))",
    "torch.full((3,), self.n, dtype=torch.float64)",
    "torch.full((3,), True)",
    "torch.full(size=(3,), fill_value=False)",
    "torch.full((3,), self.n > 2)",
    "torch.full((3,), fill_value=self.n > 2)",
    "torch.full((x.shape[0], 2), bool(x.sum() > 0))",
    "torch.full((), self.n > 2)",
    "torch.full((3,), int(self.n > 2))",
    "torch.full((3,), self.n > 2, dtype=torch.float32)",
    "torch.where(torch.full((3,), self.n % 2 == 0), x, -x)",
    "torch.full_like(i, self.n * 0.7)",
    "torch.full_like(i > 0, self.n)",
    "x.new_full((3,), self.n)",
    "torch.tensor(self.n) // 2",
    "torch.tensor(self.n > 2)",
    "torch.scalar_tensor(self.n)",
    "torch.arange(self.n, self.n + 3) // 2",
    "torch.arange(self.n * 0.5)",
    "torch.arange(0, self.n * 0.5, 0.5)",
]

SOURCE = """
import torch


class Filled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 1

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if bool(x[0] > 0):
            self.n += 1
        self.n = self.n + 1
        return {}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that makes a module which returns an expression."""

    def make(expression):
        path = tmp_path / "filled.py"
        path.write_text(SOURCE.format(expression))
        spec = importlib.util.spec_from_file_location("filled", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "filled", module)
        spec.loader.exec_module(module)
        return module.Filled

    return make


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_tensor_made_of_numbers_has_the_dtype_and_the_values_of_eager(
    expression, made, tmp_path
) -> None:
    cls, path = made(expression), tmp_path / "m.onnx"
    example = (torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([1, -2, 3]))
    sp.export_onnx(cls(), example, path, frontend="torchscript")
    runner, eager = sp.StatefulRunner(path), cls()
    for step in range(6):
        x, i = example[0] * (-1) ** step, example[1] + step
        expected = eager(x, i).numpy()
        got = runner.run({"x": x.numpy(), "i": i.numpy()})["output"]
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"step {step}")
