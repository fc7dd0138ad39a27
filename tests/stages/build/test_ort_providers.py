"""What a build of ONNX Runtime for a GPU says in the manifest."""

from __future__ import annotations

from dataclasses import replace

import onnxruntime
import pytest

from stateful_pipeline.runtime.engine import Engine
from stateful_pipeline.runtime.ort_provider import PROVIDERS


def test_a_target_with_a_device_says_what_runs_where(run_stages, monkeypatch) -> None:
    monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], device="cpu"))
    real = Engine._on_device
    monkeypatch.setattr(Engine, "_on_device", lambda *given: real(*given) - {"h_in"})
    artifacts = run_stages(last="build")
    notes = artifacts.notes["build"]
    assert notes["nodes"]["cpu"]["CPUExecutionProvider"]["Mul"] >= 1
    assert notes["on_host"] == {"cpu": ("h",)}


def test_a_target_of_the_cpu_says_nothing_of_that(run_stages) -> None:
    notes = run_stages(last="build").notes.get("build", {})
    assert not {"nodes", "on_host"} & notes.keys()


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_target_whose_provider_is_absent_is_built_and_owed(run_stages, provider) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    asked = f"targets.gpu={{runtime: onnxruntime, provider: {provider}}}"
    build = run_stages(asked, last="build").targets["gpu"]
    assert build.error is None
    assert build.artifact.is_file()
    assert build.passed is None
    assert PROVIDERS[provider].ort_name in build.owed[0]
