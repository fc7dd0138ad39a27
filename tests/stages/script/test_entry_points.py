"""``source.method`` and ``inputs``: what is called as a step, and with which arguments."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stateful_pipeline.errors import SourceError, SpecError, StageError
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

MODEL = """
from typing import List, Optional

import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.count = 0

    def forward(self, x):
        self.h = self.h + x
        return self.h.cos()

    @torch.jit.export
    def step(self, x, mask: Optional[torch.Tensor] = None, gain: float = 1.0):
        self.h = self.h * 0.5 + x * gain
        self.count += 1
        y = self.h.tanh() + self.count
        if mask is not None:
            y = y * mask
        return y

    def plain(self, x):
        self.h = self.h * 0.25 + x
        return self.h.sin()

    @torch.jit.export
    def rate(self, x, sr: int, scale: float, bands: List[float]):
        if sr == 8000:
            x = torch.cos(x)
        if sr not in [8000, 16000]:
            raise ValueError("no such rate")
        self.h = self.h * 0.5 + torch.full((3,), scale) * bands[-1] + x / sr
        return self.h

class StepAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    @torch.jit.export
    def infer(self, x):
        self.h = self.h * 0.5 + x
        return self.h

class ByPosition(StepAlone):
    def forward(self, x, /, y):
        self.h = self.h * 0.5 + x
        return self.h + y
"""
SPEC = """
name: model
source:
  file: "model.py:Leaky"
inputs:
  x: {shape: [batch, 3]}
dynamic_axes: {batch: {min: 1, opt: 2, max: 3}}
"""
FILE = ("source.file=null", "source.torchscript=model.pt")
RATE = (
    "source.method=rate", "inputs.sr={value: 16000}", "inputs.scale={value: 3}",
    "inputs.bands={value: [1, 2.5]}",
)  # fmt: skip


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the models, ``Leaky`` as a scripted file too; return the path of the spec."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    path = tmp_path / "model.yaml"
    path.write_text(SPEC)
    with quiet_scripting():
        module = torch.jit.script(prepare(load_spec(path)).module)
        torch.jit.save(module, tmp_path / "model.pt")
    return path


def program(path: Path, frontend: str, *changes: str) -> Program:
    """Capture and rewrite the model of a spec, and prove it equal to eager."""
    subject = prepare(load_spec(path, list(changes)))
    discovery = subject.discover()
    sizes = probe_sizes(subject.axes)
    captured = capture_with(frontend, discovery.reference, subject.plan, sizes)
    found, discovery = rewrite(captured, subject, discovery, sizes)
    check_equal(found, discovery.reference, subject.plan, corner_sizes(subject.axes)[:2], 4)
    return found


WAYS = pytest.mark.parametrize(
    ("source", "frontend"), [*(((), name) for name in FRONTENDS), (FILE, "torchscript")]
)


@WAYS
def test_another_method_than_forward_can_be_the_step(spec, source, frontend) -> None:
    found = program(spec, frontend, *source, "source.method=step")
    assert found.states == ("h", "count")
    code = found.code("")
    assert "tanh" in code
    assert "cos" not in code


def test_torch_export_takes_any_method(spec) -> None:
    assert "sin" in program(spec, "export", "source.method=plain").code("")


def test_a_method_that_was_not_exported_is_refused_with_what_to_do_and_its_line(spec) -> None:
    with pytest.raises(StageError, match="did not compile 'plain' of Leaky") as caught:
        program(spec, "torchscript", "source.method=plain")
    assert "@torch.jit.export" in (caught.value.hint or "")
    assert Path(str(caught.value.file)).name == "model.py"
    assert MODEL.splitlines()[caught.value.line - 1].strip() == "def plain(self, x):"


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_module_without_forward_has_other_steps(spec, frontend) -> None:
    found = program(spec, frontend, "source.file=model.py:StepAlone", "source.method=infer")
    assert found.states == ("h",)


@pytest.mark.parametrize(
    ("changes", "key", "hint"),
    [
        (["source.method=stpe"], "source.method", "did you mean `step`?"),
        (["source.file=model.py:StepAlone"], "source.file", "infer"),
        ([*FILE, "source.method=stpe"], "source.method", "its methods are: forward, "),
        ([*FILE, "source.method=plain"], "source.method", "its methods are: forward, "),
    ],
)
def test_a_method_that_is_not_there_is_refused_by_name(spec, changes, key, hint) -> None:
    with pytest.raises(SourceError, match=r"has no '\w+'") as caught:
        prepare(load_spec(spec, changes))
    assert caught.value.key == key
    assert hint in (caught.value.hint or "")


@WAYS
@pytest.mark.parametrize(
    ("change", "inputs"),
    [
        ("inputs.mask={shape: [batch, 3]}", ("x", "mask")),
        ("inputs.mask={value: null}", ("x",)),
        ("inputs.gain={value: 3}", ("x",)),
    ],
)
def test_arguments_go_by_keyword_and_the_others_keep_their_defaults(
    spec, source, frontend, change, inputs
) -> None:
    assert program(spec, frontend, *source, "source.method=step", change).inputs == inputs


@WAYS
def test_branches_on_a_fixed_argument_fold_away(spec, source, frontend) -> None:
    found = program(spec, frontend, *source, *RATE)
    assert found.inputs == ("x",)
    assert "cos" not in found.code("")
    assert found.raises == ()
    assert not (isinstance(found, ScriptProgram) and has_kind(found.graph, "prim::If"))
    other = program(spec, frontend, *source, *RATE, "inputs.sr.value=8000")
    assert "cos" in other.code("")


def test_an_integer_for_a_float_of_compiled_code_is_a_float(spec) -> None:
    subject = prepare(load_spec(spec, [*FILE, *RATE]))
    assert subject.call.constants == {"sr": 16000, "scale": 3.0, "bands": [1.0, 2.5]}
    assert isinstance(subject.call.constants["scale"], float)
    assert isinstance(subject.call.constants["bands"][0], float)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("inputs.sr.value=fast", "rate of Leaky takes a int there, which the string 'fast' is not"),
        ("inputs.sr.value=true", "takes a int there, which true is not"),
        ("inputs.scale.value=[1]", "takes a float there, which a list of 1 is not"),
        ("inputs.bands.value=3", r"takes a List\[float\] there, which 3 is not"),
        ("inputs={x: {shape: null, value: 3}}", "takes a Tensor there, which 3 is not"),
    ],
)
def test_a_constant_of_another_type_than_compiled_code_takes_is_refused(spec, change, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        prepare(load_spec(spec, [*FILE, *RATE, change]))
    assert (caught.value.key or "").startswith("inputs.")


def test_what_is_taken_by_position_alone_is_given_so(spec) -> None:
    found = program(
        spec, "export", "source.file=model.py:ByPosition", "inputs.y={shape: [batch, 3]}"
    )
    assert found.inputs == ("x", "y")


def test_a_build_of_another_entry_point_runs_as_eager_does(project) -> None:
    project.write("model.py", MODEL)
    path = project.write(
        "model.yaml",
        SPEC + "verify: {steps: 4}\nbenchmark: {steps: 2}\nmlflow: {enabled: false}\n",
    )
    ran = project.run(path, "--set", "source.method=step", "--set", "inputs.gain={value: 0.5}")
    assert ran.code == 0, ran.text
