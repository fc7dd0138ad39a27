"""Refusals: each names the attribute and the line, and leaves the module alone."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError, SpecError, StageError, StateError
from stateful_pipeline.model.discover import Discovery, discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.settle import Wish


def find(module: nn.Module, wishes=None) -> Discovery:
    plan = InputPlan([Input("x", torch.float32, (2, 3), Uniform())])
    return discover(module, lambda m, i: m(i["x"]), plan, (), wishes or {})


def line_of(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.calls += "|"  # here
        return y


class InHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"deep": Counts()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner["deep"](x)


class Alternates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.h.dtype == torch.float16
        self.h = (self.h + x).to(torch.float32 if wide else torch.float16)  # alternates
        return x


class Gathers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.late: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.late.append(x)  # gathers
        return self.late[0]


@pytest.mark.parametrize(
    ("module", "attribute", "line"),
    [
        (Counts, "calls", 'self.calls += "|"  # here'),
        (InHelper, "inner.deep.calls", 'self.calls += "|"  # here'),
        (
            Alternates,
            "h",
            "self.h = (self.h + x).to(torch.float32 if wide else torch.float16)  # alternates",
        ),
        (Gathers, "late.0", "self.late.append(x)  # gathers"),
    ],
)
def test_a_refusal_names_the_attribute_and_the_line(module, attribute: str, line: str) -> None:
    with pytest.raises(StateError) as caught:
        find(module().eval())
    assert caught.value.attribute == attribute
    assert caught.value.file == __file__
    assert caught.value.line == line_of(line)
    assert caught.value.hint


def test_an_ignored_path_is_not_refused() -> None:
    assert find(Counts().eval(), {"calls": Wish(ignore=True)}).ignored == ("calls",)


@pytest.mark.parametrize(
    ("layer", "said"),
    [(nn.BatchNorm1d(3), "running statistics"), (nn.Dropout(0.5), "drop elements at random")],
)
def test_layers_in_training_mode_are_refused(layer: nn.Module, said: str) -> None:
    with pytest.raises(StateError, match=said) as caught:
        find(nn.Sequential(nn.Linear(3, 3), layer))
    assert caught.value.attribute == "1"
    assert "eval()" in caught.value.hint


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h += 1
        raise self.error  # raises


def test_a_module_that_raises_is_a_stage_error_at_its_line() -> None:
    module = Raises(ValueError("no such thing")).eval()
    with pytest.raises(StageError, match="ValueError: no such thing") as caught:
        find(module)
    assert (caught.value.file, caught.value.line) == (
        __file__,
        line_of("raise self.error  # raises"),
    )
    assert module.h.tolist() == [0.0, 0.0, 0.0]


def test_an_interrupt_goes_through_and_leaves_the_module_alone() -> None:
    module = Raises(KeyboardInterrupt()).eval()
    with pytest.raises(KeyboardInterrupt):
        find(module)
    assert module.h.tolist() == [0.0, 0.0, 0.0]


class Accumulates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(2, 3))
        self.register_buffer("quiet", torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x
        return self.h * self.quiet


@pytest.mark.parametrize(
    ("value", "expected"), [("buffer", 1.0), ("zeros", 0.0), (2.5, 2.5), ([[4.0] * 3] * 2, 4.0)]
)
def test_a_declared_initial_value_wins(value, expected: float) -> None:
    (state,) = find(Accumulates().eval(), {"h": Wish(value=value)}).reference.states
    assert torch.equal(state.initial, torch.full((2, 3), expected))


def test_a_declared_tensor_that_never_changes_is_a_state_that_is_not_exercised() -> None:
    states = find(Accumulates().eval(), {"quiet": Wish()}).reference.states
    assert {s.name: s.exercised for s in states} == {"h": True, "quiet": False}


def test_a_declared_state_that_is_not_there_is_a_spec_error_with_a_guess() -> None:
    with pytest.raises(SpecError, match="no tensor and no number called 'quite'") as caught:
        find(Accumulates().eval(), {"quite": Wish()})
    assert "quiet" in caught.value.hint


def test_a_declared_dtype_must_be_the_models() -> None:
    with pytest.raises(StateError, match="declared as float16"):
        find(Accumulates().eval(), {"h": Wish(dtype="float16")})


class Embeds(nn.Module):
    """Concatenates a constant row, and a cache that needs none, with what follows the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speaker", torch.tensor([[1.0, 2.0]]))
        self.register_buffer("none", torch.zeros(1, 0))
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x
        return torch.cat([self.h, self.speaker, self.none], dim=1)


def test_what_no_call_stores_to_may_follow_the_batch_too() -> None:
    plan = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
    axes = [Axis("batch", 1, 2, 8)]
    found = discover(Embeds().eval(), lambda m, given: m(**given), plan, axes, {})
    shapes = {state.name: state.shape for state in found.reference.states}
    assert shapes == {"h": ("batch", 3), "speaker": ("batch", 2), "none": ("batch", 0)}


def test_a_module_without_state_may_hold_rows_of_the_batch() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("speaker", torch.tensor([[1.0, 2.0]]))
            self.register_buffer("scale", torch.ones(1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x * self.scale, self.speaker], dim=1)

    plan = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
    axes = [Axis("batch", 1, 2, 8)]
    found = discover(Constant().eval(), lambda m, given: m(**given), plan, axes, {})
    assert [state.name for state in found.reference.states] == ["speaker"]


def test_the_tensors_that_may_be_to_blame_are_named() -> None:
    class Never(Embeds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] != 1:
                raise ValueError("one row only")
            return super().forward(x)

    plan = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
    with pytest.raises(PipelineError, match="one row only") as caught:
        discover(Never().eval(), lambda m, given: m(**given), plan, [Axis("batch", 1, 2, 8)], {})
    assert "speaker[1, 2]" in str(caught.value.hint)
