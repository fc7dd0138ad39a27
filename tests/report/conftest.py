"""A whole run's summary, as the runner hands it over."""

from __future__ import annotations

from typing import Any

import pytest

BAD = {
    "step": 2, "tensor": "h", "kind": "state", "expected": 0.12, "got": 0.15,
    "sizes": {"batch": 4}, "seed": 0, "mode": "free-running",
}  # fmt: skip


def rollout(mode: str, **more: Any) -> dict[str, Any]:
    return {
        "mode": mode, "sizes": {"batch": 4}, "seed": 0, "steps": 4, "passed": True,
        "max_abs_error": 2e-7, "tensors": {"output": 1e-7, "h": 2e-7}, "first_bad": None, **more,
    }  # fmt: skip


@pytest.fixture
def summary() -> dict[str, Any]:
    verify = {
        "passed": True, "owed": [], "steps": 4, "max_abs_error": 2e-7, "max_rel_error": 1e-6,
        "first_bad": None, "per_step": [0.0, 1e-7, 2e-7, 1.5e-7], "atol": 1e-5, "rtol": 1e-4,
        "rollouts": [rollout("free-running"), rollout("teacher-forced")],
        "reset": {"passed": True},
    }  # fmt: skip
    benchmark = {
        "sizes": {"batch": 4}, "threads": 1, "steps": 200, "warmup": 20, "p50_ms": 0.5,
        "p95_ms": 0.6, "p99_ms": 0.9, "mean_ms": 0.55, "ratio_p50": 0.5,
        "eager": {"p50_ms": 1.0, "p95_ms": 1.3, "p99_ms": 2.0},
    }  # fmt: skip
    state = {
        "name": "h", "input": "h_in", "output": "h_out", "dtype": "float32",
        "shape": [2, "batch", 8], "init": {"kind": "zeros", "shape": [2, 1, 8]},
        "attribute": "cells.h", "in_place": True, "exercised": False,
    }  # fmt: skip
    return {
        "schema": 1, "name": "lstm", "run_id": "20260101-000000-abcdef", "out": "build/lstm",
        "status": "passed", "spec_digest": "d" * 64, "versions": {"torch": "2.13.0"},
        "host": {"cpu": "a processor", "cores": 2}, "params": {"verify.steps": 4},
        "contract": {
            "schema": 1,
            "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}],
            "outputs": [{"name": "output", "dtype": "float32", "shape": ["batch", 3]}],
            "states": [state],
            "axes": [{"name": "batch", "min": 1, "opt": 4, "max": 16}],
        },
        "frontend": "export",
        "stages": {"script": {"status": "done", "seconds": 1.25, "error": None}},
        "targets": {
            "cpu": {
                "runtime": "onnxruntime", "provider": "cpu", "passed": True, "owed": [],
                "error": None, "optional": False, "artifact": "targets/cpu/model.onnx",
                "bytes": 12345, "verify": verify, "benchmark": benchmark,
            },
        },
    }  # fmt: skip


@pytest.fixture
def failed(summary: dict[str, Any]) -> dict[str, Any]:
    summary["status"] = "failed"
    summary["stages"]["verify"] = {
        "status": "failed",
        "seconds": 0.5,
        "error": "step 2 & 'h'\n<here>",
    }
    cpu = summary["targets"]["cpu"]
    cpu["passed"] = cpu["verify"]["passed"] = False
    cpu["verify"]["first_bad"] = BAD
    cpu["verify"]["per_step"] = [1e-7, 1e-7, 0.03, float("nan")]
    return summary
