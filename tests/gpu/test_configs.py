"""The shipped specs on a GPU: every engine is built, runs there, and equals eager PyTorch."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from stateful_pipeline.available import available_targets
from stateful_pipeline.cli import main

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
CONFIGS = (
    *("causal_conv", "counter", "counter_torchscript", "gate", "gru_stack", "kv_decoder", "lstm"),
    *("running_norm", "tensor_ring", "window_attention"),
)
ENGINES = {
    "cuda": ("onnxruntime", "cuda", "{runtime: onnxruntime, provider: cuda}"),
    "ort-tensorrt": ("onnxruntime", "tensorrt", "{runtime: onnxruntime, provider: tensorrt}"),
    "tensorrt": ("tensorrt", "", "{runtime: tensorrt}"),
    "rtx": ("tensorrt_rtx", "", "{runtime: tensorrt_rtx}"),
}
HALF = {
    "cuda-fp16": ("onnxruntime", "cuda", "runtime: onnxruntime, provider: cuda"),
    "tensorrt-fp16": ("tensorrt", "", "runtime: tensorrt"),
    "rtx-fp16": ("tensorrt_rtx", "", "runtime: tensorrt_rtx"),
}


rows = functools.cache(available_targets)


def needs(runtime: str, provider: str) -> None:
    """Skip, saying why, where a target cannot be built or cannot run."""
    row = next(r for r in rows() if (r.runtime, r.provider) == (runtime, provider))
    if not (row.builds and row.runs):
        pytest.skip(row.reason.partition("\n")[0])


def verdict(folder: Path, name: str, target: str) -> dict:
    with pytest.raises(SystemExit) as end:
        main(["run", str(ROOT / "configs" / f"{name}.yaml"), "--out", str(folder),
              "--set", f"targets={target}", "--set", "mlflow.enabled=false"])  # fmt: skip
    (build,) = (folder / ".builds" / name).iterdir()
    report = json.loads((build / "verify" / "report.json").read_text())
    assert end.value.code == 0, report["targets"]
    return report["targets"]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_shipped_spec_passes(
    engine: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, provider, target = ENGINES[engine]
    needs(runtime, provider)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # ONNX Runtime's TensorRT has no other way
    found = verdict(tmp_path, name, f"{{gpu: {target}}}")
    assert found["gpu"]["passed"] is True
    assert found["gpu"]["owed"] == []


@pytest.mark.parametrize("name", ["lstm", "kv_decoder"])
@pytest.mark.parametrize("engine", HALF)
def test_half_precision_passes_at_its_own_tolerance(engine: str, name: str, tmp_path: Path) -> None:
    runtime, provider, target = HALF[engine]
    needs(runtime, provider)
    more = "precision: fp16, verify: {atol: 0.05, rtol: 0.05, reason: half precision}"
    found = verdict(tmp_path, name, f"{{gpu: {{{target}, {more}}}}}")
    assert found["gpu"]["passed"] is True
    assert found["gpu"]["fp32"]["max_abs_error"] < found["gpu"]["max_abs_error"]
