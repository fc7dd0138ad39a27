"""Verification finds what is wrong with a target: where, when, and in which mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.contract import Axis
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.reference import Reference, StateDef
from stateful_pipeline.model.schedule import Schedule, schedules
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.rollouts import TargetRollouts, roll_out

PLAN = InputPlan([Input("x", torch.float32, (2, 4), Uniform())])
TIGHT = Tolerance(1e-6, 1e-5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.full((4,), 0.9))
        self.register_buffer("h", torch.ones(2, 4))
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.h * self.scale
        self.h = y + x
        self.n = self.n + 1
        return y


@pytest.fixture
def model(tmp_path) -> Path:
    sp.export_onnx(Model().eval(), (torch.ones(2, 4),), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def verify(
    path: Path, steps: int = 6, tolerance: Tolerance = TIGHT, reset_every=None, sabotage=None
):
    found = discover(Model().eval(), lambda m, i: m(i["x"]), PLAN, (), {})
    target = TargetRollouts(partial(StatefulRunner, path, threads=1), tolerance)
    if sabotage is not None:
        sabotage(target)
    roll_out(found.reference, PLAN, [target], Schedule({}), 0, steps, reset_every)
    assert target.error is None
    return target.report()


def rewired(path: Path, change) -> Path:
    """Write a copy of the model that ``change(graph)`` has spoilt."""
    model = onnx.load(path)
    change(model.graph)
    spoilt = path.with_name("spoilt.onnx")
    onnx.save(model, spoilt)
    return spoilt


def test_a_right_target_passes(model) -> None:
    report = verify(model, reset_every=4)
    assert report["passed"]
    assert report["first_bad"] is None
    assert report["steps"] == 6
    assert len(report["per_step"]) == 6
    assert report["reset"]["passed"]
    assert set(report["rollouts"][0]["tensors"]) == {"output", "state h", "state n"}
    assert [r["mode"] for r in report["rollouts"]] == ["free-running", "teacher-forced"]


def test_a_flipped_weight_is_found_at_the_first_step(model) -> None:
    def flip(graph) -> None:
        (weight,) = (t for t in graph.initializer if t.name == "scale")
        array = numpy_helper.to_array(weight).copy()
        array[2] = -array[2]
        weight.CopyFrom(numpy_helper.from_array(array, "scale"))

    report = verify(rewired(model, flip))
    assert not report["passed"]
    assert report["first_bad"]["step"] == 0
    assert report["first_bad"]["tensor"] == "output"
    assert report["first_bad"]["index"][1] == 2
    assert report["first_bad"]["expected"] == pytest.approx(0.9)
    assert report["first_bad"]["got"] == pytest.approx(-0.9)


def freeze(graph) -> None:
    """Let h_out be h_in."""
    producer = next(node for node in graph.node if "h_out" in node.output)
    producer.output[list(producer.output).index("h_out")] = "unused"
    graph.node.append(onnx.helper.make_node("Identity", ["h_in"], ["h_out"]))


def test_a_frozen_state_shows_as_a_state_at_step_0_and_as_an_output_at_step_1(model) -> None:
    report = verify(rewired(model, freeze))
    free, forced = report["rollouts"]
    assert (report["first_bad"]["kind"], report["first_bad"]["tensor"]) == ("state", "h")
    assert report["first_bad"]["step"] == 0
    # from the right state every output is right: only the state after the step is wrong
    assert forced["tensors"]["output"] < 1e-6
    assert free["tensors"]["output"] > 0.1


def test_errors_accumulate_when_free_and_do_not_when_forced(model) -> None:
    def drift(graph) -> None:
        producer = next(node for node in graph.node if "h_out" in node.output)
        producer.output[list(producer.output).index("h_out")] = "exact"
        graph.initializer.append(numpy_helper.from_array(np.float32(1e-4), "slip"))
        graph.node.append(onnx.helper.make_node("Add", ["exact", "slip"], ["h_out"]))

    report = verify(rewired(model, drift), steps=12, tolerance=Tolerance(3e-4, 0.0))
    free, forced = report["rollouts"]
    assert forced["passed"]
    assert not free["passed"]
    assert free["first_bad"]["step"] > 1
    assert free["per_step"][-1] > 3 * forced["per_step"][-1]


def test_an_integer_state_must_be_exact(model) -> None:
    def twice(graph) -> None:
        producer = next(node for node in graph.node if "n_out" in node.output)
        producer.output[0] = "once"
        graph.node.append(onnx.helper.make_node("Add", ["once", "once"], ["n_out"]))

    report = verify(rewired(model, twice), tolerance=Tolerance(100.0, 100.0))
    assert (report["first_bad"]["tensor"], report["first_bad"]["got"]) == ("n", 2)


def test_a_reset_that_does_not_reset_is_found(model) -> None:
    def sabotage(target: TargetRollouts) -> None:
        reset = target._free.reset
        calls = []

        def forgetful() -> None:
            calls.append(1)
            if len(calls) == 1:  # the one that begins the rollout; the final one does nothing
                reset()

        target._free.reset = forgetful

    report = verify(model, sabotage=sabotage)
    assert report["reset"]["passed"] is False
    assert report["passed"] is False
    assert report["first_bad"] is None


def test_a_target_that_fails_to_run_has_an_error_and_harms_no_other(model) -> None:
    found = discover(Model().eval(), lambda m, i: m(i["x"]), PLAN, (), {})

    def clashes(graph) -> None:
        """Look the count up in a table of three."""
        graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "table"))
        producer = next(node for node in graph.node if "output" in node.output)
        producer.output[list(producer.output).index("output")] = "real"
        graph.node.append(onnx.helper.make_node("Gather", ["table", "n_in"], ["zero"]))
        graph.node.append(onnx.helper.make_node("Add", ["real", "zero"], ["output"]))

    good = TargetRollouts(partial(StatefulRunner, model, threads=1), TIGHT)
    bad = TargetRollouts(partial(StatefulRunner, rewired(model, clashes), threads=1), TIGHT)
    roll_out(found.reference, PLAN, [bad, good], Schedule({}), 0, 5, None)
    assert "step 3" in str(bad.error)
    assert good.report()["passed"]


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x.sum(0)
        return x + self.h


class Shrinks(Sums):
    """Starts again at a step that is shorter than the last, which the model does not know."""

    last = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < self.last:
            self.h = torch.zeros_like(self.h)
        self.last = x.shape[0]
        return super().forward(x)


def test_what_depends_on_the_size_of_the_last_step_shows_where_sizes_change(tmp_path) -> None:
    path, axis = tmp_path / "model.onnx", Axis("time", 1, 3, 6)
    sp.export_onnx(Sums().eval(), (torch.ones(3, 4),), path, dynamic_axes={"x": {0: "time"}})
    plan = InputPlan([Input("x", torch.float32, ("time", 4), Uniform())])
    states = [StateDef("h", ("h",), (4,), torch.zeros(4))]

    def verdicts(module: nn.Module) -> list[bool]:
        reference = Reference(module.eval(), states, lambda m, i: m(i["x"]), [axis])
        passed = []
        for schedule in schedules([axis], states):
            target = TargetRollouts(partial(StatefulRunner, path, threads=1), TIGHT)
            roll_out(reference, plan, [target], schedule, 0, 8, None)
            assert target.error is None
            passed.append(target.report()["passed"])
        return passed

    assert verdicts(Sums()) == [True, True, True, True]
    assert verdicts(Shrinks()) == [True, True, True, False]


class Overflows(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("h", torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.h = self.h * self.factor
        return x, torch.where(x > 0, self.h, x)


@pytest.mark.parametrize(
    ("factor", "passed", "owed"),
    [
        (float("nan"), None, "was never finite"),
        (1e20, None, "was finite in 2 of 32 steps only"),
        (0.5, True, None),
    ],
)
def test_nothing_is_proven_by_what_is_never_finite(factor, passed, owed, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    sp.export_onnx(Overflows(factor).eval(), (torch.ones(2, 4),), path)
    found = discover(Overflows(factor).eval(), lambda m, i: m(i["x"]), PLAN, (), {})
    target = TargetRollouts(partial(StatefulRunner, path, threads=1), TIGHT)
    roll_out(found.reference, PLAN, [target], Schedule({}), 0, 16, None)
    report = target.report()
    reasons = [f"'h' {owed}: give the inputs a range in which it is"] if owed else []
    assert (report["passed"], report["owed"]) == (passed, reasons)
    assert (report["non_finite"] == {}) is (not owed)
    if owed:
        assert report["non_finite"]["state h"] > 0.9
        assert 0 < report["non_finite"]["output_1"] < 1
        assert "output_0" not in report["non_finite"]
