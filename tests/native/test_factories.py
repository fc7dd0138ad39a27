"""What ``native/factories`` prints of the factory functions of ``torch::`` and ``at::``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

NO_OUT = "functions with out=... arguments don't support automatic differentiation"


@pytest.fixture(scope="module")
def facts(factories: Path) -> dict[str, Any]:
    done = subprocess.run([factories], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["name"] for line in lines}) == len(lines)
    return {line["name"]: line["value"] for line in lines}


FACTS: dict[str, Any] = {
    # torch:: makes variables where it is asked to.
    "torch::ones": False,
    "torch::rand": False,
    "torch::ones requires_grad()": True,
    "torch::rand requires_grad()": True,
    "torch::rand requires_grad() is_leaf": True,
    "torch::rand requires_grad(false)": False,
    # at:: never does, and does not say so.
    "at::ones": False,
    "at::rand": False,
    "at::ones requires_grad()": False,
    "at::rand requires_grad()": False,
    # out= fills what is there.
    "torch::ones_out values": [1.0] * 4,
    "torch::ones_out": False,
    "torch::rand_out": False,
    "torch::ones_out into a variable error": NO_OUT,
    "torch::rand_out into a variable error": NO_OUT,
    "at::ones_out into a variable error": NO_OUT,
    "torch::ones_out into a variable without gradients": [1.0] * 4,
    "torch::ones_out into a variable without gradients requires_grad": True,
    # Gradients of the mean of four.
    "mean requires_grad": True,
    "mean is_leaf": False,
    "x.grad": [0.25] * 4,
    "y.grad": [1.0],
    "x.grad without retain_grad": [0.25] * 4,
    "retains_grad without retain_grad": False,
    # Twice backward: what is freed is what was kept, and the mean keeps nothing.
    "mean backward twice error": None,
    "x.grad after mean backward twice": [0.5] * 4,
    "square backward twice error": "Trying to backward through the graph a second time",
    "square backward twice with retain_graph error": None,
    # set_requires_grad counts from then on.
    "retain_grad of a plain tensor error": "can't retain_grad on Tensor that has",
    "backward of a plain tensor error": "does not require grad and does not have a grad_fn",
    "at::ones after set_requires_grad": True,
    "mean before set_requires_grad": False,
    "mean after set_requires_grad": True,
    "x.grad after set_requires_grad": [0.25] * 4,
    "y.grad after set_requires_grad": [1.0],
    "set_requires_grad of integers error": "Only Tensors of floating point and complex dtype",
}


@pytest.mark.parametrize("name", FACTS)
def test_fact_is_what_torch_does(facts: dict[str, Any], name: str) -> None:
    if isinstance(FACTS[name], str):
        assert FACTS[name] in facts[name]
    else:
        assert facts[name] == FACTS[name]


def test_no_fact_goes_unchecked(facts: dict[str, Any]) -> None:
    assert set(facts) == set(FACTS)
