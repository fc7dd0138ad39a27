"""Random modules of straight-line code: eager, the functional program and ONNX Runtime agree.

A module is a list of instructions over a few buffers (in the module and in a submodule that is
called twice), a local value and the input.  Instructions write in every style that Python has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import stateful_pipeline as sp

ROWS, COLUMNS = 3, 4
NAMES = ("a", "b", "inner.c", "inner.d")

instruction = st.tuples(
    st.sampled_from(
        [
            "reassign",
            "augment",
            "in_place",
            "row",
            "column",
            "at",
            "at_view",
            "index_copy",
            "view_of_view",
            "flat",
            "out",
            "swap",
            "alias",
            "where",
            "copy_self",
            "roll",
            "cat",
            "data",
            "local",
            "local_in_place",
            "mask",
        ]
    ),
    st.sampled_from(NAMES),
    st.sampled_from([*NAMES, "x", "v"]),
    st.integers(0, 2),
)
programs = st.tuples(
    st.lists(instruction, min_size=1, max_size=6), st.lists(instruction, max_size=3)
)


class Inner(nn.Module):
    def __init__(self, code) -> None:
        super().__init__()
        self.register_buffer("c", torch.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS))
        self.register_buffer("d", torch.ones(ROWS, COLUMNS))
        self.code = [(kind, f"inner.{'cd'[k % 2]}", operand, k) for kind, _, operand, k in code]

    def forward(self, outer: Machine, x: torch.Tensor) -> torch.Tensor:
        return outer.execute(self.code, x)


class Machine(nn.Module):
    def __init__(self, program) -> None:
        super().__init__()
        main, code = program
        self.register_buffer("a", torch.zeros(ROWS, COLUMNS))
        self.register_buffer("b", torch.full((ROWS, COLUMNS), 0.5))
        self.register_buffer("n", torch.tensor(0))
        self.inner = Inner(code)
        self.main = main

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.execute(self.main, x)
        v = v + self.inner(self, torch.tanh(v))
        y = self.inner(self, -x)
        self.n += 1
        return v * 0.5 + y + self.a + self.b + self.inner.c

    def holder(self, name: str) -> tuple[nn.Module, str]:
        return (self.inner, name[6:]) if name.startswith("inner.") else (self, name)

    def execute(self, code, x: torch.Tensor) -> torch.Tensor:
        v = x * 1.0
        for kind, target, operand, k in code:
            module, name = self.holder(target)
            buffer = getattr(module, name)
            value = {"x": x, "v": v}.get(operand)
            if value is None:
                value = getattr(*self.holder(operand))
            v = self.step(kind, module, name, buffer, value, k, v)
        return torch.tanh(v)

    def step(self, kind, module, name, t, value, k, v):  # noqa: C901 - a table of statements
        calm = torch.tanh(value)
        match kind:
            case "reassign":
                setattr(module, name, t * 0.5 + calm)
            case "augment":
                t += calm
                setattr(module, name, t)
            case "in_place":
                t.mul_(0.5).add_(calm)
            case "row":
                t[k] = calm[0]
            case "column":
                t[1:, k : k + 2] = calm[1:, :2]
            case "at":
                t[self.n % ROWS] = calm[k]
            case "at_view":
                t[self.n % ROWS].copy_(calm[k])
            case "index_copy":
                t.index_copy_(0, (self.n % ROWS).reshape(1), calm[k : k + 1])
            case "view_of_view":
                t[:2].t()[k].add_(calm[:2, k])
            case "flat":
                t.view(-1)[k : k + 3] = 0.25
            case "out":
                torch.add(t, 0.1, out=t)
            case "swap":
                left, right = self.a, self.b
                self.a, self.b = right, left
            case "alias":
                alias = t[k]
                t.add_(0.1)
                v = v + alias
            case "where":
                setattr(module, name, torch.where(calm > 0, calm, t))
            case "copy_self":
                t.copy_(t.flip(0) + 0.1 * calm)
            case "roll":
                setattr(module, name, torch.roll(t, 1, k % 2))
            case "cat":
                setattr(module, name, torch.cat([t[1:], calm[:1]]))
            case "data":
                t.data.sub_(0.1)
            case "local":
                v = v * 0.5 + calm
            case "local_in_place":
                v[k] += calm[k]
            case "mask":
                t[calm > 0.2] = 0.3
        return v


def check(program, folder: Path) -> None:
    path = folder / "model.onnx"
    x = torch.randn(ROWS, COLUMNS)
    module = Machine(program).eval()
    # export_onnx compares the functional program with eager, bit for bit, before it writes
    contract = sp.export_onnx(module, (x,), path)
    assert {s.name for s in contract.states} <= {"n", *NAMES}
    runner, eager = sp.StatefulRunner(path), Machine(program).eval()
    for step in range(5):
        x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            expected = eager(x).numpy()
        got = runner.run({"x": x.numpy()})["output"]
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-4, err_msg=f"step {step}")
        for name, value in runner.state.items():
            held = getattr(*eager.holder(name)).numpy()
            np.testing.assert_allclose(value, held, atol=1e-5, rtol=1e-4, err_msg=name)


quiet = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@settings(max_examples=25, deadline=None, suppress_health_check=quiet, derandomize=True)
@given(programs)
def test_random_programs(program) -> None:
    run(program)


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=quiet)
@given(programs)
def test_many_random_programs(program) -> None:
    run(program)


def run(program) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        check(program, Path(folder))
