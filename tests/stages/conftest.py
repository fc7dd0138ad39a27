"""Runs stages on a spec, as the runner does, in a folder of the test's own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.benchmark import run as benchmark
from stateful_pipeline.stages.build import run as build
from stateful_pipeline.stages.export import run as export
from stateful_pipeline.stages.rewrite import run as rewrite
from stateful_pipeline.stages.script import run as script
from stateful_pipeline.stages.script.subject import prepare
from stateful_pipeline.stages.verify import run as verify

STAGES = {
    "script": script,
    "rewrite": rewrite,
    "export": export,
    "build": build,
    "verify": verify,
    "benchmark": benchmark,
}

MODEL = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self, size=3, decay=0.5):
        super().__init__()
        self.decay = nn.Parameter(torch.full((size,), float(decay)))
        self.register_buffer("h", torch.zeros(1, size))

    def reset_states(self):
        self.h.fill_(2.0)

    def forward(self, x, gain: float = 1.0):
        self.h = self.h * self.decay + x * gain
        return self.h.tanh()

class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("no weights here")

def not_a_module():
    return 3
"""

SPEC = """
schema: 1
name: leaky
source: {file: "model.py:Leaky"}
inputs:
  x: {shape: [batch, 3]}
dynamic_axes:
  batch: {min: 1, opt: 2, max: 4}
targets:
  cpu: {runtime: onnxruntime, provider: cpu, threads: 1}
verify: {steps: 6, seeds: [0], reset_every: 4}
benchmark: {steps: 20, warmup: 2}
"""


@pytest.fixture
def run_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Artifacts]:
    """Return a function of overrides of the usual spec, one a line, and of the last stage."""
    monkeypatch.chdir(tmp_path)  # paths in overrides are relative to it

    def run(changes: str = "", *, last: str = "benchmark", spec: str = SPEC) -> Artifacts:
        (tmp_path / "model.py").write_text(MODEL)
        path = tmp_path / "leaky.yaml"
        path.write_text(spec)
        overrides = [line.strip() for line in textwrap.dedent(changes).splitlines() if line.strip()]
        loaded = load_spec(path, overrides)
        said: list[str] = []
        artifacts = Artifacts(loaded, tmp_path / "build", said.append)
        artifacts.folder.mkdir(exist_ok=True)
        artifacts.subject = prepare(loaded)
        artifacts.targets = {name: TargetBuild(name) for name in loaded.targets}
        for name, stage in STAGES.items():
            stage.run(artifacts)
            if name == last:
                break
        return artifacts

    return run
