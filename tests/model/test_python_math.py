"""Functions of ``math`` on Python floats that change are in the graph, and give equal numbers."""

import math
from math import cos as cosine

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.model.python_math import NAMES, traced_math

TWO = ("atan2", "pow", "fmod")
SINES = (math.sin,)  # as a global name of its own, it would be replaced, too


class Phase(nn.Module):
    """A phase that is a number, as a module has it whose float is a state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.tensor(0.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        phase = self.phase.item()
        wave = math.sin(phase) + 0.5 * cosine(phase)
        self.phase = torch.scalar_tensor((phase + 0.37) % (2 * math.pi), dtype=torch.float64)
        return x * wave


def exported(module, *arguments):
    with traced_math(module):
        return torch.export.export(module, arguments, strict=False)


def float64(number):
    return torch.tensor(number, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_gives_the_very_number_when_the_graph_runs(name):
    class Function(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            numbers = (x.item(), y.item())[: 2 if name in TWO else 1]
            return torch.scalar_tensor(getattr(math, name)(*numbers), dtype=torch.float64)

    program = exported(Function(), float64(1.0), float64(1.0)).module()
    for x in (0.25, 0.7) if name != "acosh" else (1.25, 3.7):
        numbers = (x, 1.3)[: 2 if name in TWO else 1]
        assert program(float64(x), float64(1.3)).item() == getattr(math, name)(*numbers)


def fail_inside(module):
    with traced_math(module):
        assert math.sin is not SINES[0]
        assert math.sin(0.5) == SINES[0](0.5)  # numbers go to the function itself
        raise ZeroDivisionError


def test_functions_of_math_are_themselves_again_afterwards():
    module = Phase()
    exported(module, torch.ones(3))
    assert math.sin is SINES[0]
    assert cosine is math.cos
    with pytest.raises(ZeroDivisionError):
        fail_inside(module)
    assert math.sin is SINES[0]


def test_an_oscillator_on_a_python_float_equals_eager(tmp_path):
    path = tmp_path / "m.onnx"
    sp.export_onnx(exported(Phase(), torch.ones(3)), (torch.ones(3),), path, frontend="export")
    runner, module = sp.StatefulRunner(path), Phase()
    for step in range(40):
        x = torch.full((3,), 1.0 + step)
        [got] = runner.run({"x": x.numpy()}).values()
        np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-6, atol=1e-6)
