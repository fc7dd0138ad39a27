"""What every model of the zoo is put through: TorchScript, and ONNX with its state carried."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp

Make = Callable[[], nn.Module]
DynamicAxes = Mapping[str, Mapping[int, str]]


@pytest.fixture
def scripted() -> Callable[[nn.Module], torch.jit.ScriptModule]:
    """Return ``torch.jit.script`` without the word that it is deprecated."""

    def script(module: nn.Module) -> torch.jit.ScriptModule:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
            return torch.jit.script(module)

    return script


@pytest.fixture
def script_equals_eager(scripted) -> Callable[[Make, Sequence[torch.Tensor]], None]:
    """Return a check: the scripted module gives what the module gives, step after step."""

    @torch.inference_mode()
    def check(make: Make, steps: Sequence[torch.Tensor]) -> None:
        eager, script = make(), scripted(make())
        for x in steps:
            torch.testing.assert_close(script(x), eager(x), rtol=0, atol=0)
        torch.testing.assert_close(
            dict(script.named_buffers()), dict(eager.named_buffers()), rtol=0, atol=0
        )

    return check


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., sp.StatefulRunner]:
    """Return what exports a module and loads it in a runner."""

    def export(
        module: nn.Module, x: torch.Tensor, dynamic_axes: DynamicAxes, **options: Any
    ) -> sp.StatefulRunner:
        path = tmp_path / "model.onnx"
        sp.export_onnx(module, (x,), path, dynamic_axes=dynamic_axes, **options)
        return sp.StatefulRunner(path)

    return export


@pytest.fixture
def runner_equals_eager(exported) -> Callable[..., sp.StatefulRunner]:
    """Return a check: the exported module gives what the module gives, and again after a reset.

    The first of ``steps`` is the example of the export; all have one size of ``batch``.
    """

    def check(
        make: Make, steps: Sequence[torch.Tensor], dynamic_axes: DynamicAxes, **options: Any
    ) -> sp.StatefulRunner:
        runner = exported(make(), steps[0], dynamic_axes, **options)
        ((name, axes),) = dynamic_axes.items()
        sizes = {axis: steps[0].shape[dim] for dim, axis in axes.items()}
        module = make()
        _widen(module, runner, sizes)
        for _ in range(2):
            for step, x in enumerate(steps):
                got = runner.run({name: x.numpy()})["output"]
                with torch.inference_mode():
                    expected = module(x).numpy()
                _assert_close(got, expected, f"step {step}")
            for state, value in runner.state.items():
                _assert_close(value, module.get_buffer(state).numpy(), state)
            runner.reset()
            module.reset_states()
        return runner

    return check


def _widen(module: nn.Module, runner: sp.StatefulRunner, sizes: Mapping[str, int]) -> None:
    """Give the module's states the sizes of the axes that they follow."""
    for state in runner.contract.states:
        shape = [sizes.get(dim, dim) for dim in state.shape]
        owner, _, name = state.name.rpartition(".")
        value = module.get_buffer(state.name).expand(shape).clone()
        setattr(module.get_submodule(owner), name, value)


def _assert_close(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=what)
