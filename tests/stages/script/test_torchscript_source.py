"""``source: {torchscript: file}``: what ``torch.jit.save`` wrote is loaded and looked into."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.scripted import is_scripted
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.script.subject import prepare

MODEL = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("h", torch.zeros(1, 3))

    @torch.jit.export
    def reset_states(self) -> None:
        self.h.fill_(2.0)

    def not_exported(self) -> None:
        self.h.fill_(3.0)

    def forward(self, x: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
        self.h = self.h * self.decay + x * gain
        return self.h.tanh()
"""

SPEC = """
name: leaky
source: {torchscript: leaky.jit}
inputs:
  x: {shape: [batch, 3]}
dynamic_axes: {batch: {min: 1, opt: 2, max: 4}}
"""


@pytest.fixture
def module(tmp_path: Path) -> nn.Module:
    """Write ``leaky.jit``; return the module that it was made from."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("torchscript_source_model", path)
    python = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(python)
    module = python.Leaky()
    with quiet_scripting():
        torch.jit.script(module).save(tmp_path / "leaky.jit")
    path.unlink()  # the file needs no sources
    return module


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Subject]:
    monkeypatch.chdir(tmp_path)  # paths in overrides are relative to it

    def run(*changes: str) -> Subject:
        (tmp_path / "leaky.yaml").write_text(SPEC)
        return prepare(load_spec(tmp_path / "leaky.yaml", list(changes)))

    return run


def test_a_scripted_file_is_loaded_with_its_states(module, load) -> None:
    subject = load()
    assert is_scripted(subject.module)
    assert not subject.module.training
    (state,) = subject.discover().reference.states
    assert (state.name, state.shape, state.kind) == ("h", ("batch", 3), "buffer")
    x = {"x": torch.ones(2, 3)}
    (step,) = subject.discover().reference.rollout({"batch": 2}, [x])
    assert torch.equal(step.outputs["output"], module(x["x"]))


def test_the_line_of_a_change_is_that_of_its_source(module, load) -> None:
    place = load().places(["h"])["h"]
    assert Path(place.file).name == "model.py"
    assert MODEL.splitlines()[place.line - 1].strip().startswith("self.h = ")


def test_the_initial_value_comes_from_an_exported_reset(module, load) -> None:
    (state,) = load("source.reset=reset_states").discover().reference.states
    assert state.initial.tolist() == [[2.0] * 3]


def test_a_reset_that_was_not_exported_is_asked_for(module, load) -> None:
    with pytest.raises(SourceError, match="Leaky has no 'not_exported'") as caught:
        load("source.reset=not_exported")
    assert "torch.jit.export" in str(caught.value)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weights_are_loaded(module, load, tmp_path, suffix) -> None:
    weights = {"decay": torch.tensor([0.1, 0.2, 0.3]), "h": torch.ones(1, 3)}
    path = tmp_path / f"w.{suffix}"
    save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    loaded = load(f"source.weights=w.{suffix}").module
    assert loaded.decay.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert loaded.h.tolist() == [[1.0] * 3]


def test_an_argument_is_fixed_by_its_name(module, load) -> None:
    subject = load("inputs.gain={value: 3.0}")
    (step,) = subject.discover().reference.rollout({"batch": 1}, [{"x": torch.ones(1, 3)}])
    assert step.after["h"].tolist() == [[3.0] * 3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("inputs.y={shape: [batch, 3]}", "forward of Leaky takes no 'y'"),
        ("inputs={gain: {shape: [batch]}, x: null}", "forward of Leaky needs 'x' too"),
    ],
)
def test_inputs_go_by_the_names_of_its_parameters(module, load, change, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        load(change)
    assert (caught.value.key or "").startswith("inputs")


def test_a_file_of_another_kind_is_refused_at_the_line_of_the_spec(load, tmp_path) -> None:
    program = torch.export.export(nn.Linear(3, 3), (torch.ones(1, 3),))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "text.jit").write_text("no archive")
    for name in ("program.pt2", "weights.pt", "text.jit", "missing.jit"):
        with pytest.raises(SourceError, match="loading it raised") as caught:
            load(f"source.torchscript={name}")
        assert name in caught.value.message
        assert caught.value.key == "source.torchscript"
        assert "torch.jit.save" in (caught.value.hint or "")


def test_a_file_without_a_step_is_refused(load, tmp_path) -> None:
    class Nothing(nn.Module):
        @torch.jit.export
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with quiet_scripting():
        torch.jit.script(Nothing()).save(tmp_path / "leaky.jit")
    with pytest.raises(SourceError, match="Nothing has no 'forward'") as caught:
        load()
    assert caught.value.hint == "its methods are: step"
