"""A run's summary, its build folder, and a MLflow store that is made once and copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateful_pipeline.stages.log import log
from stateful_pipeline.stages.log.store import resolve_store


@pytest.fixture(autouse=True)
def _no_tracking_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    log.prepare(resolve_store(None, path).uri, path)
    return path


@pytest.fixture
def database(empty_store: Path, tmp_path: Path) -> Path:
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copyfile(empty_store, path)
    return path


@pytest.fixture
def summary() -> dict[str, Any]:
    verify = {
        "passed": True, "owed": [], "steps": 3, "max_abs_error": 2e-7, "max_rel_error": 1e-6,
        "first_bad": None, "per_step": [0.0, 1e-7, 2e-7], "atol": 1e-5, "rtol": 1e-4,
        "rollouts": [{"tensors": {"output": 1e-7, "h": 2e-7}}, {"tensors": {"h": 1e-8}}],
        "reset": {"passed": True},
    }  # fmt: skip
    benchmark = {
        "sizes": {"batch": 4}, "threads": 1, "steps": 200, "p50_ms": 0.5, "p95_ms": 0.6,
        "p99_ms": 0.9, "ratio_p50": 0.5, "eager": {"p50_ms": 1.0, "p95_ms": 1.3, "p99_ms": 2.0},
    }  # fmt: skip
    cpu = {
        "runtime": "onnxruntime", "provider": "cpu", "passed": True, "owed": [], "error": None,
        "artifact": "targets/cpu/model.onnx", "bytes": 12, "verify": verify, "benchmark": benchmark,
    }  # fmt: skip
    return {
        "schema": 1, "name": "lstm", "run_id": "20260101-000000-abcdef", "out": "build/lstm",
        "status": "passed", "spec_digest": "d" * 64, "versions": {"torch": "2.13.0"},
        "host": {"cpu": "a processor", "cores": 2},
        "params": {"verify.steps": 3, 'states["cells.0.h"].init': "zeros"},
        "contract": {"schema": 1, "states": [], "inputs": [], "outputs": [], "axes": []},
        "frontend": "export",
        "stages": {"script": {"status": "done", "seconds": 60.0, "error": None}},
        "targets": {"cpu": cpu},
    }  # fmt: skip


@pytest.fixture
def build(tmp_path: Path) -> Path:
    folder = tmp_path / "build"
    for name, text in {
        "report.html": "<p>PASSED</p>",
        "verify/report.json": json.dumps({"schema": 1}),
        "script/before.py": "x = 1\n",
        "rewrite/lstm/after.py": "x = 2\n",
        "export/model.onnx": "not really",
        "targets/cpu/model.onnx": "stays here",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
