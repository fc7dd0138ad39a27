"""The angle of a number, real or complex, is that of eager also where it jumps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp

EDGES = [0.0, -0.0, 1.0, -1.0, 3.0, -1e-30, 1e30]


class Angle(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("h", torch.zeros(1, len(EDGES)))

    def forward(self, re: torch.Tensor, im: torch.Tensor) -> torch.Tensor:
        angle = torch.complex(re, im).angle() if self.kind == "complex" else re.angle() + 0 * im
        self.h = 0.5 * self.h + angle
        return self.h + 0


@pytest.mark.parametrize("kind", ["complex", "real"])
def test_angles_are_those_of_eager_on_both_sides_of_every_axis(tmp_path, kind):
    path = tmp_path / "model.onnx"
    example = torch.ones(1, len(EDGES))
    sp.export_onnx(Angle(kind), (example, example), path)
    runner, eager = sp.StatefulRunner(path), Angle(kind)
    for im in EDGES:
        re, im_ = np.array([EDGES], np.float32), np.full((1, len(EDGES)), im, np.float32)
        expected = eager(torch.from_numpy(re), torch.from_numpy(im_))
        got = runner.run({"re": re, "im": im_})["output"]
        np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)


class RealAngle(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.angle(x)


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_the_angle_of_a_real_number_has_all_digits_of_eager(tmp_path, dtype, frontend):
    path = tmp_path / "model.onnx"
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0]).to(dtype)
    sp.export_onnx(RealAngle(), (x,), path, frontend=frontend)
    got = sp.StatefulRunner(path).run({"x": x.numpy()})["output"]
    np.testing.assert_array_equal(got, torch.angle(x).numpy(), strict=True)


class Spectrum(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past[:, x.shape[1] :], x], 1)
        return torch.fft.rfft(self.past).angle()


@pytest.mark.parametrize("size", [8, 40, 100])
def test_the_angle_of_a_spectrum_is_exact_where_it_is_real(tmp_path, size):
    path = tmp_path / "model.onnx"
    sp.export_onnx(Spectrum(size), (torch.randn(1, 4),), path)
    runner, eager = sp.StatefulRunner(path), Spectrum(size)
    ends = [0, size // 2]
    for step in range(20):
        x = np.random.default_rng(step).standard_normal((1, 4)).astype(np.float32)
        expected = eager(torch.from_numpy(x)).numpy()[:, ends]
        np.testing.assert_allclose(runner.run({"x": x})["output"][:, ends], expected, atol=1e-5)
