"""What is wrong with an explicit form is said by class, line, and what to write instead."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, StateError
from stateful_pipeline.model.cpp_differences import first_difference
from stateful_pipeline.model.cpp_objects import same_state
from stateful_pipeline.stages.rewrite.torchscript.changes import in_python

FEATURES = 3
Export = Any


class Ema:
    """A right form of ``states.Ema``."""

    def __init__(self, state: Any) -> None:
        self.mean, self.decay, self.steps = state

    def to_state(self) -> Any:
        return self.mean, self.decay, self.steps

    def update(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        first = torch.tensor(self.steps == 0)
        later = self.mean * self.decay + x * ((1 - self.decay) * weight)
        self.mean = torch.where(first, x * weight, later)
        self.steps += 1
        return self.mean


class Smoothed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ema = torch.classes.states.Ema(FEATURES, 0.75)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.ema.update(x, 1.0)
        return mean


@pytest.fixture
def export(states: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Export:
    """Export a module with a form of ``states.Ema``, or another class, and return the refusal."""
    for name in ("_forms", "_declared"):
        monkeypatch.setattr(f"stateful_pipeline.model.cpp_objects.{name}", {})

    def call(form: type, module: nn.Module | None = None, **options: Any) -> PipelineError:
        sp.explicit_form("states.Ema")(form)
        x = torch.randn(FEATURES) if isinstance(module, Filled) else torch.randn(1, FEATURES)
        with pytest.raises(PipelineError) as caught:
            sp.export_onnx((module or Smoothed()).eval(), (x,), tmp_path / "m.onnx", **options)
        return caught.value

    return call


def line_of(cls: type) -> int:
    return inspect.getsourcelines(cls)[1]


class Bare(nn.Module, Ema):  # type: ignore[misc]
    def __init__(self, state: Any) -> None:
        self.mean, self.decay, self.steps = state


class Named(NamedTuple):
    state: Any

    def to_state(self) -> Any:
        return self.state


@dataclass(frozen=True)
class Frozen:
    state: Any

    def to_state(self) -> Any:
        return self.state


@pytest.mark.parametrize(
    ("form", "reason", "hint"),
    [
        (Bare, "does not call its constructor", "super().__init__()"),
        (Named, "is a tuple, whose instances cannot change", "plain class"),
        (Frozen, "is a frozen dataclass, whose instances cannot change", "plain class"),
    ],
)
def test_a_class_whose_instances_hold_no_state_is_refused_at_its_line(
    export: Export, form: type, reason: str, hint: str
) -> None:
    error = export(form)
    assert isinstance(error, StateError)
    assert f"the explicit form {form.__name__} of the C++ class states.Ema" in error.message
    assert reason in error.message
    assert hint in (error.hint or "")
    assert (error.file, error.line) == (__file__, line_of(form))


class Hidden(Ema):
    def __init__(self, state: Any) -> None:
        self.mean, self.decay, self.count = state  # type: ignore[assignment,method-assign]

    def to_state(self) -> Any:
        return self.mean, self.decay, self.count

    def count(self) -> int:
        return self.count  # type: ignore[return-value]

    def update(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        self.steps = self.count
        mean = super().update(x, weight)
        self.count = self.steps  # type: ignore[method-assign]
        del self.steps
        return mean


class Counting(Smoothed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.ema.count()


def test_an_attribute_that_hides_a_method_is_named(export: Export) -> None:
    error = export(Hidden, Counting())
    assert "has an attribute 'count', which hides its method of that name" in error.message
    assert "self._count" in (error.hint or "")
    assert (error.file, error.line) == (__file__, line_of(Hidden))


def test_a_method_that_is_not_there_is_shown_as_it_is_to_be_written(export: Export) -> None:
    error = export(Ema, Counting())
    assert "has no method 'count', which the model calls" in error.message
    assert error.hint == "write count() -> int"


class Double(Ema):
    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.mean = self.mean.double()


def test_the_element_that_does_not_come_back_is_shown_with_both_values(export: Export) -> None:
    error = export(Double)
    assert "[0] is float64[1, 3] [[0.0, 0.0, 0.0]] instead of float32[1, 3]" in error.message
    assert (error.file, error.line) == (__file__, line_of(Double))


@pytest.mark.parametrize(
    ("want", "have", "text"),
    [
        ((1, {"a": 2.0}), (1, {"a": 3.0}), "[1]['a'] is 3.0 instead of 2.0"),
        ((1, [2]), (1, [2, 3]), "[1] is (2, 3) instead of (2)"),
        (1, 1.0, "it is 1.0 instead of 1"),
    ],
)
def test_the_first_difference_of_two_states(want: Any, have: Any, text: str) -> None:
    assert first_difference(want, have, same_state) == text


class Renewing(Smoothed):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 7 == 0:
            self.ema = torch.classes.states.Ema(3, 0.75)
        return super().forward(x)


def test_an_object_that_a_call_makes_anew_is_refused_without_addresses(export: Export) -> None:
    error = export(Ema, Renewing(), frontend="torchscript")
    assert "another object of the C++ class states.Ema" in (error.hint or "")
    assert error.file == __file__
    assert "0x" not in str(error)


class Slow(Ema):
    def update(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        self.mean = super().update(x, weight) * 0.5
        return self.mean


def test_of_a_torchscript_file_the_forms_are_named_that_stand_in_its_graph(
    export: Export, script: Any
) -> None:
    error = export(Slow, script(Smoothed().eval()))
    assert "differs from eager at step" in error.message
    assert "a method of the explicit form Slow of the C++ class states.Ema" in str(error)


class Tally(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sums = {"all": 0.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sums["all"] += float(x.sum())
        return x * self.sums["all"]


def test_a_number_in_a_dict_that_is_added_to_is_told_what_works(export: Export) -> None:
    error = export(Ema, Tally(), frontend="torchscript")
    assert "self.sums['all'] = self.sums['all'] + float(x.sum())" in str(error)


class Bag:
    def __init__(self, state: Any) -> None:
        self.last, self.sums = state

    def to_state(self) -> Any:
        return self.last, self.sums

    def put(self, x: torch.Tensor) -> torch.Tensor:
        self.last = [self.last[1], x]
        self.sums["all"] = self.sums["all"] + x
        return self.last[0] + self.sums["all"]

    def __len__(self) -> int:
        return len(self.last)

    def __getitem__(self, index: int) -> torch.Tensor:
        item: torch.Tensor = self.last[index]
        return item


class Filled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.classes.states.Bag(FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bag.put(x) * len(self.bag)
        return result


class Indexed(Filled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.bag[1]


@pytest.mark.parametrize(
    ("cls", "frontend"), [(Filled, "export"), (Filled, "torchscript"), (Indexed, "export")]
)
def test_len_and_brackets_call_the_methods_of_a_form(
    export: Export, tmp_path: Path, cls: type[nn.Module], frontend: str
) -> None:
    sp.explicit_form("states.Bag")(Bag)
    module, path = cls().eval(), tmp_path / "bag.onnx"
    sp.export_onnx(module, (torch.randn(FEATURES),), path, frontend=frontend)
    runner = sp.StatefulRunner(path)
    for _ in range(4):
        x = torch.randn(FEATURES)
        got = torch.from_numpy(runner.run({"x": x.numpy()})["output"])
        torch.testing.assert_close(got, module(x))


class Shorter(Bag):
    def __len__(self) -> int:
        return 1


def test_a_len_that_is_another_is_refused_like_a_method(export: Export) -> None:
    sp.explicit_form("states.Bag")(Shorter)
    error = export(Ema, Filled())
    assert "'__len__' returns another result than the class: 1 instead of 2" in error.message


def test_a_path_is_shown_as_python_has_it() -> None:
    assert in_python("ring.frames.0") == "self.ring.frames[0]"
