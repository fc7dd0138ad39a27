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


ENTRY = {
    "precision": "fp16",
    "first_bad": {"tensor": "y", "step": 3, "expected": 1.0},
    "rollouts": [{"max_abs_error": 2.1e-3}, {"max_abs_error": 1e-5}],
    "fp32": {"max_abs_error": 2.4e-7},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "the worst error is 2.1e-3, 2.4e-7 in fp32"),
        ({}, 'targets.t.verify: {atol: 5.0e-3, reason: "half precision"}'),
        ({"fp32": {"error": "not built"}}, "the worst error is 2.1e-3; if"),
        ({"rollouts": [{"max_abs_error": 4e-3}]}, "{atol: 1.0e-2,"),
        ({"rollouts": [{"max_abs_error": float("inf")}]}, "`precision: bf16` has a wider range"),
        ({"first_bad": {"expected": 3}}, "whole numbers, for which there is no tolerance"),
    ],
)
def test_the_hint_says_what_is_off_and_what_would_do(changes, said):
    assert said in half_hint("t", {**ENTRY, **changes})


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
