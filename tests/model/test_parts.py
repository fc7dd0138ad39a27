"""Views of one buffer, held in several attributes, are one state."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.parts import Part, covering, overlap, steps_to


class Flat(nn.Module):
    """Hidden and cell state in one flat buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("flat", torch.zeros(24))
        self.h = self.flat[:12].view(3, 4)
        self.c = self.flat[12:].view(3, 4)

    def forward(self, x):
        self.h.mul_(0.5).add_(x)
        self.c[1] += x[0]
        return self.flat.view(2, 3, 4).sum(0) + self.h - self.c


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(2, 3, 4))
        self.register_buffer("a", self.m[0])
        self.register_buffer("b", self.m[1, :, 1:3])

    def forward(self, x):
        self.a.add_(x)
        self.b.copy_(x[:, :2] * self.a[:, :2])
        self.m.mul_(0.9)
        return self.m.sum(0) + self.a


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(4, 3))
        self.t = self.m.t()

    def forward(self, x):
        self.t.add_(x)
        self.m[0] = 1
        return self.t * 2


class Beside(nn.Module):
    """Views that have no element in common are two states."""

    def __init__(self):
        super().__init__()
        both = torch.zeros(3, 8)
        self.register_buffer("h", both[:, :4])
        self.register_buffer("c", both[:, 4:])

    def forward(self, x):
        self.h.mul_(0.5).add_(x)
        self.c.add_(self.h)
        return self.h - self.c


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
@pytest.mark.parametrize(
    ("module", "states"),
    [(Flat, ["flat"]), (Rows, ["m"]), (Transposed, ["m"]), (Beside, ["h", "c"])],
)
def test_views_of_one_buffer_are_one_state(module, states, frontend, tmp_path):
    path = tmp_path / "m.onnx"
    made = module().eval()
    eager = copy.deepcopy(made)
    xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    contract = sp.export_onnx(made, (xs[0],), path, frontend=frontend)
    assert [state.name for state in contract.states] == states
    runner = sp.StatefulRunner(path)
    for step, x in enumerate(xs):
        got = runner.run({"x": x.numpy()})["output"]
        np.testing.assert_allclose(got, eager(x).numpy(), 1e-5, 1e-6, err_msg=f"step {step}")
    assert all(not tensor.any() for tensor in made.buffers())


class Halves(nn.Module):
    def __init__(self, batch=1):
        super().__init__()
        self.register_buffer("both", torch.zeros(batch, 8))
        self.left = self.both[:, :4]

    def forward(self, x):
        self.left.add_(x)
        self.both.mul_(0.5)
        return self.both[:, 4:] + self.left


def test_parts_follow_a_batch_axis(tmp_path):
    path, axes = tmp_path / "m.onnx", {"x": {0: "batch"}}
    sp.export_onnx(Halves().eval(), (torch.ones(2, 4),), path, dynamic_axes=axes)
    runner = sp.StatefulRunner(path)
    for batch in (1, 3, 5):
        eager = Halves(batch)
        runner.reset()
        for step in range(4):
            x = torch.randn(batch, 4, generator=torch.Generator().manual_seed(step))
            got = runner.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(got, eager(x).numpy(), 1e-5, 1e-6)


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        base = torch.zeros(10, 4)
        self.register_buffer("h", base[:6])
        self.register_buffer("c", base[4:])

    def forward(self, x):
        self.h.mul_(0.5).add_(x.mean())
        self.c.add_(1)
        return self.h + self.c


class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(2, 3, 4))
        self.a = self.m[0]

    def forward(self, x):
        self.a.add_(x)
        self.m = self.m + 1
        return self.m[0] + self.a


@pytest.mark.parametrize(
    ("module", "said"),
    [(Overlapping, "none of them covers the rest"), (Replaced, "replaced by another tensor")],
)
def test_views_that_are_no_parts_of_one_state_are_refused(module, said, tmp_path):
    with pytest.raises(StateError, match=said) as caught:
        sp.export_onnx(module().eval(), (torch.ones(3, 4),), tmp_path / "m.onnx")
    assert caught.value.file == __file__


class Rebound(Flat):
    """In a rare branch, a view becomes another tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 60:
            self.h = self.h + x
        self.h.add_(1.0)
        self.c.add_(x)
        return self.flat.view(2, 3, 4).sum(0)


class WholeRebound(Flat):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 60:
            self.flat = self.flat * 0.5
        self.h.add_(1.0)
        self.c.add_(x)
        return self.flat.view(2, 3, 4).sum(0)


@pytest.mark.parametrize("module", [Rebound, WholeRebound])
def test_views_that_a_rare_branch_replaces_are_refused(module, tmp_path):
    with pytest.raises(StateError, match="may be another tensor after a call") as caught:
        sp.export_onnx(
            module().eval(), (torch.ones(3, 4),), tmp_path / "m.onnx", frontend="torchscript"
        )
    assert caught.value.file == __file__


@given(st.data())
def test_a_part_is_made_of_the_whole_by_its_steps(data):
    whole = torch.arange(120.0).reshape(4, 5, 6)
    part = whole
    for _ in range(data.draw(st.integers(0, 3))):
        if part.dim() == 0:
            break
        dim = data.draw(st.integers(0, part.dim() - 1))
        size = part.shape[dim]
        if data.draw(st.booleans()):
            part = part.select(dim, data.draw(st.integers(0, size - 1)))
        else:
            start = data.draw(st.integers(0, size - 1))
            part = part.narrow(dim, start, data.draw(st.integers(1, size - start)))
    if part.dim() > 1 and data.draw(st.booleans()):
        part = part.transpose(0, 1)
    steps = steps_to(whole, part)
    assert steps is not None
    other = torch.randn(4, 5, 6)
    expected = other.as_strided(part.shape, part.stride(), part.storage_offset())
    assert torch.equal(Part((), steps).of(other), expected)
    assert covering([part, whole]) == (0 if part.numel() == 120 else 1)
    assert overlap(whole, part)


@given(st.integers(0, 8), st.integers(1, 4), st.integers(0, 8), st.integers(1, 4))
def test_overlap_is_that_of_elements(start, width, other, extent):
    base = torch.zeros(3, 12)
    a, b = base[:, start : start + width], base[:, other : other + extent]
    shared = set(range(start, start + width)) & set(range(other, other + extent))
    assert overlap(a, b) == bool(shared)
