"""Which line of TorchScript stores to a state."""

import importlib.util
import io
import linecache
from pathlib import Path

import pytest
import torch
from torch import nn

from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.scripted_places import place_of_code, place_of_store

MODEL = """
import torch
from torch import nn


def bump(x: torch.Tensor) -> None:
    x.add_(1.0)  # in a function


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.register_buffer("k", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self.h = torch.cat([self.h[:, 1:], x[:, :1]], dim=1)  # in a submodule
        other.mul_(0.5)  # what it was given
        return self.h


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("a", "b", "c", "d", "e", "f", "g", "i", "j", "k", "l", "m", "o", "quiet"):
            self.register_buffer(name, torch.zeros(1, 3))
        self.items = [torch.zeros(1, 3)]
        self.pair = (torch.zeros(1, 3), 1)
        self.rnn = nn.GRUCell(3, 3)
        self.cell = Cell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a = self.a * 0.5 + x  # at once
        h = x + self.b
        y = h.relu()
        self.b = h  # later
        self.c = (  # over several lines
            self.c * 0.5
            + x
        )
        self.d, self.e = x, x  # both
        self.f[:, 0] = 1.0  # through a view
        if bool(x.sum() > 0):
            self.g = y  # first in a branch
        self.i = self.rnn(x, self.i)  # made by a layer of torch
        for n in range(2):
            view = self.j.select(1, n)
            view.unsqueeze(0).add_(1.0)  # through views, in a loop
        bump(self.k)
        self.l += x  # augmented
        y = y + self.cell(x, self.m)
        self.cell.k = y  # from outside
        self.items[0] = x  # an item
        self.pair = (x, 2)  # in a tuple
        for t in [self.quiet, self.o]:
            t.zero_()  # one of two
        return y
"""

LINES = {
    "a": "at once",
    "b": "later",
    "c": "over several lines",
    "d": "both",
    "e": "both",
    "f": "through a view",
    "g": "first in a branch",
    "i": "made by a layer of torch",
    "j": "through views, in a loop",
    "k": "in a function",
    "l": "augmented",
    "m": "what it was given",
    "o": "one of two",
    "cell.h": "in a submodule",
    "cell.k": "from outside",
    "items.0": "an item",
    "pair.0": "in a tuple",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> nn.Module:
    path = tmp_path_factory.mktemp("places") / "places_model.py"
    path.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("places_model", path)
    python = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(python)
    with quiet_scripting():
        return torch.jit.script(python.Model())


def line_of(comment: str) -> int:
    return next(n for n, text in enumerate(MODEL.splitlines(), 1) if text.endswith(f"# {comment}"))


@pytest.mark.parametrize("path", list(LINES))
def test_the_line_of_a_store_is_found(model, path) -> None:
    place = place_of_store(model, path)
    assert Path(place.file).name == "places_model.py"
    assert place.line == line_of(LINES[path])


@pytest.mark.parametrize("path", ["missing", "cell.missing", "rnn.weight_ih"])
def test_what_is_not_stored_to_has_no_line(model, path) -> None:
    assert place_of_store(model, path) is None


def test_lines_are_known_where_the_sources_are_not(model, tmp_path) -> None:
    """As on another machine: the file quotes its sources."""
    file, source = io.BytesIO(), place_of_code(model).file
    with quiet_scripting():
        torch.jit.save(model, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    hidden = Path(source).rename(tmp_path / "hidden.py")
    linecache.checkcache(source)
    try:
        for path in ("a", "b", "f", "i", "k", "cell.h", "cell.k"):
            place = place_of_store(loaded, path)
            assert (place.file, place.line) == (source, line_of(LINES[path]))
    finally:
        hidden.rename(source)
        linecache.checkcache(source)


def test_the_code_of_a_module_has_a_place(model) -> None:
    assert Path(place_of_code(model).file).name == "places_model.py"


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("own", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own = self.inner(x)
        return self.own


def test_changes_inside_and_outside_of_a_script_module_are_told_apart(model) -> None:
    outer = Outer(model)
    paths = ["own", "inner.a", "inner.cell.h"]
    found = change_places(outer, lambda: outer(torch.ones(1, 3)), paths)
    assert found["own"].file == __file__
    assert found["inner.a"].line == line_of("at once")
    assert found["inner.cell.h"].line == line_of("in a submodule")
