from __future__ import annotations

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.program import Program
from stateful_pipeline.stages.rewrite.functional import make_functional


def rewrite(module: nn.Module, *shape: int | str, axes=()) -> Program:
    plan = InputPlan([Input("x", torch.float32, shape, Uniform())])
    found = discover(module.eval(), lambda m, i: m(i["x"]), plan, axes, {})
    captured = capture(found.reference, plan, probe_sizes(axes))
    return make_functional(captured, found.reference.states)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h[1].mul_(0.5).add_(x)
        self.h.index_fill_(0, torch.tensor([2]), 1.0)
        return self.h.sum(0)


def test_no_operator_writes_to_its_arguments() -> None:
    program = rewrite(InPlace(), 3)
    for node in program.exported.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node


def test_the_readable_code_names_states() -> None:
    code = rewrite(InPlace(), 3).code("Title.")
    assert code.startswith("# Title.\n")
    assert "h_in" in code
    assert "return (output, h_out,)" in code
    compile(code, "graph.py", "exec")


class Noise(nn.Module):
    def __init__(self, layer) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x
        return self.layer(self.h)


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        torch.bernoulli,
        lambda x: torch.nn.functional.dropout(x, 0.5, training=True),
        lambda x: x + torch.randn(3),
        lambda x: x[torch.randperm(3)],
    ],
)
def test_randomness_is_refused_at_its_line(draw) -> None:
    with pytest.raises((StateError, StageError), match="random") as caught:
        rewrite(Noise(lambda x: draw(torch.sigmoid(x))), 3)
    assert caught.value.file == __file__


def test_dropout_that_is_off_is_no_randomness() -> None:
    rewrite(Noise(nn.Dropout(0.5)), 3)
    rewrite(Noise(lambda x: torch.nn.functional.dropout(x, 0.5, training=False)), 3)


class Specializes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x.sum(0, keepdim=True)
        rows = [float(len(x)) for _ in range(int(x.shape[0]))]
        return x + self.h + torch.tensor(rows)[:, None]


def test_an_axis_that_the_code_fixes_is_an_error_that_names_it() -> None:
    with pytest.raises(StageError, match="batch"):
        rewrite(Specializes(), "batch", 3, axes=[Axis("batch", 1, 2, 8)])


def test_an_operator_without_shape_function_names_the_users_line() -> None:
    class Numpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h + torch.from_numpy(x.numpy() * 2)
            return self.h

    with pytest.raises((StageError, StateError)) as caught:
        rewrite(Numpy(), 3)
    assert caught.value.file == __file__
