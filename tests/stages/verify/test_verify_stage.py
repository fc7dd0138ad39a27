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
