"""Targets of TensorRT from spec to verdict: built and owed, absent, refused, wrong."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from stateful_pipeline.runtime.tensorrt_sidecar import read_sidecar

BOTH = """\
targets:
  cpu: {runtime: onnxruntime, threads: 1}
  rtx: {runtime: tensorrt_rtx, optional: OPTIONAL, compute_capabilities: ["8.9"]}
"""
DOUBLE = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3, dtype=torch.float64))

    def forward(self, x):
        self.h = self.h + x
        return self.h.float()
"""

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)


def has_gpu():
    from stateful_pipeline.errors import TargetError
    from stateful_pipeline.runtime.cuda_device import CudaDevice

    try:
        CudaDevice()
    except TargetError:
        return False
    return True


needs_no_gpu = pytest.mark.skipif(has_gpu(), reason="shows what happens without a GPU")


@needs_rtx
@needs_no_gpu
@pytest.mark.parametrize(("optional", "code"), [("true", 0), ("false", 4)])
def test_an_engine_that_cannot_run_here_is_built_and_its_verification_owed(project, optional, code):
    ran = project.run(project.spec(BOTH.replace("OPTIONAL", optional)), "--json")
    assert ran.code == code
    (line,) = ran.lines
    folder = project.builds()[-1]
    report = json.loads((folder / "verify" / "report.json").read_text())["targets"]
    assert report["cpu"]["passed"] is True
    assert report["rtx"]["passed"] is None
    (reason,) = report["rtx"]["owed"]
    assert "built for GPUs of compute capability 8.9, and not run: no CUDA device" in reason
    sidecar = read_sidecar(folder / "targets" / "rtx" / "model.engine")
    assert sidecar.profiles[0].ranges["h_in"] == ((1, 3), (2, 3), (3, 3))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["stages"]["build"]["notes"]["engines"]["rtx"]["compute_capabilities"] == ["8.9"]
    assert "targets/rtx/model.engine" in manifest["files"]
    assert "8.9" in (folder / "report.html").read_text()
    assert line["targets"]["rtx"]["owed"] == [reason]


@needs_rtx
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_engine_in_half_precision_takes_its_states_as_the_spec_says(project, precision):
    targets = f"""\
    targets:
      wide: {{runtime: tensorrt_rtx, optional: true, precision: {precision}}}
      half: {{runtime: tensorrt_rtx, optional: true, precision: {precision}, half_states: [h]}}
    """
    ran = project.run(project.spec(targets))
    assert ran.code == 0
    folder = project.builds()[-1]
    wide, half = (
        read_sidecar(folder / "targets" / name / "model.engine") for name in ("wide", "half")
    )
    assert wide.precision == half.precision == precision
    assert wide.contract.state("h").dtype == "float32"
    assert half.contract.state("h").dtype == {"fp16": "float16", "bf16": "bfloat16"}[precision]


@needs_no_gpu
def test_tensorrt_itself_needs_a_gpu_to_build_on(project):
    ran = project.run(project.spec("targets: {trt: {runtime: tensorrt}}\n"))
    assert ran.code == 4
    assert "tensorrt" in ran.text
    assert "try:" in ran.text
    assert not list((project.builds()[-1] / "targets").glob("*/*"))


@needs_rtx
def test_profiles_that_verification_leaves_are_an_error_with_the_line(project):
    targets = """\
    targets:
      rtx:
        runtime: tensorrt_rtx
        optional: true
        profiles: {small: {batch: [1, 1, 2]}}
    """
    spec = project.spec(targets)
    ran = project.run(spec)
    assert ran.code == 2
    line = next(i for i, text in enumerate(spec.read_text().splitlines(), 1) if "small" in text)
    assert f"leaky.yaml:{line}:" in ran.text
    assert "no profile covers batch=3" in ran.text
    assert "small: batch 1 to 2" in ran.text


def test_profiles_of_onnx_runtimes_tensorrt_are_held_against_verification_too(project):
    targets = """\
    targets:
      ort:
        runtime: onnxruntime
        provider: tensorrt
        optional: true
        profiles: {small: {batch: [1, 1, 2]}}
    """
    ran = project.run(project.spec(targets))
    assert ran.code == 2
    assert "no profile covers batch=3" in ran.text


def test_a_timing_cache_without_a_folder_is_an_error_before_anything_is_built(project):
    targets = "targets: {trt: {runtime: tensorrt, optional: true, timing_cache: gone/trt.cache}}\n"
    ran = project.run(project.spec(targets))
    assert ran.code == 2
    assert "there is no folder" in ran.text
    assert "leaky.yaml:" in ran.text


@needs_rtx
@needs_no_gpu
@pytest.mark.parametrize("first", ["verify", "benchmark", "log"])
def test_what_is_owed_stays_owed_where_an_earlier_engine_is_taken(project, first):
    timed = "benchmark: {steps: 3, warmup: 1}"
    spec = project.spec(BOTH.replace("OPTIONAL", "true"), benchmark=timed)
    assert project.run(spec).code == 0
    ran = project.run(spec, "--from", first, "--json")
    assert ran.code == 0
    assert ran.lines[0]["stages"]["build"] == "reused"
    assert ran.lines[0]["targets"]["cpu"]["passed"] is True
    assert "no CUDA device" in ran.lines[0]["targets"]["rtx"]["owed"][0]
    page = (project.out / "leaky" / "report.html").read_text()
    assert "owed" in page
    assert ">FAILED<" not in page


def test_a_library_that_cannot_be_imported_is_a_row_of_targets(project, monkeypatch):
    project.write("tensorrt_rtx.py", "raise RuntimeError('no driver for it')\n")
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    ran = project.cli("targets")
    assert ran.code == 0
    assert "no driver for it" in ran.text


@needs_rtx
def test_flags_that_there_are_not_are_an_error_with_the_line(project):
    spec = project.spec("targets: {rtx: {runtime: tensorrt_rtx, flags: [FP17]}}\n")
    ran = project.run(spec)
    assert ran.code == 2
    assert "no builder flag FP17" in ran.text
    assert "leaky.yaml:" in ran.text


@needs_rtx
def test_a_state_that_tensorrt_lacks_stops_its_target_alone(project):
    ran = project.run(project.spec(BOTH.replace("OPTIONAL", "true"), model=DOUBLE))
    assert ran.code == 3
    assert "state 'h': it is float64: TensorRT computes float64 in float32" in ran.text
    report = json.loads((project.builds()[-1] / "verify" / "report.json").read_text())["targets"]
    assert report["cpu"]["passed"] is True


def test_targets_says_what_is_missing_for_each_engine(project):
    text = project.cli("targets").text
    for runtime in ("tensorrt", "tensorrt_rtx", "openvino", "cuda"):
        assert runtime in text
    assert "not supported yet" not in text
