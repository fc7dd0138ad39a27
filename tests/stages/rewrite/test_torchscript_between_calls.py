"""What happens to a module's objects from one call to the next, in branches that observing missed.

The first steps of each rollout do not take the branch in question; later ones do.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError

LATE = 5.0


def is_late(x: torch.Tensor) -> bool:
    return float(x.sum()) > 5.0


def follow(module: nn.Module, path, steps: int = 12):
    """Export through TorchScript, then hold inputs of growing size against eager."""
    module.eval()
    contract = sp.export_onnx(module, (torch.randn(3),), path, frontend="torchscript")
    runner = sp.StatefulRunner(path)
    for step in range(steps):
        x = torch.full((3,), float(step) - 2.0)
        got, expected = runner.run({"x": x.numpy()})["output"], module(x.clone()).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6, err_msg=f"step {step}")
    return [state.name for state in contract.states]


class ListReplaced(nn.Module):
    slots: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.slots = [torch.zeros(3), torch.ones(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.slots = [self.slots[1], x]
        return self.slots[0] + 0


class TupleReplaced(nn.Module):
    pair: tuple[torch.Tensor, torch.Tensor]

    def __init__(self):
        super().__init__()
        self.pair = (torch.zeros(3), torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.pair = (self.pair[1], x)
        return self.pair[0] + 0


class DictReplaced(nn.Module):
    table: dict[str, torch.Tensor]

    def __init__(self):
        super().__init__()
        self.table = {"a": torch.zeros(3), "b": torch.ones(3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.table = {"a": self.table["b"], "b": x}
        return self.table["a"] + 0


class PairsInAList(nn.Module):
    pairs: list[tuple[torch.Tensor, torch.Tensor]]

    def __init__(self):
        super().__init__()
        self.pairs = [(torch.zeros(3), torch.ones(3))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            h, c = self.pairs[0]
            self.pairs[0] = (c, h + x)
        return self.pairs[0][0] + 0


@pytest.mark.parametrize(
    ("cls", "states"),
    [
        (ListReplaced, ["slots.0", "slots.1"]),
        (TupleReplaced, ["pair.0", "pair.1"]),
        (DictReplaced, ["table.a", "table.b"]),
        (PairsInAList, ["pairs.0.0", "pairs.0.1"]),
    ],
)
def test_a_container_that_a_branch_replaces_is_states(cls, states, tmp_path):
    assert follow(cls(), tmp_path / "m.onnx") == states


class CellState(nn.Module):
    hc: tuple[torch.Tensor, torch.Tensor]

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.hc = (torch.zeros(4), torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0] > 0:
            self.hc = self.cell(x, self.hc)
        return self.hc[0] + 0


def test_a_pair_of_hidden_and_cell_state(tmp_path):
    with torch.no_grad():
        assert follow(CellState(), tmp_path / "m.onnx") == ["hc.0", "hc.1"]


class PingPong(nn.Module):
    slots: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.slots = [torch.zeros(3), torch.ones(3), torch.ones(3) * 2]
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.slots[int(self.n) % 3] = x * 2
        self.n += 1
        total = self.slots[-1 - int(self.n) % 3] + 0
        for i in range(int(self.n) % 3):
            total = total + self.slots[i]
            if total.sum() > 20:
                break
        return total


def test_a_list_is_indexed_by_a_counter(tmp_path):
    assert follow(PingPong(), tmp_path / "m.onnx") == ["n", "slots.0", "slots.1", "slots.2"]


class AddedInPlace(PingPong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.slots[int(self.n) % 3].add_(x)
        self.n += 1
        return self.slots[0] + 2 * self.slots[1] - self.slots[2]


def test_a_write_in_place_reaches_the_item_that_a_counter_says(tmp_path):
    assert follow(AddedInPlace(), tmp_path / "m.onnx") == ["n", "slots.0", "slots.1", "slots.2"]


class PartOfAnother(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("g", torch.ones(3))
        self.register_buffer("v", self.g[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.v[0] += 1.0
        return self.g * 2


class Row(nn.Module):
    def __init__(self, row: torch.Tensor):
        super().__init__()
        self.register_buffer("row", row)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.row.add_(1.0)
        return self.row * 1


class RowOfTheParent(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(2, 3))
        self.rows = nn.ModuleList([Row(self.m[0]), Row(self.m[1])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows[0](x) + self.rows[1](x) + self.m.sum(0)


class BecomesAnother(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("p", torch.zeros(3))
        self.register_buffer("q", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            if float(x.sum()) > 8.0:
                self.q.add_(1)
            else:
                self.p = self.q
        return self.p + 10 * self.q


class BecomesAView(BecomesAnother):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.p = self.q[:]
        if float(x.sum()) > 8.0:
            self.p.mul_(2)
        return self.p + 10 * self.q


class Parts(BecomesAnother):
    def __init__(self):
        super().__init__()
        self.q = self.p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.p = self.p + x
        return self.p + 10 * self.q


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_late(x):
            self.h = torch.cat([self.h, x])
        return x + self.h.sum()


@pytest.mark.parametrize(
    ("cls", "reason", "line"),
    [
        (PartOfAnother, "shares memory with 'g'", "self.v[0] += 1.0"),
        (RowOfTheParent, "shares memory with 'm'", "self.row.add_(1.0)"),
        (BecomesAnother, "may be the same tensor as 'p'", "self.q.add_(1)"),
        (BecomesAView, "may be the same tensor as", "self.p.mul_(2)"),
        (Parts, "one tensor before the call and two after it", None),
        (Grows, "may have another size", "if is_late(x):"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_states_that_would_not_stay_apart_or_keep_their_size(cls, reason, line, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(StateError, match=reason) as caught:
        follow(cls(), path)
    assert not path.exists()
    if line is not None:
        text = Path(caught.value.file).read_text().splitlines()[caught.value.line - 1]
        assert text.strip() == line


class Assertive(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        assert int(self.n) < 100, "too many calls"
        return x + self.n


def test_a_line_that_may_raise_is_told(tmp_path):
    with pytest.warns(UserWarning, match=r"test_torchscript_between_calls.py:\d+ may raise"):
        follow(Assertive(), tmp_path / "m.onnx")
