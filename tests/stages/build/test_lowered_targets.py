"""A bfloat16 model through the whole pipeline: portable as exported, lowered for its target."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import onnx
import pytest

from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.build import run as build

MODEL = """
import torch
from torch import nn

class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("ring", torch.zeros(4, 3, dtype=torch.bfloat16))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.h = self.h * 0.75 + x
        self.ring.index_copy_(0, self.at % 4, self.h.unsqueeze(0))
        self.at.add_(1)
        return self.ring * self.h
"""

SPEC = {
    "source": 'source: {file: "model.py:Smooth"}',
    "  x": "  x: {shape: [3], dtype: bfloat16}",
    "dynamic_axes": "",
    "verify": "verify: {steps: 12, reset_every: 5}",
}


def test_a_bfloat16_state_passes_with_no_difference_at_all(project) -> None:
    ran = project.run(project.spec(model=MODEL, **SPEC))
    assert ran.code == 0, ran.text
    report = json.loads((project.out / "leaky/verify/report.json").read_text())
    cpu = report["targets"]["cpu"]
    assert cpu["passed"] is True
    assert cpu["max_abs_error"] == 0.0
    runner = StatefulRunner(project.out / "leaky/targets/cpu/model.onnx")
    assert runner.contract.state("ring").in_place
    x = np.ones(3, ml_dtypes.bfloat16)
    assert runner.run({"x": x})["output"].dtype == ml_dtypes.bfloat16
    assert runner.run({"x": x})["output"][1].tolist() == [1.75**2] * 3


def test_the_exported_model_is_portable_and_the_manifest_says_what_was_lowered(project) -> None:
    project.run(project.spec(model=MODEL, **SPEC))
    portable = onnx.load(project.out / "leaky/export/model.onnx")
    assert "Cast" not in {node.op_type for node in portable.graph.node}
    lowered = project.manifest()["stages"]["build"]["notes"]["lowered"]["cpu"]
    assert "Mul: bfloat16 in float32" in lowered
    assert not any("ScatterND" in line or "int64" in line for line in lowered)


PORTABLE = """<ir_version: 10, opset_import: ["" : 20]>
g (bfloat16[3] x) => (bfloat16[3] y) { y = Add(x, x) }"""


def test_a_portable_file_says_that_it_must_be_built(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(PORTABLE), path)
    with pytest.raises(ContractError, match="Could not find an implementation") as caught:
        StatefulRunner(path)
    assert "targets/" in str(caught.value)
    assert "runtime='onnxruntime'" in str(caught.value)


def test_a_target_is_lowered_from_a_portable_file(run_stages) -> None:
    artifacts = run_stages(last="export")
    path = artifacts.model
    contract = onnx.load(path).metadata_props
    model = onnx.parser.parse_model(PORTABLE)
    model.metadata_props.extend(contract)
    onnx.save(model, path)
    before = path.read_bytes()
    build.run(artifacts)
    lowered = onnx.load(artifacts.folder / "targets" / "cpu" / "model.onnx")
    assert [node.op_type for node in lowered.graph.node] == ["Cast", "Add", "Cast"]
    assert path.read_bytes() == before
    assert artifacts.notes["build"] == {"lowered": {"cpu": ("Add: bfloat16 in float32",)}}
