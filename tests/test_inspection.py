"""``pipeline inspect``: the states of a model, and where each is changed."""

import importlib.util
import io
import json
import sys

import pytest
import torch

from stateful_pipeline.inspection import Inspection, StateRow
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.terminal import Terminal

NESTED = """\
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.full((1, 3), 0.5))

    def forward(self, x):
        self.h = self.h * 0.5 + x
        return self.h


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([Cell(), Cell()])
        self.register_buffer("calls", torch.tensor(7))
        self.register_buffer("ring", torch.zeros(4, 3))

    def forward(self, x):
        for cell in self.cells:
            x = cell(x)
        self.calls += 1
        self.ring[0] = x.mean(0)
        return x
"""

REFUSED_TWICE = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.seen = ""
        self.last = None

    def forward(self, x):
        self.seen = self.seen + "|"
        self.last = str(len(self.seen))
        self.h = self.h + x
        return self.h * (2 if self.last == "0" else 1) + len(self.seen)
"""

BRANCHING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        if x.sum() > 0:
            self.h = self.h + (lambda v: v)(x)  # no TorchScript either
        return self.h
"""


def line_of(text, part):
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def test_every_state_is_listed_with_the_line_that_changes_it(project):
    ran = project.cli("inspect", project.spec(model=NESTED), "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["module"] == "Leaky"
    assert found["blockers"] == []
    assert found["frontend"] == "export"
    states = {state["name"]: state for state in found["states"]}
    model = project.folder / "model.py"
    lines = {
        "cells.0.h": "self.h = self.h * 0.5 + x",
        "cells.1.h": "self.h = self.h * 0.5 + x",
        "calls": "self.calls += 1",
        "ring": "self.ring[0] =",
    }
    assert states.keys() == lines.keys()
    for name, line in lines.items():
        assert states[name]["changed"] == f"{model}:{line_of(NESTED, line)}"
        assert states[name]["exercised"] is True
    assert states["cells.0.h"]["shape"] == "[batch, 3]"
    assert states["cells.0.h"]["initial"] == "0.5"
    assert states["calls"]["dtype"] == "int64"
    assert states["calls"]["initial"] == "7"
    assert states["ring"]["initial"] == "zeros"
    changes = {"cells.0.h": "reassigned", "calls": "in place", "ring": "in place"}
    assert {name: states[name]["how"] for name in changes} == changes
    assert found["frontends"] == {"export": None, "torchscript": None}


def test_people_see_the_same(project):
    ran = project.cli("inspect", project.spec(model=NESTED))
    assert ran.code == 0
    for word in ("Leaky", "4 states", "cells.1.h", "[batch, 3]", "int64"):
        assert word in ran.out
    assert f"model.py:{line_of(NESTED, 'self.calls += 1')}" in ran.out


def test_what_blocks_an_export_ends_3_with_the_states_still_shown(project):
    ran = project.cli("inspect", project.spec(model=BRANCHING), "--json")
    assert ran.code == 3
    found = json.loads(ran.out)
    assert [state["name"] for state in found["states"]] == ["h"]
    assert found["frontend"] is None
    for frontend, said in (("export", "torch.export refused"), ("torchscript", "Lambda")):
        assert said in found["frontends"][frontend]
        assert f"model.py:{line_of(BRANCHING, 'if x.sum()')}" in found["frontends"]["export"]
    (blocker,) = found["blockers"]
    assert f"model.py:{line_of(BRANCHING, 'if x.sum()')}" in blocker
    shown = project.cli("inspect", project.spec(model=BRANCHING))
    assert shown.code == 3
    assert "blocks an export: every front end refuses it" in shown.out
    assert "torchscript: refuses it: " in shown.out


def test_every_refused_attribute_is_listed_beside_the_states(project):
    ran = project.cli("inspect", project.spec(model=REFUSED_TWICE), "--json")
    assert ran.code == 3
    found = json.loads(ran.out)
    assert "h" in {state["name"] for state in found["states"]}
    for name, line in (("seen", "self.seen = self.seen"), ("last", "self.last = str(")):
        told = [b for b in found["blockers"] if f"'{name}'" in b]
        listed = [s for s in found["states"] if s["name"] == name]
        assert told or listed
        assert f"model.py:{line_of(REFUSED_TWICE, line)}" in str(told or listed)


def test_inspect_writes_nothing(project):
    spec = project.spec(model=NESTED)
    before = {path.name for path in project.folder.iterdir()}
    project.cli("inspect", spec)
    after = {path.name for path in project.folder.iterdir()} - {"__pycache__"}
    assert after == before


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_model_that_is_not_there_ends_2(project, options):
    spec = project.spec(source='source: {file: "gone.py:Leaky"}')
    ran = project.cli("inspect", spec, *options)
    assert ran.code == 2
    assert "leaky.yaml:2" in ran.err
    assert ran.out == ""


def test_a_stateless_model_has_no_states_and_no_blockers(project):
    model = (
        "from torch import nn\n\n\nclass Leaky(nn.Module):\n"
        "    def forward(self, x):\n        return 2 * x\n"
    )
    ran = project.cli("inspect", project.spec(model=model), "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["states"] == []


HELD = """\
import collections
import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Record:
    value: torch.Tensor
    count: int = 0


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = 0.25
        self.items = [torch.linspace(0.1, 2.3, 3).reshape(1, 3)]
        self.table = {"a.b": torch.ones(3), "n": 2}
        self.record = Record(torch.tensor([True, False, True]))
        self.register_buffer("flat", torch.zeros(6), persistent=False)
        self.view = self.flat[:3]
        self.odd = torch.tensor([float("nan"), 1.0])
        self.first = None

    def forward(self, x):
        self.level = self.level * 0.5
        self.items[0] = self.items[0] + x
        self.table["a.b"].mul_(0.5)
        self.table["n"] += 1
        self.record.value = self.record.value.logical_not()
        self.record.count += 1
        self.view.add_(1)
        self.odd = self.odd + 1
        if self.first is None:
            self.first = torch.zeros_like(x)
        self.first = self.first + 1
        y = self.items[0] + self.level + self.table["a.b"] + self.table["n"] + self.first
        return y + self.record.value + self.record.count + self.flat[3:] + self.odd[1]
"""


def test_it_says_how_each_state_is_held_and_changed_and_from_what_value(project):
    ran = project.cli("inspect", project.spec(model=HELD), "--json")
    assert ran.code == 0, ran.text
    rows = {row["name"]: row for row in json.loads(ran.out)["states"]}
    said = {name: (row["initial"], row["held"], row["how"]) for name, row in rows.items()}
    assert said == {
        "flat": ("zeros", "buffer, not persistent, 1 view of it", "in place"),
        "items.0": ("3 values from 0.1 to 2.3", "item of list", "reassigned"),
        "table.a.b": ("ones", "item of dict", "in place"),
        "record.value": ("3 values, 2 of them True", "attribute of Record", "reassigned"),
        "odd": ("2 values, 1 of them not finite", "attribute", "reassigned"),
        "level": ("0.25", "attribute, Python float", "reassigned"),
        "table.n": ("2", "item of dict, Python int", "reassigned"),
        "record.count": ("0", "attribute of Record, Python int", "reassigned"),
        "first": ("zeros", "attribute, made by the first calls", "reassigned"),
    }
    for name, part in (("flat", "view.add_"), ("first", "self.first = self.first + 1")):
        assert rows[name]["changed"] == f"{project.folder / 'model.py'}:{line_of(HELD, part)}"


RARE = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.register_buffer("late", torch.zeros(1, 3))

    def reset(self):
        self.h.fill_(0.5)

    def forward(self, x):
        if self.h.sum() > 1000:
            self.late.add_(x)
        self.h = self.h + x
        return self.h + self.late
"""


def test_a_state_on_a_branch_that_no_call_took_has_its_line_too(project):
    spec = project.spec(
        "states: {h: {init: zeros, shape: [batch, 3]}}",
        model=RARE,
        source='source: {file: "model.py:Leaky", reset: reset}',
    )
    ran = project.cli("inspect", spec, "--json")
    assert ran.code == 0, ran.text
    found = json.loads(ran.out)
    rows = {row["name"]: row for row in found["states"]}
    assert rows["h"]["initial"] == "zeros, declared"
    late = rows["late"]
    assert (late["exercised"], late["how"]) == (False, "not seen to change")
    assert late["changed"] == f"{project.folder / 'model.py'}:{line_of(RARE, 'late.add_')}"
    assert found["frontend"] == "torchscript"
    assert "torch.export refused" in found["frontends"]["export"]
    assert found["reset"] == "reset"
    shown = project.cli("inspect", spec)
    assert "initial values: as 'reset' leaves them" in shown.out
    assert "not seen to change; written at model.py:" in shown.out


def test_the_front_end_that_the_spec_asks_for_decides(project):
    spec = project.spec("script: {frontend: export}", model=RARE)
    ran = project.cli("inspect", spec)
    assert ran.code == 3
    assert "blocks an export: the front end of the spec refuses it" in ran.out
    assert "torchscript: captures the model" in ran.out


class Narrow(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self):
        return True


def test_it_fits_a_terminal_of_80_columns_and_is_one_line_a_state_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    row = StateRow(
        "encoder.layers.11.attention.keys", "float32", "[batch, 4, 256, 16]", "zeros",
        "buffer, not persistent", "in place", "/srv/[models]/decoder.py:70", True,
    )  # fmt: skip
    found = Inspection("Decoder", (row,), (), "export", {"export": None})
    narrow, pipe = Narrow(), io.StringIO()
    for stream in (narrow, pipe):
        Terminal(stream).inspection(found)
        for word in (row.name, row.shape, "in place at /srv/[models]/decoder.py:70"):
            assert word in stream.getvalue()
    assert max(map(len, narrow.getvalue().splitlines())) <= 80
    (line,) = [line for line in pipe.getvalue().splitlines() if row.name in line]
    assert row.changed in line


@pytest.mark.parametrize("kind", ["scripted", "onnx"])
def test_files_are_inspected_like_modules(project, kind):
    if kind == "scripted":
        project.write("model.py", RARE)
        path = project.folder / "m.jit"
        with quiet_scripting():
            torch.jit.script(load(project.folder / "model.py").Leaky()).save(str(path))
        spec = project.spec(model=RARE, source='source: {torchscript: "m.jit"}')
        ran = project.cli("inspect", spec, "--json")
        reason = "the model is a ScriptModule, which torch.export refuses"
        assert json.loads(ran.out)["frontends"] == {"torchscript": None, "export": reason}
        assert {row["name"] for row in json.loads(ran.out)["states"]} == {"h", "late"}
    else:
        project.run(project.spec(), "--to", "export")
        (project.folder / "m.onnx").write_bytes(
            (project.out / "leaky" / "export" / "model.onnx").read_bytes()
        )
        spec = project.spec(
            "states: {h: {input: h_in, output: h_out}}", source='source: {onnx: "m.onnx"}'
        )
        ran = project.cli("inspect", spec, "--json")
        found = json.loads(ran.out)
        assert found["frontends"] == {"onnx": None}
        assert [row["name"] for row in found["states"]] == ["h"]
    assert ran.code == 0


def load(path):
    spec = importlib.util.spec_from_file_location("inspected_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["inspected_model"] = module
    spec.loader.exec_module(module)
    return module
