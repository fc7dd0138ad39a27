"""``pipeline inspect``: the states of a model, and where each is changed."""

import json

import pytest

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
    (blocker,) = found["blockers"]
    assert f"model.py:{line_of(BRANCHING, 'if x.sum()')}" in blocker
    shown = project.cli("inspect", project.spec(model=BRANCHING))
    assert shown.code == 3
    assert "blocks an export" in shown.out


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
