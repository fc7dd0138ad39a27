"""Targets of OpenVINO from spec to verdict: passed, refused, absent, wrong; and what is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stateful_pipeline.runtime import OpenVinoRunner, openvino_engine
from stateful_pipeline.stages.build import openvino_states
from stateful_pipeline.stages.log.records import child_record

ALONE = "targets: {ov: {runtime: openvino, threads: 1}}\n"
BOTH = """\
targets:
  cpu: {runtime: onnxruntime, threads: 1}
  ov: {runtime: openvino, threads: 1, optional: OPTIONAL}
"""
TIMED = {
    "verify": "verify: {steps: 5, seeds: [0], reset_every: 3}",
    "benchmark": "benchmark: {steps: 5, warmup: 1}",
}

COUNTS = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("h", torch.full((1, 3), 3.0))

    def forward(self, x):
        self.calls += 1
        self.h = self.h + x * self.calls
        return self.h * 2
"""

LAST = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        y = x - self.h
        self.h = x.clone()
        return y
"""


def verified(folder):
    return json.loads((folder / "verify" / "report.json").read_text())["targets"]


@pytest.fixture
def _without_openvino(monkeypatch):
    openvino_engine.openvino_core.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)


def test_a_module_passes_free_running_and_teacher_forced_at_all_sizes(project):
    ran = project.run(project.spec(BOTH.replace("OPTIONAL", "false"), **TIMED), "--json")
    assert ran.code == 0
    build = project.out / "leaky"
    cpu, ov = (verified(build)[name] for name in ("cpu", "ov"))
    assert ov.keys() == cpu.keys()
    assert ov["reset"] == {"passed": True, "steps": 3}
    rollouts = [{key: one[key] for key in ("mode", "sizes", "turns")} for one in ov["rollouts"]]
    assert rollouts == [{key: one[key] for key in one_ours} for one, one_ours in
                        zip(cpu["rollouts"], rollouts, strict=True)]  # fmt: skip
    assert {one["sizes"]["batch"] for one in rollouts} == {1, 2, 3}
    assert set(ov["rollouts"][0]["tensors"]) == {"output", "state h"}
    timed = json.loads((build / "timings.json").read_text())["benchmark"]
    assert timed["ov"].keys() == timed["cpu"].keys()
    assert 0 < timed["ov"]["p50_ms"] <= timed["ov"]["p99_ms"]
    folder = build / "targets" / "ov"
    assert {file.name for file in folder.iterdir()} == {"model.xml", "model.bin"}
    runner = OpenVinoRunner(folder / "model.xml")
    x = np.ones((2, 3), np.float32)
    assert [runner.run({"x": x})["output"][0, 0] for _ in range(2)] == [2.0, 3.0]
    assert "openvino" in (build / "report.html").read_text()
    manifest = json.loads((build / "manifest.json").read_text())
    assert manifest["targets"]["ov"]["artifact"] == "targets/ov/model.xml"
    assert "targets/ov/model.bin" in manifest["files"]
    assert manifest["versions"]["openvino"][0].isdigit()


def test_a_state_that_openvino_narrows_is_refused_unless_the_spec_takes_it(project):
    ran = project.run(project.spec(ALONE, model=COUNTS, **TIMED), "--json")
    assert ran.code == 3
    error = ran.lines[0]["targets"]["ov"]["error"]
    assert "state 'calls': it is int64, which OpenVINO computes in 32 bits" in error
    assert "`targets.ov.inexact: [int64]`" in error
    taken = ALONE.replace("threads: 1", "threads: 1, inexact: [int64]")
    ran = project.run(project.spec(taken, model=COUNTS, **TIMED), "--json")
    assert ran.code == 0
    manifest = json.loads((project.out / "leaky" / "manifest.json").read_text())
    assert manifest["stages"]["build"]["notes"]["held"] == {"ov": {"calls": "int64 in int32"}}


SHIFTS = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor([[5, -7, 100000000, -1]], dtype=torch.int32))
        self.register_buffer("u", torch.tensor([[200, 3, 128, 255]], dtype=torch.uint8))

    def forward(self, x):
        steps = (4 * x).to(torch.int32)
        self.n = self.n * 3 + steps
        self.u = self.u + 7
        return torch.cat([self.n >> 3, self.n >> 31, self.n >> steps % 35, self.u >> 2]).float()
"""


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_shifts_to_the_right_are_those_of_eager_also_of_negative_numbers(project, frontend):
    more = f"{ALONE}script: {{frontend: {frontend}}}\n"
    fixed = {"  x": "  x: {shape: [1, 4]}", "dynamic_axes": ""}
    spec = project.spec(more, model=SHIFTS, **TIMED, **fixed)
    assert project.run(spec, "--json").code == 0


WIDE = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.full((1, 3), 1.0))

    def forward(self, x):
        self.h = self.h + x
        return ((self.h * 1000).long() * 3000000019 % 1000).float()
"""


def test_operators_computed_in_another_precision_are_named_where_they_make_a_difference(project):
    ran = project.run(project.spec(ALONE, model=WIDE, **TIMED), "--json")
    assert ran.code == 1
    hint = verified(Path(ran.lines[0]["build"]))["ov"]["hint"]
    assert "another precision than PyTorch" in hint
    assert "Mul: int64 in 32 bits" in hint


def test_a_state_that_shares_memory_with_an_input_is_found_by_verification(project, monkeypatch):
    assert project.run(project.spec(ALONE, model=LAST, **TIMED), "--json").code == 0
    monkeypatch.setattr(openvino_states, "is_handed_on", lambda node: False)
    ran = project.run(project.spec(ALONE, model=LAST, **TIMED), "--json", "--force")
    assert ran.code == 1
    assert ran.lines[0]["targets"]["ov"]["passed"] is False


@pytest.mark.usefixtures("_without_openvino")
def test_a_missing_package_ends_4_and_says_which_extra_to_install(project):
    ran = project.run(project.spec(BOTH.replace("OPTIONAL", "false")), "--json")
    assert ran.code == 4
    assert ran.lines[0]["targets"]["cpu"]["passed"] is True
    assert ran.lines[0]["targets"]["ov"]["passed"] is None
    assert "pip install 'stateful-pipeline[openvino]'" in ran.lines[0]["targets"]["ov"]["error"]


@pytest.mark.usefixtures("_without_openvino")
def test_a_missing_package_lets_the_run_go_on_where_the_target_is_optional(project):
    ran = project.run(project.spec(BOTH.replace("OPTIONAL", "true")), "--json")
    assert ran.code == 0
    assert ran.lines[0]["targets"]["ov"]["passed"] is None


def test_the_command_targets_has_a_row_for_it(project, monkeypatch):
    assert "openvino 2026" in " ".join(project.cli("targets").text.split())
    openvino_engine.openvino_core.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert "[openvino]" in project.cli("targets").text


def test_mlflow_gets_a_run_of_its_own_for_it():
    target = {
        "runtime": "openvino", "provider": None, "optional": False, "passed": True, "owed": [],
        "error": None, "artifact": "targets/ov/model.xml", "bytes": 9,
        "verify": {"passed": True, "steps": 5, "atol": 1e-5, "rtol": 1e-4, "max_abs_error": 0.0},
        "benchmark": {"p50_ms": 1.0, "eager": {"p50_ms": 2.0}},
    }  # fmt: skip
    record = child_record({"status": "passed", "targets": {"ov": target}}, "ov")
    assert record.params["runtime"] == "openvino"
    assert record.tags["verdict"] == "PASSED"
    assert {"p50_ms", "eager_p50_ms"} <= {point.key for point in record.metrics}
