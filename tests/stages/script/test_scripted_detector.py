"""A scripted file alone, as public models come: states that are plain attributes, sized lazily.

The model is a voice-activity detector like those that are published so: a context of the last
samples, the state of an LSTM, branches on the sample rate, and attributes that remember the last
rate and batch size, to reset when they change.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import stateful_pipeline as sp
from stateful_pipeline.model.jit import quiet_scripting

MODEL = """
import torch
from torch import nn


class Rate(nn.Module):
    def __init__(self, width: int, context: int):
        super().__init__()
        self.context = context
        self.conv = nn.Conv1d(1, 6, width, stride=width // 2)
        self.rnn = nn.LSTMCell(6, 5)
        self.head = nn.Linear(5, 1)

    def forward(self, x, state):
        features = self.conv(x.unsqueeze(1)).relu().mean(-1)
        h, c = self.rnn(features, (state[0], state[1]))
        return self.head(h.relu()).sigmoid(), torch.stack([h, c])


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self._model = Rate(8, 4)
        self._model_8k = Rate(4, 2)
        self._state = torch.zeros(0)
        self._context = torch.zeros(0)
        self._last_sr = 0
        self._last_batch_size = 0

    @torch.jit.export
    def reset_states(self, batch: int = 1):
        self._state = torch.zeros(2, batch, 5)
        self._context = torch.zeros(0)
        self._last_sr = 0
        self._last_batch_size = 0

    def forward(self, x, sr: int):
        if sr != 16000 and sr != 8000:
            raise ValueError("16000 or 8000")
        if x.shape[-1] != (32 if sr == 16000 else 16):
            raise ValueError("a chunk is 32 or 16 samples")
        batch = x.shape[0]
        if not len(self._state):
            self.reset_states(batch)
        if self._last_sr and self._last_sr != sr:
            self.reset_states(batch)
        if self._last_batch_size and self._last_batch_size != batch:
            self.reset_states(batch)
        context = self._model.context if sr == 16000 else self._model_8k.context
        if not len(self._context):
            self._context = torch.zeros(batch, context)
        x = torch.cat([self._context.to(x.device), x], 1)
        if sr == 16000:
            out, self._state = self._model(x, self._state)
        else:
            out, self._state = self._model_8k(x, self._state)
        self._context = x[:, -context:]
        self._last_sr = sr
        self._last_batch_size = batch
        return out
"""

SPEC = """
name: detector
source: {torchscript: detector.jit, reset: reset_states}
inputs:
  x: {shape: [1, 32]}
  sr: {value: 16000}
attributes:
  _last_sr: {value: 16000}
  _last_batch_size: {value: 1}
verify: {steps: 12, reset_every: 5}
benchmark: {steps: 0}
mlflow: {enabled: false}
"""


@pytest.fixture
def spec(project) -> Iterator[Path]:
    """Write ``detector.jit`` and its spec; nothing is left of the Python code."""
    path = project.write("detector.py", MODEL)
    found = importlib.util.spec_from_file_location("scripted_detector_model", path)
    python = importlib.util.module_from_spec(found)
    found.loader.exec_module(python)
    torch.manual_seed(0)
    with quiet_scripting():
        torch.jit.save(torch.jit.script(python.Detector().eval()), project.folder / "detector.jit")
    path.unlink()
    return project.write("detector.yaml", SPEC)


def stream(project, rate: int, batch: int = 1) -> Iterator[tuple[dict, np.ndarray]]:
    """Yield the feeds and eager outputs of a stream."""
    with quiet_scripting():
        eager = torch.jit.load(project.folder / "detector.jit")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(10):
            x = torch.randn((batch, rate // 500), generator=generator)
            yield {"x": x.numpy()}, eager(x, rate).numpy()


@pytest.mark.parametrize(
    ("rate", "batch", "reset"), [(16000, 1, True), (8000, 1, True), (16000, 2, False)]
)
def test_a_scripted_file_alone_becomes_a_runner_with_its_states(
    project, spec, rate, batch, reset
) -> None:
    ran = project.run(
        spec, "--set", f"inputs.sr.value={rate}", "--set", f"attributes._last_sr.value={rate}",
        "--set", f"inputs.x.shape=[{batch}, {rate // 500}]",
        "--set", f"attributes._last_batch_size.value={batch}",
        *([] if reset else ["--set", "source.reset=null"]),
    )  # fmt: skip
    assert ran.code == 0, ran.text
    path = project.out / "detector" / "export" / "model.onnx"
    runner = sp.StatefulRunner(path)
    for _ in range(2):
        for feeds, expected in stream(project, rate, batch):
            np.testing.assert_allclose(runner.run(feeds)["output"], expected, atol=1e-5)
        runner.reset()
    graph = onnx.load(path).graph
    assert {value.name for value in graph.input} == {"x", "_context_in", "_state_in"}
    assert not [node for node in graph.node if node.op_type == "If"]


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_its_python_code_gives_the_same_through_either_front_end(project, spec, frontend) -> None:
    project.write("detector.py", MODEL)
    path = project.write("python.yaml", SPEC.replace(
        "torchscript: detector.jit,", 'file: "detector.py:Detector",'
    ))  # fmt: skip
    ran = project.run(path, "--set", f"script.frontend={frontend}")
    assert ran.code == 0, ran.text
    states = sp.StatefulRunner(project.out / "detector" / "export" / "model.onnx").contract.states
    assert {state.name: state.shape for state in states} == {
        "_context": (1, 4),
        "_state": (2, 1, 5),
    }


def test_a_rate_that_differs_from_the_fixed_attribute_is_refused_with_its_line(
    project, spec
) -> None:
    ran = project.run(spec, "--set", "attributes._last_sr.value=8000")
    assert ran.code == 3
    assert "state '_last_sr': is fixed to 8000 under `attributes`" in ran.text
    line = next(i for i, text in enumerate(MODEL.splitlines(), 1) if "self._last_sr = sr" in text)
    assert f"detector.py:{line}:" in ran.text


def test_a_number_that_hides_the_form_of_a_state_is_asked_to_be_fixed(project, spec) -> None:
    ran = project.run(spec, "--set", "attributes._last_batch_size=null")
    assert ran.code == 3
    assert "attributes: {_last_batch_size: {value: ...}}" in ran.text.replace("\n", " ")


def test_inspect_says_what_blocks_it(project, spec) -> None:
    spec.write_text(spec.read_text().replace("_last_sr: {value: 16000}", "_last_sr: {value: 8000}"))
    ran = project.cli("inspect", spec, "--json")
    (line,) = ran.lines
    (blocker,) = line["blockers"]
    assert "state '_last_sr': is fixed to 8000" in blocker


def test_inspect_lists_its_states_and_leaves_out_what_is_fixed(project, spec) -> None:
    ran = project.cli("inspect", spec, "--json")
    assert ran.code == 0, ran.text
    (line,) = ran.lines
    assert {row["name"] for row in line["states"]} == {"_context", "_state"}
    assert line["frontend"] == "torchscript"
