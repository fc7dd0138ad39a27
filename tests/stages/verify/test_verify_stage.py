from __future__ import annotations

import json

import onnx
from onnx import numpy_helper

from stateful_pipeline.stages.verify import run as verify


def test_the_report_has_steps_states_and_corners(run_stages) -> None:
    artifacts = run_stages(last="verify")
    report = json.loads((artifacts.folder / "verify" / "report.json").read_text())
    assert report["schema"] == 1
    cpu = report["targets"]["cpu"]
    assert (cpu["passed"], cpu["owed"], cpu["steps"], cpu["first_bad"]) == (True, [], 6, None)
    assert cpu["max_abs_error"] < 1e-5
    assert {r["sizes"]["batch"] for r in cpu["rollouts"]} == {1, 2, 4}
    assert {r["mode"] for r in cpu["rollouts"]} == {"free-running", "teacher-forced"}
    assert all("state h" in r["tensors"] for r in cpu["rollouts"])
    assert artifacts.targets["cpu"].passed is True


def test_a_wrong_target_does_not_pass_and_the_other_does(run_stages) -> None:
    artifacts = run_stages("targets.bad={runtime: onnxruntime}", last="build")
    path = artifacts.targets["bad"].artifact
    model = onnx.load(path)
    (weight,) = (t for t in model.graph.initializer if t.name == "decay")
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), "decay"))
    onnx.save(model, path)
    verify.run(artifacts)
    assert artifacts.targets["cpu"].passed is True
    assert artifacts.targets["bad"].passed is False
    assert artifacts.targets["bad"].verify["first_bad"]["step"] >= 1  # h starts as zeros


def test_a_target_that_was_not_built_is_reported(run_stages) -> None:
    artifacts = run_stages(last="build")
    artifacts.targets["cpu"].artifact = None
    artifacts.targets["cpu"].error = ValueError("no engine")
    verify.run(artifacts)
    entry = json.loads((artifacts.folder / "verify" / "report.json").read_text())["targets"]["cpu"]
    assert (entry["passed"], entry["steps"], entry["error"]) == (None, 0, "no engine")


OTHER = """
import torch
from torch import nn

class Sums(nn.Module):
    def __init__(self, factor=0.5):
        super().__init__()
        self.factor = float(factor)
        self.register_buffer("h", torch.ones(3))

    def forward(self, x):
        self.h = self.h * self.factor
        return x.sum(0) * 0 + self.h
"""

TIMED = """
schema: 1
name: sums
source: {file: "other.py:Sums"}
inputs:
  x: {shape: [time, 3]}
dynamic_axes:
  time: {min: 1, opt: 3, max: 5}
targets:
  cpu: {runtime: onnxruntime, provider: cpu, threads: 1}
verify: {steps: 6, seeds: [0]}
"""


def test_one_rollout_changes_the_sizes_that_no_state_follows(run_stages, tmp_path) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    artifacts = run_stages(last="verify", spec=TIMED)
    report = json.loads((artifacts.folder / "verify" / "report.json").read_text())
    rollouts = report["targets"]["cpu"]["rollouts"][::2]
    assert [r["sizes"]["time"] for r in rollouts] == [3, 1, 5, 3]
    assert [r["turns"] for r in rollouts] == [{}, {}, {}, {"time": [1, 3, 5, 3]}]
    assert artifacts.targets["cpu"].passed is True
    assert report["targets"]["cpu"]["non_finite"] == {}


def test_a_target_whose_tensors_are_never_finite_is_owed(run_stages, tmp_path) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    artifacts = run_stages("source.kwargs={factor: nan}", last="benchmark", spec=TIMED)
    report = json.loads((artifacts.folder / "verify" / "report.json").read_text())["targets"]["cpu"]
    owed = [
        f"'{name}' was never finite: give the inputs a range in which it is"
        for name in ("output", "h")
    ]
    assert (report["passed"], report["owed"], report["first_bad"]) == (None, owed, None)
    assert report["non_finite"] == {"output": 1.0, "state h": 1.0}
    assert (artifacts.targets["cpu"].passed, artifacts.targets["cpu"].owed) == (None, owed)
