"""What holds at the sizes of the example need not hold at others, least of all in a rare branch.

The branch of each module is not taken by the example, nor by what the export compares.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StageError, StateError

RARE = 15  # the sum of a chunk above which the branch is taken
CHUNKS = ((3, 0.1), (3, 5.0), (1, 20.0), (4, 6.0), (2, 7.0), (1, 9.0), (5, 4.0), (3, -1.0))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.arange(32.0).reshape(8, 4))


def follow(module, path):
    """Export with a dynamic time axis; compare with eager over chunks of several lengths."""
    module.eval()
    eager = copy.deepcopy(module)
    xs = [torch.full((1, time, 4), level) + torch.arange(4) * 0.1 for time, level in CHUNKS]
    sp.export_onnx(module, (xs[0],), path, frontend="torchscript", dynamic_axes={"x": {1: "time"}})
    runner = sp.StatefulRunner(path)
    for step, x in enumerate(xs):
        with torch.no_grad():
            expected = eager(x).numpy()
        got = runner.run({"x": x.numpy()})["output"]
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=f"step {step}")


class Chunks(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            for piece in x.chunk(3, 1):
                self.m = self.m * 0.5 + piece.sum()
        return self.m * 1


class Pieces(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            self.m = self.m + x.split(2, 1)[-1].sum()
        return self.m * 1


class Squeezes(Base):
    """Over one frame, the mean is that of other elements."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            self.m = self.m * 0.5 + x[0].squeeze(0).mean(0)
        return self.m * 1


class PerhapsContiguous(Base):
    """From four frames on, the columns are all there are, and so no copy is made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            part = self.m[:, : x.shape[1]].contiguous()
            part += 1
        return self.m * 1


class PerhapsReshaped(Base):
    """Of one row, the transposed one is a view in any form."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            part = self.m[: x.shape[1]].t().reshape(-1)
            part += 1
        return self.m * 1


@pytest.mark.parametrize("module", [Chunks, Pieces, Squeezes, PerhapsContiguous, PerhapsReshaped])
def test_what_depends_on_the_example_s_size_is_right_or_refused_with_its_line(module, tmp_path):
    path, refused = tmp_path / "m.onnx", None
    try:
        follow(module(), path)
    except (StageError, StateError) as error:
        refused = error
    assert refused is None or refused.file == __file__
    assert path.exists() == (refused is None)


class AlwaysCopies(Base):
    """What has one form at all sizes is written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            part = self.m[: x.shape[1]]
            part += 1
            self.m = self.m + x.transpose(1, 2).contiguous().sum()
            self.m.view(-1)[:4] *= 0.5
            first, second = self.m.chunk(2, 1)
            second.add_(x.mean() * first)
        return self.m * 1


def test_what_has_one_form_at_all_sizes_is_right(tmp_path):
    follow(AlwaysCopies(), tmp_path / "m.onnx")


class NegativeColumns(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 15):
            rows, columns = torch.arange(2), torch.where(x[0, 0, :2] > 5, -1, 1)
            self.m[rows, columns] += 1
            self.m[:, [0, 1]] += self.m[[0, -1], [-1, -2]]
            self.m[0] += self.m.view(2, 4, 4)[:, torch.tensor([1, -1]), torch.tensor([-2, 0])].sum()
        return self.m * 1


class ReversedTime(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.shape[1] - 1
        if bool(x.sum() > 15):
            self.m[0] += x[:, torch.arange(last, -1, -1)].cumsum(1)[0, 0]
            self.m[1] += self.m[torch.arange(last - 3, last)].sum(0)
        return self.m * 1


@pytest.mark.parametrize("module", [NegativeColumns, ReversedTime])
def test_negative_indices_count_from_the_end(module, tmp_path):
    follow(module(), tmp_path / "m.onnx")


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_a_ring_is_read_by_a_range_across_its_start(frontend, tmp_path):
    class Ring(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("ring", torch.zeros(5))
            self.p = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.ring[self.p] = x.sum()
            latest = self.ring[torch.arange(self.p - 2, self.p + 1)].sum(0)
            self.p = (self.p + 1) % 5
            return latest.reshape(1)

    path = tmp_path / "m.onnx"
    sp.export_onnx(Ring().eval(), (torch.ones(2),), path, frontend=frontend)
    runner, eager = sp.StatefulRunner(path), Ring().eval()
    for step in range(14):
        x = torch.tensor([1.0 + step, 2.0])
        got = runner.run({"x": x.numpy()})["output"]
        np.testing.assert_allclose(got, eager(x).numpy(), err_msg=f"step {step}")
