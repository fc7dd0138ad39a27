"""A model that does not compute what eager computes never reaches its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StageError
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.schedule import schedules
from stateful_pipeline.stages.rewrite.functional import make_functional
from stateful_pipeline.stages.verify.draft import check_draft, tolerance_for

AXES = (Axis("time", 1, 3, 6),)
PLAN = InputPlan([Input("x", torch.float32, ("time", 4), Uniform())])


class Sums(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 0.5, dtype=dtype))
        self.register_buffer("h", torch.zeros(4, dtype=dtype))
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * self.scale + x.sum(0).to(self.h.dtype)
        self.n = self.n + 1
        return x + self.h.float()


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "model.onnx"
    sp.export_onnx(Sums().eval(), (torch.ones(3, 4),), path, dynamic_axes={"x": {0: "time"}})
    return path


def captured(dtype: torch.dtype = torch.float32):
    reference = discover(Sums(dtype).eval(), lambda m, i: m(i["x"]), PLAN, AXES, {}).reference
    program = capture(reference, PLAN, {"time": 3})
    return make_functional(program, reference.states), reference


def check(path: Path) -> None:
    program, reference = captured()
    check_draft(path, program, reference, PLAN, schedules(AXES, reference.states))


def rewired(path: Path, change) -> Path:
    """Write a copy of the model that ``change(graph)`` has spoilt."""
    model = onnx.load(path)
    change(model.graph)
    spoilt = path.with_name("spoilt.onnx")
    onnx.save(model, spoilt)
    return spoilt


def replace_output(graph, name: str, operator: str, inputs: list[str], **attributes) -> None:
    """Compute the graph output ``name`` by ``operator`` from ``inputs``; it itself is ``was``."""
    for node in graph.node:
        for index, made in enumerate(node.output):
            if made == name:
                node.output[index] = "was"
        for index, taken in enumerate(node.input):
            if taken == name:
                node.input[index] = "was"
    graph.node.append(onnx.helper.make_node(operator, inputs, [name], **attributes))


def test_a_right_model_is_accepted(model) -> None:
    check(model)


def test_a_wrong_value_is_refused_with_step_tensor_values_and_line(model) -> None:
    def flip(graph) -> None:
        (weight,) = (t for t in graph.initializer if t.name == "scale")
        weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), "scale"))

    with pytest.raises(StageError) as caught:
        check(rewired(model, flip))
    text = str(caught.value)
    assert "of step 1 (time=3, free-running)" in text
    assert "ONNX exporter or of ONNX Runtime" in text
    assert "should be" in text
    assert caught.value.stage == "export"
    assert caught.value.file == __file__
    assert caught.value.line is not None


def test_an_integer_that_is_one_too_large_is_refused(model) -> None:
    with pytest.raises(StageError, match=r"state 'n' of step 0 .* should be 1 and is 2"):
        check(rewired(model, lambda g: replace_output(g, "n_out", "Add", ["was", "was"])))


def test_a_model_that_is_wrong_only_after_a_longer_step_is_refused(model) -> None:
    """h is used as it was at the step of the largest size so far."""

    def forgets(graph) -> None:
        # n counts as it should; from step 3 on the state is off, which only rollouts show
        graph.initializer.append(numpy_helper.from_array(np.int64(3), "three"))
        graph.node.append(onnx.helper.make_node("GreaterOrEqual", ["n_in", "three"], ["late"]))
        graph.node.append(onnx.helper.make_node("Cast", ["late"], ["off"], to=1))
        replace_output(graph, "h_out", "Add", ["was", "off"])

    with pytest.raises(StageError, match=r"state 'h' at .* of step 3"):
        check(rewired(model, forgets))


def test_a_model_that_the_runner_refuses_is_refused(model) -> None:
    def double(graph) -> None:
        replace_output(graph, "output", "Cast", ["was"], to=onnx.TensorProto.DOUBLE)
        (value,) = (v for v in graph.output if v.name == "output")
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE

    with pytest.raises(
        StageError, match=r"runner refuses .*'output' is tensor\(double\)"
    ) as caught:
        check(rewired(model, double))
    assert str(model.parent) not in str(caught.value)


def test_a_model_that_fails_at_a_later_step_is_refused(model) -> None:
    def looks_up(graph) -> None:
        graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "table"))
        graph.node.append(onnx.helper.make_node("Gather", ["table", "n_in"], ["zero"]))
        replace_output(graph, "output", "Add", ["was", "zero"])

    with pytest.raises(StageError, match=r"at time=3: the target does not run at step 2"):
        check(rewired(model, looks_up))


def test_graphs_that_compute_in_half_precision_may_differ_by_more() -> None:
    single = tolerance_for(captured()[0])
    half = tolerance_for(captured(torch.float16)[0])
    assert single.atol < 1e-3 < half.atol
