"""Where TorchScript means something else than Python: Python's meaning, or a refusal."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError


class Matrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(4, 3))
        self.register_buffer("c", torch.tensor(0))


def follow(module, path, steps=10):
    """Export at small inputs, then follow eager where the sum of the input grows."""
    module.eval()
    contract = sp.export_onnx(module, (torch.zeros(3),), path, frontend="torchscript")
    runner = sp.StatefulRunner(path)
    for step in range(steps):
        x = torch.tensor([step - 3.0, 1.0, -0.5])
        got, expected = runner.run({"x": x.numpy()})["output"], module(x.clone()).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"step {step}")
    return contract


class ViewOfARow(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.m[self.c]
        if float(x.sum()) > 2:
            row += x
        self.c = (self.c + 1) % 4
        return self.m + row


class ViewOfAColumn(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i = x.argmax()
        column = self.m[1:, i]
        if float(x.sum()) > 2:
            column.mul_(2).add_(1)
            self.m[i, i] *= 3
            self.m[i, 0] = x[i]
        return self.m + column.sum()


class Elements(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.m[torch.tensor([1, 2]), self.c % 3]
        if float(x.sum()) > 2:
            rows += 5.0
            self.m[torch.tensor([1, 2]), self.c % 3] += 1.0
        self.c += 1
        return rows + self.m.sum()


class Remainder(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = float(self.c) - 5.0
        if float(x.sum()) < 2:
            self.m = x - self.m
            self.m %= 4.0
            k %= 3.0
        self.c += 1
        return self.m * 1 + k


class Powers(Matrix):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(2**24 - 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        k = int(self.n)
        if bool(self.n > 2**24):
            self.m = self.m + 1 + k**2 % 7
        return self.m * 2**3 + (x.int() - 2**31).float()


class DroppedOut(Matrix):
    """In eval mode, dropout gives back the very tensor that it takes."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(x)
        held = self.drop(self.m)
        if float(x.sum()) > 2:
            held.add_(1)
            y += 1
        return self.m + x


@pytest.mark.parametrize(
    "cls", [ViewOfARow, ViewOfAColumn, Elements, Remainder, Powers, DroppedOut]
)
def test_it_means_what_python_means(cls, tmp_path):
    follow(cls(), tmp_path / "m.onnx")


class WrittenTemporary(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 2:
            self.m[self.c].add_(x)
        return self.m + 0


class WrittenName(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.m[self.c]
        if float(x.sum()) > 2:
            row *= 2
        return self.m + 0


class ItemOfATemporary(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 2:
            self.m[self.c][0] = 9.0
        return self.m + 0


class InADict(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = {"m": self.m}
        if float(x.sum()) > 2:
            held["m"] += x
        return self.m + 0


class InADictThatIsRead(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = {"m": self.m}
        if float(x.sum()) > 2:
            held["m"] += x
        return self.m + held["m"]


class WrittenAlias(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.m.type_as(x)
        if float(x.sum()) > 2:
            held.add_(1)
        return self.m + 0


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.h + x


class SlicedLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([Cell(), Cell(), Cell()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            if float(x.sum()) > 2:
                cell.h = cell.h + x
        for cell in self.cells[1:]:
            if float(x.sum()) > 3:
                cell.h = cell.h * 2
        return self.cells[0].h + 10 * self.cells[1].h + 100 * self.cells[2].h


class Unused(Matrix):
    @torch.jit.unused
    def left_out(self, x: torch.Tensor) -> torch.Tensor:
        self.m.add_(1)
        return self.m + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 2:
            return self.left_out(x)
        return self.m + x


class NumberFirst(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 2:
            return (6 & x.int()) + 0.5
        return self.m + x


class OtherBits(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 2:
            self.m.view(torch.int32).add_(1)
        return self.m + x


class Scripting(Matrix):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            self.m += 1
        else:
            self.m += 1 + (x.sum() > 2).float()
        return self.m + 0


@pytest.mark.parametrize(
    ("cls", "line"),
    [
        (WrittenTemporary, "self.m[self.c].add_(x)"),
        (WrittenName, "row *= 2"),
        (ItemOfATemporary, "self.m[self.c][0] = 9.0"),
        (InADict, 'held["m"] += x'),
        (InADictThatIsRead, 'held["m"] += x'),
        (WrittenAlias, "held.add_(1)"),
        (SlicedLoop, "for cell in self.cells[1:]:"),
        (Unused, "return self.left_out(x)"),
        (NumberFirst, "return (6 & x.int()) + 0.5"),
        (OtherBits, "self.m.view(torch.int32).add_(1)"),
        (Scripting, "if torch.jit.is_scripting():"),
    ],
)
def test_what_torchscript_drops_is_refused(cls, line, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(PipelineError) as caught:
        follow(cls(), path)
    text = Path(caught.value.file).read_text().splitlines()[caught.value.line - 1]
    assert text.strip() == line
    assert not path.exists()


class TwoNames(nn.Module):
    """One cell under two names; a rare branch calls it by the other."""

    def __init__(self):
        super().__init__()
        self.one = self.other = Accumulator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.other(x)
        if float(x.sum()) > 2:
            y = y + self.one(x)
        return y


class Accumulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1:
            self.h = self.h + x
        return self.h * 1


def test_a_submodule_with_two_names_has_one_state(tmp_path):
    contract = follow(TwoNames(), tmp_path / "m.onnx")
    assert [state.name for state in contract.states] == ["one.h"]


class Harmless(Matrix):
    """Writes to parts of things, all of which TorchScript keeps, or rightly leaves out."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = {"a": 1}
        counts["a"] += 2
        rows = [x * 1, x * 2]
        rows[0] += 1.0
        rows[1].mul_(2)
        self.m[int(self.c)].add_(x)
        self.m[0, 1:] += 1
        head = self.m[0]
        head[0] = 2.0
        if self.scale is not None:
            head[1].mul_(self.scale)
        return self.m + rows[0] + rows[1] + counts["a"]


def test_writes_that_mean_the_same_are_taken(tmp_path):
    follow(Harmless(), tmp_path / "m.onnx")
