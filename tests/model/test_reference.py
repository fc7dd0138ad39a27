"""What is said when the eager module itself raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError, StateError
from stateful_pipeline.model.axes import ShapeFinder
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.observe import Tracked
from stateful_pipeline.model.reference import module_raised


class Cache(nn.Module):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, capacity, 3))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k = self.k.index_copy(1, self.pos, x[:, None])
        self.pos = self.pos + 1
        return self.k.sum(1)


def test_a_stream_longer_than_a_cache_says_what_to_try(tmp_path) -> None:
    path = tmp_path / "cache.onnx"
    with pytest.raises(PipelineError, match="out of bounds") as caught:
        sp.export_onnx(Cache(2).eval(), (torch.ones(1, 3),), path)
    for said in ("fixed capacity", "verify.steps", "verify.reset_every", "shorter example"):
        assert said in caught.value.hint
    assert caught.value.place is not None
    assert not path.exists()


@pytest.mark.parametrize(
    ("error", "about_capacity"),
    [
        (IndexError("index 8 is out of bounds for dimension 0 with size 8"), True),
        (RuntimeError("index 8 is out of bounds for dimension 0 with size 8"), True),
        (IndexError("index out of range in self"), True),
        (
            IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 1)"),
            False,
        ),
        (ValueError("no such thing"), False),
    ],
)
def test_only_an_index_past_the_end_speaks_of_capacity(error, about_capacity: bool) -> None:
    assert ("capacity" in module_raised(error).hint) is about_capacity


def test_a_cache_that_overflows_while_shapes_are_sought_says_so() -> None:
    module = Cache(2).eval()
    tracked = [
        Tracked(name, (name,), "buffer", value.clone(), (tuple(value.shape),), True, True)
        for name, value in module.named_buffers()
    ]
    batch = Axis("batch", 1, 2, 4)
    plan = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
    finder = ShapeFinder(module, tracked, lambda m, i: m(i["x"]), plan, [batch], {}, {})
    with pytest.raises(StateError, match="index 2 is out of bounds") as caught:
        finder.find()
    assert "fixed capacity" in caught.value.hint
    assert "declare the shapes" in caught.value.hint
