"""The scoreboard tells right, silently wrong and refused apart."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scoreboard.py"


@pytest.fixture(scope="module")
def outcomes():
    tools = ["ours", "onnx_by_dynamo", "onnx_by_torchscript"]
    only = ["Perceptron", "Counter", "Noisy"]
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--tool", *tools, "--only", *only]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: list(found.values()) for name, found in json.loads(done.stdout).items()}


def test_a_module_without_state_is_right_with_every_tool(outcomes):
    assert len(outcomes) == 3
    assert {found[0] for found in outcomes.values()} == {"right"}


def test_a_counter_is_frozen_by_the_onnx_exporters_and_right_here(outcomes):
    counter = {name: found[1] for name, found in outcomes.items()}
    assert counter["stateful-pipeline"] == "right"
    assert counter["`torch.onnx.export`, dynamo"] == "wrong: from step 1"
    assert counter["`torch.onnx.export`, TorchScript"].startswith("wrong")


def test_randomness_is_refused_here_and_wrong_elsewhere(outcomes):
    noisy = {name: found[2] for name, found in outcomes.items()}
    assert noisy.pop("stateful-pipeline") == "refused: StateError"
    assert all(text.startswith("wrong") for text in noisy.values())
