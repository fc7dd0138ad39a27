"""``attributes``: what is fixed folds branches away, is no state, and must stay as it is."""

from pathlib import Path

import pytest
import torch

from stateful_pipeline.errors import SpecError, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.frontends import FRONTENDS, capture_with
from stateful_pipeline.model.jit import has_kind, quiet_scripting
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.script_program import ScriptProgram
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.rewrite import rewrite
from stateful_pipeline.stages.script.subject import prepare

HEAD = """
import torch
from torch import nn

class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self._last_sr = 0

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.rate = Rate()
        self.mode = "slow"
        self._last_sr = 0

    @torch.jit.export
    def reset_states(self):
        self.h.fill_(2.0)
        self._last_sr = 8000

    def forward(self, x, sr: int = 16000):
"""
TAIL = """
        self.h = self.h * 0.5 + x
        return self.h
"""
SPEC = """
name: model
source: {source, reset: reset_states}
inputs:
  x: {shape: [batch, 3]}
dynamic_axes: {batch: {min: 1, opt: 2, max: 3}}
attributes: {@attributes}
"""
PYTHON = 'file: "model.py:Model"'
FILE = "torchscript: model.pt"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a model with a body of ``forward``, as Python and as a scripted file, and its spec."""
    monkeypatch.chdir(tmp_path)  # paths in overrides are relative to it

    def write(
        body: str, attributes: str = "_last_sr: {value: 16000}", *, source: str = PYTHON
    ) -> Path:
        lines = [f"        {line}" for line in body.splitlines()]
        (tmp_path / "model.py").write_text(HEAD + "\n".join(lines) + TAIL)
        text = SPEC.replace("source,", f"{source},").replace("@attributes", attributes)
        path = tmp_path / "model.yaml"
        path.write_text(text)
        if source == FILE:
            overrides = ["source.torchscript=null", "source.file=model.py:Model", "attributes=null"]
            made = prepare(load_spec(path, overrides)).module
            with quiet_scripting():
                torch.jit.save(torch.jit.script(made), tmp_path / "model.pt")
        return path

    return write


def program(path: Path, frontend: str) -> Program:
    """Capture and rewrite the model of a spec, and prove it equal to eager."""
    subject = prepare(load_spec(path))
    discovery = subject.discover()
    sizes = probe_sizes(subject.axes)
    captured = capture_with(frontend, discovery.reference, subject.plan, sizes)
    found, discovery = rewrite(captured, subject, discovery, sizes)
    check_equal(found, discovery.reference, subject.plan, corner_sizes(subject.axes)[:2], 4)
    return found


def branches(found: Program) -> bool:
    return isinstance(found, ScriptProgram) and has_kind(found.graph, "prim::If")


WAYS = pytest.mark.parametrize(
    ("source", "frontend"), [*((PYTHON, name) for name in FRONTENDS), (FILE, "torchscript")]
)


@WAYS
def test_branches_on_a_fixed_attribute_fold_away_and_it_is_no_state(
    model, source, frontend
) -> None:
    body = """\
if self._last_sr and self._last_sr != sr:
    self.h = torch.zeros(1, 3) + x.sum()
if self._last_sr == 8000:
    x = torch.cos(x)
self._last_sr = sr"""
    found = program(model(body, source=source), frontend)
    assert found.states == ("h",)
    assert not branches(found)
    assert "cos" not in found.code("")
    assert "sum" not in found.code("")


@WAYS
def test_it_overrides_the_reset(model, source, frontend) -> None:
    subject = prepare(load_spec(model("pass", source=source)))
    assert subject.module._last_sr == 16000
    assert subject.module.h.tolist() == [[2.0] * 3]


@WAYS
def test_a_call_that_leaves_another_value_is_refused_with_its_line(model, source, frontend) -> None:
    path = model("x = x + 1\nself._last_sr = 8000", source=source)
    with pytest.raises(
        StateError, match=r"fixed to 16000 under `attributes`.* leaves 8000"
    ) as caught:
        program(path, frontend)
    assert caught.value.attribute == "_last_sr"
    assert Path(str(caught.value.file)).name == "model.py"
    lines = (path.parent / "model.py").read_text().splitlines()
    assert lines[caught.value.line - 1].strip() == "self._last_sr = 8000"


@pytest.mark.parametrize("source", [PYTHON, FILE])
def test_a_path_that_no_observed_call_took_is_refused_too(model, source) -> None:
    path = model("if bool(x.sum() > 1e6):\n    self._last_sr = 8000", source=source)
    with pytest.raises(StateError, match="fixed to 16000") as caught:
        program(path, "torchscript")
    assert caught.value.attribute == "_last_sr"
    lines = (path.parent / "model.py").read_text().splitlines()
    assert lines[caught.value.line - 1].strip() == "self._last_sr = 8000"


@pytest.mark.parametrize("source", [PYTHON, FILE])
def test_a_path_that_stores_the_constant_is_kept(model, source) -> None:
    found = program(model("if bool(x.sum() > 0):\n    self._last_sr = 16000", source=source),
                    "torchscript")  # fmt: skip
    assert found.states == ("h",)


@WAYS
def test_a_call_may_store_something_else_on_the_way(model, source, frontend) -> None:
    found = program(
        model("self.reset_states()\nx = x * self._last_sr\nself._last_sr = sr", source=source),
        frontend,
    )
    assert found.states == ("h",)


@WAYS
def test_a_size_that_varies_is_no_constant(model, source, frontend) -> None:
    path = model("self._last_sr = x.shape[0]", "_last_sr: {value: 1}", source=source)
    with pytest.raises(StateError, match="fixed to 1 under `attributes`") as caught:
        program(path, frontend)
    assert caught.value.attribute == "_last_sr"


@WAYS
def test_a_dotted_path_leads_into_a_submodule(model, source, frontend) -> None:
    body = """\
if self.rate._last_sr != sr:
    x = torch.cos(x)
self.rate._last_sr = sr"""
    path = model(body, "rate._last_sr: {value: 16000}", source=source)
    found = program(path, frontend)
    assert found.states == ("h",)
    assert "cos" not in found.code("")


@WAYS
def test_a_string_is_fixed_too(model, source, frontend) -> None:
    body = """\
if self.mode == "fast":
    x = torch.cos(x)
else:
    self.mode = "fast"
self.mode = "fast\""""
    found = program(model(body, "mode: {value: fast}", source=source), frontend)
    assert found.states == ("h",)
    assert "cos" in found.code("")


@pytest.mark.parametrize("source", [PYTHON, FILE])
def test_a_string_that_another_path_replaces_is_refused(model, source) -> None:
    path = model('if bool(x.sum() > 1e6):\n    self.mode = "fast"', "mode: {value: safe}",
                 source=source)  # fmt: skip
    with pytest.raises(StateError) as caught:
        program(path, "torchscript")
    assert caught.value.attribute == "mode"


@pytest.mark.parametrize("source", [PYTHON, FILE])
@pytest.mark.parametrize(
    ("attributes", "said", "hint"),
    [
        ("_last_rs: {value: 16000}", "Model has no attribute '_last_rs'", "_last_sr"),
        ("_last_sr: {value: fast}", "holds 8000, which 'fast' cannot stand for", ""),
        ("rate.h: {value: 1}", "Model has no attribute 'rate.h'", "rate"),
    ],
)
def test_a_wrong_attribute_is_refused_at_its_line(model, source, attributes, said, hint) -> None:
    path = model("pass", attributes, source=source)
    with pytest.raises(SpecError, match=said) as caught:
        prepare(load_spec(path))
    assert hint in (caught.value.hint or "")
    assert (caught.value.file, caught.value.line) == (str(path), 7)


def test_what_is_fixed_cannot_be_declared_as_a_state_too(model) -> None:
    path = model("pass")
    path.write_text(path.read_text() + "states: {_last_sr: {shape: []}}\n")
    with pytest.raises(SpecError, match="'_last_sr' is fixed here and declared under `states`"):
        load_spec(path)


def test_an_exported_program_has_no_attributes_to_fix(model) -> None:
    with pytest.raises(SpecError, match="no attributes but tensors"):
        load_spec(model("pass"), ["source.file=null", "source.exported_program=m.pt2",
                                  "source.reset=null"])  # fmt: skip
