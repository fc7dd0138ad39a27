"""States of every dtype and form, exported by both front ends and run freely beside eager."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.model.arrays import to_numpy

FRONTENDS = ("export", "torchscript")
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
STEPS = 8


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return random values; integers are large enough for sums and products to wrap around."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    high = 2 if dtype == torch.bool else min(torch.iinfo(dtype).max, 1 << 30)
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def follow(module, frontend, tmp_path, *, dtype, size=4, rounding=0.0, steps=STEPS, **options):
    """Export ``module`` and compare outputs and states with eager's; return the contract."""
    module.eval()
    path = tmp_path / "model.onnx"
    example = (values((size,), dtype, 0),)
    contract = sp.export_onnx(module, example, path, frontend=frontend, **options)
    runner, eager = sp.StatefulRunner(path), copy.deepcopy(module)
    for step in range(steps):
        x = values((size,), dtype, 1 + step)
        with torch.no_grad():
            made = eager(x)
        expected = list(made) if isinstance(made, tuple) else [made]
        got = list(runner.run({"x": to_numpy(x)}).values())
        buffers = dict(eager.named_buffers())
        state = {name: value for name, value in runner.state.items() if name in buffers}
        expected += [buffers[name] for name in state]
        for value, wanted in zip([*got, *state.values()], map(to_numpy, expected), strict=True):
            check(value, wanted, rounding)
    return contract


def check(got: np.ndarray, expected: np.ndarray, rounding: float) -> None:
    assert got.dtype == expected.dtype
    if expected.dtype.kind in "biu" or not rounding:
        np.testing.assert_array_equal(got, expected)
    else:
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding)


class Forms(nn.Module):
    """One state of each form, with work that goes element by element."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("vector", values((4,), dtype, 20))
        self.register_buffer("scalar", values((), dtype, 21))
        self.register_buffer("empty", torch.zeros(0, dtype=dtype))
        self.register_buffer("turned", values((2, 4), dtype, 22).t())
        self.register_buffer("strided", values((8,), dtype, 23)[::2])
        self.register_buffer("grown", torch.zeros(0, dtype=dtype))
        self.register_buffer("ring", values((4,), dtype, 24))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def keep(self, x: torch.Tensor) -> None:
        self.turned[:, 1] = x
        self.turned[0, 0] = x[3]
        self.strided[1:3] = x[:2]
        self.grown = torch.cat([self.grown, x[:1]])
        self.ring.index_copy_(0, self.at, x[:1])
        self.at.copy_((self.at + 1) % 4)


class Numbers(Forms):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        later = x > self.vector
        self.vector = torch.where(later, self.vector * x + x, self.vector - x)
        self.scalar = torch.maximum(self.scalar, x[1]) + x[0]
        self.empty = self.empty + x[:0]
        self.turned.mul_(3)
        self.strided.add_(x)
        self.keep(x)
        wide = torch.clamp(torch.minimum(self.vector, x).float(), -5.0, 5.0).to(x.dtype)
        together = torch.cat([self.empty, self.turned.reshape(8), -self.scalar.reshape(1)])
        return torch.roll(self.grown, 1, 0), wide, together


class Flags(Forms):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.vector = torch.where(x & self.vector, ~self.vector, self.vector ^ x)
        self.scalar = torch.logical_or(self.scalar, x[1]) ^ x[0]
        self.empty = self.empty | x[:0]
        self.turned.logical_xor_(x.unsqueeze(1))
        self.strided.logical_and_(x)
        self.keep(x)
        together = torch.cat([self.empty, self.turned.reshape(8), self.scalar.reshape(1)])
        return torch.roll(self.grown, 1, 0), self.vector.any(), together


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_states_of_each_form_keep_their_dtype_and_every_bit(dtype, frontend, tmp_path) -> None:
    module = Flags(dtype) if dtype == torch.bool else Numbers(dtype)
    contract = follow(module, frontend, tmp_path, dtype=dtype)
    for name, buffer in module.named_buffers():
        assert f"torch.{contract.state(name).dtype}" == str(buffer.dtype)


class Layers(nn.Module):
    """A block of layers around states; what ONNX Runtime computes in 16 bits least of all."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.cell, self.gru = nn.LSTMCell(4, 4), nn.GRU(2, 4)
        self.register_buffer("h", torch.zeros(1, 4))
        self.register_buffer("c", torch.zeros(1, 4))
        self.register_buffer("g", torch.zeros(1, 4))
        self.register_buffer("seen", torch.zeros(4))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.h, self.c = self.cell(self.norm(self.linear(x)).unsqueeze(0), (self.h, self.c))
        filtered = self.conv(self.h.unsqueeze(0)).squeeze(0)
        y, g = self.gru(filtered.t(), self.g)
        self.g = g
        self.seen = torch.softmax(self.seen * 0.5 + x, 0)
        self.seen.index_add_(0, torch.tensor([1, 1]), x[:2])
        best = torch.topk(self.seen, 2)[0]
        return y @ self.seen, best.mean() + torch.cumsum(x, 0) + x.max()


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_layers_in_16_bits_follow_eager(dtype, frontend, tmp_path) -> None:
    follow(Layers(dtype), frontend, tmp_path, dtype=dtype, rounding=2e-2)


class Counts(nn.Module):
    """Work on integers for which ONNX or ONNX Runtime has no form in 8 or 16 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("h", values((4,), dtype, 30))
        self.register_buffer("mixing", values((4, 4), dtype, 31))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.h = self.mixing @ self.h + torch.cumsum(x, 0).to(x.dtype)
        self.h = self.h.masked_fill(x > self.h, 7)
        lower = torch.tril(torch.einsum("i,j->ij", self.h, x))
        ordered = torch.sort(torch.nn.functional.pad(self.h, [1, 0]))[0]
        return lower, ordered, torch.clamp(torch.maximum(self.h, x) // 3, 1, 9)


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_small_integers_wrap_around_as_in_eager(dtype, frontend, tmp_path) -> None:
    follow(Counts(dtype), frontend, tmp_path, dtype=dtype)


class Elements(nn.Module):
    """A long chain of element-wise work: one rounding left out shows in a few steps."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(64, dtype=dtype))
        self.register_buffer("n", torch.tensor(1.0, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n = self.n * 0.9375 + 0.25
        y = (x * self.n + self.h) * x - self.h / (x.abs() + self.n)
        y = torch.where(y > x, torch.sqrt(y.abs()), y + x)
        self.h = torch.clamp(y * torch.minimum(y, x * 3) / self.n + self.h * 0.75, -3.0, 3.0)
        return torch.relu(y) * self.n - self.h.abs()


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_element_wise_work_in_16_bits_rounds_where_eager_does(dtype, frontend, tmp_path) -> None:
    follow(Elements(dtype), frontend, tmp_path, dtype=dtype, size=64, steps=20)


class Mixed(nn.Module):
    """Weights of one dtype and a state of another."""

    def __init__(self, weights: torch.dtype, state: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4).to(weights)
        self.register_buffer("h", torch.zeros(4, dtype=state))
        self.weights, self.state = weights, state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.linear((x + self.h).to(self.weights))
        self.h = torch.tanh(mixed).to(self.state)
        return mixed.float() + self.h


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize(
    ("weights", "state"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)],
    ids=["state in bfloat16", "weights in bfloat16"],
)
def test_weights_and_state_may_have_different_dtypes(weights, state, frontend, tmp_path) -> None:
    contract = follow(Mixed(weights, state), frontend, tmp_path, dtype=torch.float32, rounding=2e-2)
    assert f"torch.{contract.state('h').dtype}" == str(state)
    assert contract.outputs[0].dtype == "float32"


class Gated(nn.Module):
    """An LSTM's cell written out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gates = nn.Linear(8, 16, dtype=torch.bfloat16)
        self.register_buffer("h", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("c", torch.zeros(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i, f, g, o = self.gates(torch.cat([x, self.h])).chunk(4)
        self.c = torch.sigmoid(f) * self.c + torch.sigmoid(i) * torch.tanh(g)
        self.h = torch.sigmoid(o) * torch.tanh(self.c)
        return self.h


class Cache(nn.Module):
    """Attention over a cache of keys and values of fixed size, written to in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(4, 12, dtype=torch.bfloat16)
        self.register_buffer("k", torch.zeros(16, 4, dtype=torch.bfloat16))
        self.register_buffer("v", torch.zeros(16, 4, dtype=torch.bfloat16))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3)
        self.k.index_copy_(0, self.at, k.unsqueeze(0))
        self.v.index_copy_(0, self.at, v.unsqueeze(0))
        scores = (self.k @ q) * 0.5
        seen = torch.arange(16) <= self.at
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), 0)
        self.at.add_(1)
        return weights @ self.v


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("kind", [Gated, Cache])
def test_a_bfloat16_model_starts_again_from_reset(kind, frontend, tmp_path) -> None:
    module = kind().eval()
    contract = follow(module, frontend, tmp_path, dtype=torch.bfloat16, rounding=2e-2, steps=16)
    if (kind, frontend) == (Cache, "export"):
        assert [s.name for s in contract.states if s.in_place] == ["k", "v"]
    runner = sp.StatefulRunner(tmp_path / "model.onnx")
    xs = [to_numpy(values((4,), torch.bfloat16, step)) for step in range(4)]
    first = [runner.run({"x": x})["output"] for x in xs]
    runner.reset()
    again = [runner.run({"x": x})["output"] for x in xs]
    np.testing.assert_array_equal(np.stack(first), np.stack(again))


class Adds(nn.Module):
    """A state that a scatter adds to, for which ONNX Runtime has no kernel in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.index_add_(0, torch.tensor([0, 2]), x[:2])
        return self.h + x


def test_a_state_that_casts_stand_around_is_not_updated_in_place(tmp_path) -> None:
    contract = follow(Adds(), "torchscript", tmp_path, dtype=torch.bfloat16)
    assert not contract.state("h").in_place


def test_a_portable_file_has_no_casts_for_a_runtime(tmp_path) -> None:
    portable, lowered = tmp_path / "portable.onnx", tmp_path / "lowered.onnx"
    module, example = Cache().eval(), (torch.ones(4, dtype=torch.bfloat16),)
    sp.export_onnx(module, example, portable, runtime=None)
    sp.export_onnx(module, example, lowered)
    read = [
        {
            name
            for node in onnx.load(path).graph.node
            if node.op_type == "Cast"
            for name in node.input
        }
        for path in (portable, lowered)
    ]
    assert "k_out" in read[1] - read[0]
    with pytest.raises(sp.errors.ContractError, match="runtime='onnxruntime'"):
        sp.StatefulRunner(portable)
    assert sp.StatefulRunner(lowered).run({"x": to_numpy(example[0])})["output"].size == 4


def test_a_float32_model_gets_no_casts(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    sp.export_onnx(Elements(torch.float32).eval(), (torch.ones(64),), path)
    assert "Cast" not in {node.op_type for node in onnx.load(path).graph.node}
