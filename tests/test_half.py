"""Targets in half precision from spec to verdict, and what is shown of their cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import OnnxRuntimeTarget, OpenVinoTarget, load_spec
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.in_fp32 import build_in_fp32, in_fp32
from stateful_pipeline.stages.log.records import child_record
from stateful_pipeline.stages.verify.half import half_hint

CONFIGS = Path(__file__).parents[1] / "configs"

HALF = """\
targets:
  cpu:
    runtime: onnxruntime
    threads: 1
    precision: fp16
    half_states: STATES
    verify: {atol: ATOL, rtol: 0, reason: "half precision"}
"""

DENSE = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 3)
        self.register_buffer("h", torch.full((1, 3), 0.1))

    def forward(self, x):
        self.h = 0.9 * self.h + torch.tanh(self.dense(x))
        return self.h * 0.5
"""


def spec(project, states="[]", atol="1.0e-2", **replaced):
    text = HALF.replace("STATES", states).replace("ATOL", atol)
    return project.spec(text, model=DENSE, **replaced)


def verified(folder):
    return json.loads((folder / "verify" / "report.json").read_text())["targets"]["cpu"]


@pytest.mark.parametrize(("states", "dtype"), [("[]", "float32"), ('["h"]', "float16")])
def test_a_target_in_half_passes_with_the_same_in_fp32_beside_it(project, states, dtype):
    ran = project.run(spec(project, states), "--json")
    assert ran.code == 0, ran.text
    build = project.out / "leaky"
    entry = verified(build)
    assert (entry["passed"], entry["precision"]) == (True, "fp16")
    beside = entry["fp32"]
    assert (beside["passed"], beside["steps"]) == (True, 4)
    assert len(beside["per_step"]) == len(entry["per_step"]) == 4
    assert beside["max_abs_error"] < 1e-6 < entry["max_abs_error"] < 1e-2
    assert "hint" not in entry
    runner = StatefulRunner(build / "targets" / "cpu" / "model.onnx")
    assert runner.contract.state("h").dtype == dtype
    runner.run({"x": np.zeros((2, 3), np.float32)})
    wide = StatefulRunner(build / "targets" / "cpu" / "fp32" / "model.onnx")
    assert wide.contract.state("h").dtype == "float32"
    page = (build / "report.html").read_text()
    assert "<b>fp16 costs:</b> max error" in page
    assert page.count('<polyline class="beside"') == 1
    notes = project.manifest()["stages"]["build"]["notes"]
    assert "MatMul: float32 in float16" in notes["half"]["cpu"] or (
        "Gemm: float32 in float16" in notes["half"]["cpu"]
    )


def test_default_tolerances_are_missed_and_the_report_says_which_would_do(project):
    path = spec(project)
    path.write_text(path.read_text().replace("verify: {atol: 1.0e-2", "verify: {atol: 1.0e-6"))
    ran = project.run(path, "--json")
    assert ran.code == 1
    entry = verified(project.builds()[-1])
    assert entry["passed"] is False
    assert "in fp16 '" in entry["hint"]
    suggested = entry["hint"].partition("atol: ")[2].partition(",")[0]
    assert entry["max_abs_error"] < float(suggested) < 1e-1
    assert "`targets.cpu.verify: {atol: " in entry["hint"]
    page = (project.builds()[-1] / "report.html").read_text()
    assert "targets.cpu.verify: {atol: " in page
    again = spec(project, atol=suggested)
    assert project.run(again).code == 0


def test_a_state_that_is_not_there_makes_the_spec_wrong(project):
    path = spec(project, '["hh"]')
    ran = project.run(path, "--json")
    assert ran.code == 2
    error = ran.lines[0]["targets"]["cpu"]["error"]
    assert "did you mean `h`?" in error
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "[" in text
                and "half_states" in text)  # fmt: skip
    assert error.startswith(f"{path}:{line}:")
    assert "targets.cpu.half_states: no state is called `hh`" in error


def test_a_target_in_fp32_has_nothing_beside_it(project):
    assert project.run(project.spec()).code == 0
    build = project.out / "leaky"
    assert not {"fp32", "precision", "hint"} & verified(build).keys()
    assert not (build / "targets" / "cpu" / "fp32").exists()


def test_the_same_in_fp32_keeps_all_other_keys():
    half = OnnxRuntimeTarget(runtime="onnxruntime", precision="fp16", half_states=("h",), threads=2)
    assert in_fp32(half) == OnnxRuntimeTarget(runtime="onnxruntime", threads=2)
    assert in_fp32(OnnxRuntimeTarget(runtime="onnxruntime")) is None
    inside = OpenVinoTarget(runtime="openvino", precision="bf16", threads=3)
    assert in_fp32(inside) == OpenVinoTarget(runtime="openvino", threads=3)


def test_why_there_is_nothing_in_fp32_is_reported(project):
    from stateful_pipeline.errors import StageError
    from stateful_pipeline.stages.verify.half import InFloat32

    loaded = load_spec(spec(project))
    artifacts = Artifacts(loaded, project.folder, print)
    build = TargetBuild("cpu", artifact=project.folder / "targets" / "cpu" / "model.onnx")

    def fails(artifacts, target):
        assert target.name == "cpu/fp32"
        assert artifacts.spec.targets[target.name].precision == "fp32"
        raise StageError("no room left", stage="build")

    build_in_fp32(artifacts, build, fails)
    beside = InFloat32(artifacts, {"cpu": build})
    assert beside.rolling == {}
    entry = beside.add_to("cpu", {"first_bad": None})
    assert entry["fp32"] == {"error": "build: no room left"}


def entry(errors=None, largest=None, *, precision="fp16", forced=None, expected=1.0, beside=2.4e-7):
    """A failed entry with the worst errors of tensors, and how large these are in eager."""
    errors = {"y": 2.1e-3} if errors is None else errors
    rollouts = [
        {"max_abs_error": max(found.values()), "tensors": found}
        for found in (errors, {"y": 1e-5} if forced is None else forced)
    ]
    fp32 = {"error": "not built"} if beside is None else {
        "max_abs_error": beside, "largest": {"y": 1.0} if largest is None else largest,
    }  # fmt: skip
    return {
        "precision": precision, "atol": 1e-5, "max_abs_error": max(errors.values()),
        "first_bad": {"tensor": "y", "step": 3, "expected": expected},
        "rollouts": rollouts, "fp32": fp32,
    }  # fmt: skip


INF = float("inf")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (entry(), "the worst error is 2.1e-3, 2.4e-7 in fp32"),
        (entry(), 'targets.t.verify: {atol: 5.0e-3, reason: "half precision"}'),
        (entry(beside=None), "the worst error is 2.1e-3; if"),
        (entry({"y": 4e-3}), "{atol: 1.0e-2,"),
        (entry({"y": 2e-3}, forced={"y": 4e-3}), "2.0e-3, 4.0e-3 teacher-forced, 2.4e-7 in fp32"),
        (entry({"y": 2e-3}, forced={"y": 4e-3}), "{atol: 1.0e-2,"),
        (entry(expected=3), "whole numbers, for which there is no tolerance"),
    ],
)
def test_the_hint_says_what_is_off_and_what_would_do(found, said):
    assert said in half_hint("t", found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (entry({"y": INF}), "something that 'y' is made of is outside its range"),
        (entry({"y": 0.5, "state h": INF}, {"y": 1, "state h": 3e5}),
         "state 'h' reaches 3.0e5, and fp16 ends at 65504; `targets.t.precision: fp32`, or bf16"),
        (entry({"y": INF}, beside=None), "something that 'y' is made of is outside its range"),
        (entry({"y": 0.11}, precision="bf16"),
         "bf16 does not fit this model: 'y' is off by 1.1e-1, and is 1.0e0 at most: that is no "
         "rounding; `targets.t.precision: fp32`"),
        (entry({"y": 1e-3}, {"y": 0.0}), "'y' is off by 1.0e-3, and is 0.0e0 at most"),
        (entry({"y": 1e-3, "state h": 5e3}, {"y": 1.0, "state h": 5e6}),
         "an `atol` for state 'h', which is off by 5.0e3, would hide any error of 'y', which is "
         "1.0e0 at most"),
    ],
)  # fmt: skip
def test_no_tolerance_is_proposed_for_what_rounding_does_not_explain(found, said):
    hint = half_hint("t", found)
    assert said in hint
    assert "atol:" not in hint
    assert "fewer `half_states`" not in hint
    assert "fewer `half_states`" in half_hint("t", found, half_states=True)


OVERFLOWS = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.full((1, 3), 60000.0))

    def forward(self, x):
        self.h = self.h + 5000
        return torch.tanh(x + self.h * 1e-5)
"""


def test_a_state_that_overflows_in_half_is_named_with_what_it_reaches(project):
    path = project.spec(HALF.replace("STATES", '["h"]').replace("ATOL", "1.0e-2"), model=OVERFLOWS)
    ran = project.run(path, "--json")
    assert ran.code == 1
    entry = verified(project.builds()[-1])
    assert "state 'h' reaches 8.0e4, and fp16 ends at 65504" in entry["hint"]
    assert entry["fp32"]["largest"]["state h"] == 80000


def test_mlflow_gets_both_curves():
    verify = {"max_abs_error": 2e-3, "per_step": [1e-3, 2e-3],
              "fp32": {"max_abs_error": 2e-7, "per_step": [1e-7, 2e-7]}}  # fmt: skip
    points = child_record({"targets": {"cpu": {"verify": verify}}}, "cpu").metrics
    found = {(point.key, point.step): point.value for point in points}
    assert found["fp32_max_abs_error", 0] == 2e-7
    assert found["fp32_abs_error", 1] == 2e-7
    assert found["abs_error", 1] == 2e-3
    assert found["log10_fp32_max_abs_error", 0] == pytest.approx(np.log10(2e-7))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_fp16", "kv_decoder_fp16"])
def test_a_shipped_spec_in_half_passes(project, name):
    ran = project.run(CONFIGS / f"{name}.yaml", "--set", "mlflow.enabled=false",
                      "--set", "benchmark.steps=0", "--json")  # fmt: skip
    assert ran.code == 0, ran.text
    entry = verified(project.out / name)
    assert entry["fp32"]["passed"]
    assert entry["max_abs_error"] > 100 * entry["fp32"]["max_abs_error"]
