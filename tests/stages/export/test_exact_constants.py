"""Constants close to 0 and 1 are not taken for 0 and 1, and nothing else is simplified away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.stages.export.simplify import simplify

STEPS = 500


class Drift(nn.Module):
    """A state that ``change`` moves by very little at each step."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], start: float) -> None:
        super().__init__()
        self.change = change
        self.register_buffer("h", torch.full((3,), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.change(self.h)
        return self.h + x


@pytest.mark.parametrize(
    ("change", "start"),
    [
        (lambda h: h * 0.999995, 1.0),
        (lambda h: 1.0000005 * h, 1.0),
        (lambda h: h / 1.000005, 1.0),
        (lambda h: h / 0.9999995, 1.0),
        (lambda h: h + 1e-8, 0.0),
        (lambda h: 1e-12 + h, 0.0),
        (lambda h: h - 1e-8, 0.0),
    ],
    ids=["mul", "mul from left", "div", "div by less", "add", "add from left", "sub"],
)
def test_a_state_that_drifts_slowly_drifts_in_onnx_too(change, start, tmp_path: Path) -> None:
    path = tmp_path / "drift.onnx"
    sp.export_onnx(Drift(change, start).eval(), (torch.zeros(3),), path)
    runner, eager = sp.StatefulRunner(path), Drift(change, start).eval()
    for _ in range(STEPS):
        runner.run({"x": np.zeros(3, np.float32)})
        eager(torch.zeros(3))
    assert not np.array_equal(eager.h.numpy(), np.full(3, start, np.float32))
    np.testing.assert_array_equal(runner.state["h"], eager.h.numpy())


@pytest.mark.parametrize(("exponent", "start"), [(1.000005, 2.0), (1e-8, 1e30)])
def test_a_power_close_to_one_or_zero_is_kept(exponent, start, tmp_path: Path) -> None:
    path = tmp_path / "power.onnx"
    module = Drift(lambda h: h**exponent, start).eval()
    sp.export_onnx(module, (torch.zeros(3),), path)
    graph = onnx.load(path).graph
    kept = [onnx.numpy_helper.to_array(value).item() for value in graph.initializer]
    assert "Pow" in {node.op_type for node in graph.node}
    assert kept == [pytest.approx(exponent, rel=1e-7)]


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.999995 + 1e-8
        return self.h + x


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_both_front_ends_keep_them(frontend: str, tmp_path: Path) -> None:
    path = tmp_path / "scripted.onnx"
    sp.export_onnx(Scripted().eval(), (torch.zeros(3),), path, frontend=frontend)
    runner, eager = sp.StatefulRunner(path), Scripted().eval()
    for _ in range(STEPS):
        runner.run({"x": np.zeros(3, np.float32)})
        eager(torch.zeros(3))
    np.testing.assert_array_equal(runner.state["h"], eager.h.numpy())


class Sum(nn.Module):
    """A state, so that there is something to export, and ``read`` of it and the input."""

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("h", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x.float()
        return self.read(self.h, x)


def _bounded(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, torch.tensor(low)), torch.tensor(high))


@pytest.mark.parametrize(
    "read",
    [
        lambda h, x: (h * x).clamp(0, 1).clamp(2, 3),
        lambda h, x: torch.relu((h * x).clamp(-5, -3)),
        lambda h, x: _bounded(x, -1.0, 1.0) + _bounded(x, -0.2, 0.1),
        lambda h, x: h.index_put((torch.arange(4),), x, accumulate=True),
    ],
    ids=["clip beyond a clip", "relu of a negative clip", "two clips of one value", "scatter adds"],
)
def test_what_the_exporters_own_rules_get_wrong_is_right(read, tmp_path: Path) -> None:
    path = tmp_path / "sum.onnx"
    given = torch.tensor([-2.0, 0.05, 0.5, 3.0])
    sp.export_onnx(Sum(read).eval(), (given,), path)
    got = sp.StatefulRunner(path).run({"x": given.numpy()})["output"]
    np.testing.assert_array_equal(got, Sum(read).eval()(given).numpy())


def simplified(text: str) -> list[str]:
    """Return the operators left of a graph of ``x`` in onnx's text form."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[3] x) => (float[n] y) {{ {text} }}"""
    )
    simplify(model)
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("use", ["Mul(x, c)", "Mul(c, x)", "Div(x, c)"])
def test_only_exactly_one_is_one(use: str) -> None:
    text = "c = Constant<value_float={}>() m = {} y = Neg(m)"
    assert simplified(text.format("1.0", use)) == ["Neg"]
    assert simplified(text.format("1.0000002", use)) == [use[:3], "Neg"]


def test_a_one_that_broadcasts_stays() -> None:
    wide = "c = Constant<value_floats=[1.0]>() m = Mul(x, c) y = Neg(m)"
    assert simplified(wide) == ["Mul", "Neg"]


def test_constants_are_folded_and_what_only_moves_data_is_dropped() -> None:
    folded = """a = Constant<value_ints=[1]>() b = Constant<value_ints=[2]>() s = Add(a, b)
        t = Reshape(x, s) u = Transpose<perm=[0]>(t) v = Neg(u) w = Neg(u) y = Add(v, w)"""
    assert simplified(folded) == ["Neg", "Add"]


def test_casts_from_double_over_float_to_half_stay_for_they_round_twice() -> None:
    casts = """d = Cast<to=11>(x) e = Exp(d) f = Cast<to=1>(e) h = Cast<to=10>(f)
        y = Cast<to=1>(h)"""
    assert simplified(casts) == ["Cast", "Exp", "Cast", "Cast", "Cast"]
