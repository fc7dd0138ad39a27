"""Outputs whose sizes depend on values get axes of their own; states cannot have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.contract import Contract, Value
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.stages.export.measure import check_dimensions


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.h = self.h * 0.5 + x
        large = self.h[self.h > 1]
        return {
            "large": large,
            "a.twice": torch.stack([large, large * 2], 1),
            "both": torch.cat([large, large]),
            "where": torch.nonzero(x),
            "kinds": torch.unique((x * 2).long()),
            "2": torch.cat([self.h, large]),
        }


def test_sizes_that_depend_on_values_have_axes_of_their_own(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(Selects().eval(), (torch.arange(4.0),), path)
    shapes = {value.name: value.shape for value in contract.outputs}
    assert shapes == {
        "large": ("large_0",),
        "a.twice": ("large_0", 2),
        "both": ("both_0",),
        "where": ("where_0", 1),
        "kinds": ("kinds_0",),
        "2": ("size_2_0",),
    }
    assert contract.axes == ()
    runner, eager = sp.StatefulRunner(path), Selects().eval()
    for step in range(5):
        x = torch.tensor([0.0, step, step % 2, -1.0])
        expected = eager(x)
        for name, got in runner.run({"x": x.numpy()}).items():
            np.testing.assert_array_equal(got, expected[name].numpy())


def test_such_an_axis_takes_no_name_that_an_input_has(tmp_path) -> None:
    class Chosen(Selects):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h * 0.5 + x.sum(0)
            return x[:, 0][x[:, 0] > 0]

    axes = {"x": {0: "output_0"}}
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(Chosen().eval(), (torch.ones(3, 4),), path, dynamic_axes=axes)
    assert [value.shape for value in contract.inputs] == [("output_0", 4)]
    assert [value.shape for value in contract.outputs] == [("output_0_2",)]


def test_a_state_whose_size_depends_on_values_is_refused(tmp_path) -> None:
    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("found", torch.zeros(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.found = torch.cat([self.found, x[x > 0]])
            return self.found.sum()

    with pytest.raises(StateError, match=r"'found': its size .* depends on values") as caught:
        sp.export_onnx(Collects().eval(), (torch.arange(4.0),), tmp_path / "m.onnx")
    assert caught.value.file == __file__
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_share_such_an_axis_must_agree(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(Selects().eval(), (torch.arange(4.0),), path)
    by_name = {value.name: value for value in contract.outputs}
    wrong = Value("both", "float32", by_name["large"].shape)
    changed = Contract(
        contract.inputs, (by_name["large"], wrong), contract.states, contract.axes
    )  # fmt: skip

    class Plan:
        """Gives one step."""

        def step(self, sizes, seed, index):
            return {"x": torch.arange(4.0)}

    with pytest.raises(
        StageError, match=r"'both' is declared as \[large_0\], which is \[2\] at fixed"
    ):
        check_dimensions(path, changed, Plan(), [{}])
