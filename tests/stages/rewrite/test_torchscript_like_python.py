"""Where TorchScript means something else than Python: Python's meaning, or a refusal."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError


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


@pytest.mark.parametrize("cls", [ViewOfARow, ViewOfAColumn, Elements, Remainder])
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
        (Scripting, "if torch.jit.is_scripting():"),
    ],
)
def test_a_write_that_torchscript_drops_is_refused(cls, line, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(StateError) as caught:
        follow(cls(), path)
    text = Path(caught.value.file).read_text().splitlines()[caught.value.line - 1]
    assert text.strip() == line
    assert not path.exists()


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
