"""Layers of float64, which ONNX Runtime's CPU has no kernels for, keep all their digits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.stages.lowering import is_lowered, lower


class Filters(nn.Module):
    """A convolution of what came before."""

    def __init__(self, layer: nn.Module, size: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = layer.double()
        self.register_buffer("before", torch.zeros(size, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before = torch.cat([self.before, x], -1)[..., x.shape[-1] :]
        return self.layer(self.before)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(3, 4, **options).double()
        count = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        self.is_lstm = kind is nn.LSTM
        self.register_buffer("h", torch.zeros(count, 2, 4, dtype=torch.float64))
        self.register_buffer("c", torch.zeros(count, 2, 4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_lstm:
            y, (self.h, self.c) = self.layer(x, (self.h, self.c))
        else:
            y, self.h = self.layer(x, self.h)
        return y


def follow(module: nn.Module, path, shape: tuple[int, ...]) -> None:
    module.eval()
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(6)]
    sp.export_onnx(module, (xs[0],), path)
    assert is_lowered(ir.load(path))
    runner = sp.StatefulRunner(path)
    for x in xs:
        with torch.no_grad():
            expected = module(x)
        got = runner.run({"x": x.numpy()})["output"]
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-12, atol=1e-13)
    for name, value in runner.state.items():
        expected = module.get_buffer(name).numpy()
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(2, 3, 3, padding=1), (1, 2, 8)),
        (nn.Conv1d(2, 3, 2, stride=2, bias=False), (1, 2, 7)),
        (nn.Conv1d(4, 4, 3, dilation=2, groups=4, padding=2), (2, 4, 8)),
        (nn.Conv1d(4, 6, 2, groups=2), (1, 4, 5)),
        (nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (1, 2, 6, 5)),
    ],
    ids=["padded", "strided", "one for each channel", "in groups", "of images"],
)
def test_a_convolution(layer: nn.Module, shape: tuple[int, ...], tmp_path) -> None:
    follow(Filters(layer, shape), tmp_path / "model.onnx", shape)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_a_recurrent_layer(kind, options, tmp_path) -> None:
    follow(Recurrent(kind, **options), tmp_path / "model.onnx", (5, 2, 3))


def test_what_has_no_form_is_left_to_who_runs_it() -> None:
    odd = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (double[1, 1, 8] x, double[1, 1, 3] w) => (double[1, 1, n] y) {
            y = Conv<auto_pad="SAME_UPPER">(x, w) }"""
    )
    assert lower(odd) == ()
    assert [node.op_type for node in odd.graph] == ["Conv"]
