"""What the exporter or the runtime cannot do is said with the user's line, never with theirs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.stages.export.measure import check_dimensions


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(6, dtype=torch.int16))


class NoForm(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x
        wide = torch.eye(18) + self.h.repeat(3)
        return torch.linalg.inv(wide)  # its translation raises: the matrix is too large


class NoOperator(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x
        return torch.linalg.eigvals(self.h.float()[:4].reshape(2, 2)).real  # not in ONNX


class MovingComplex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.p = torch.polar(torch.ones(64, 2), torch.rand(64, 2)), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turns = self.table[self.p : self.p + 1]
        self.p += 1
        return torch.view_as_real(torch.view_as_complex(x) * turns)


def test_a_complex_table_that_is_sliced_at_a_moving_place_is_refused_with_the_line(tmp_path):
    with pytest.raises(StageError, match="a complex tensor has a size") as refused:
        sp.export_onnx(
            MovingComplex(), (torch.ones(1, 2, 2),), tmp_path / "m.onnx", frontend="export"
        )
    assert refused.value.line == line_of(MovingComplex, "self.p + 1]")
    assert "view_as_real" in refused.value.hint


def line_of(module: type[nn.Module], text: str) -> int:
    lines, first = inspect.getsourcelines(module)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("module", "operator", "called"),
    [(NoForm, "linalg_inv", "linalg.inv"), (NoOperator, "linalg_eig", "linalg.eigvals")],
    ids=lambda v: str(v)[:9],
)
def test_what_has_no_onnx_form_is_named_with_the_users_line(
    module, operator, called, tmp_path
) -> None:
    with pytest.raises(StageError, match=operator) as caught:
        sp.export_onnx(module().eval(), (torch.ones(6, dtype=torch.int16),), tmp_path / "m.onnx")
    place = caught.value.place
    assert place is not None
    assert (Path(place.file).name, place.line) == (Path(__file__).name, line_of(module, called))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_run_at_its_only_sizes_says_so(tmp_path) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h + 1
            return self.h.gather(0, x)

    path = tmp_path / "m.onnx"
    sp.export_onnx(Looks().eval(), (torch.tensor([2]),), path)

    class OutOfRange:
        """Gives one step, with an index past the end."""

        def step(self, sizes, seed, index):
            return {"x": torch.tensor([7])}

    contract = sp.StatefulRunner(path).contract
    with pytest.raises(StageError, match=r"does not run at fixed sizes: "):
        check_dimensions(path, contract, OutOfRange(), [{}])


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None


def test_a_module_without_outputs_and_states_is_refused(tmp_path) -> None:
    with pytest.raises(StateError, match="nothing to export"):
        sp.export_onnx(Nothing().eval(), (torch.ones(2),), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_states_without_outputs_are_something(tmp_path) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> None:
            self.h = self.h + x

    sp.export_onnx(Keeps().eval(), (torch.ones(2),), tmp_path / "m.onnx")
    runner = sp.StatefulRunner(tmp_path / "m.onnx")
    assert runner.run({"x": torch.ones(2).numpy()}) == {}
    assert runner.state["h"].tolist() == [1.0, 1.0]
