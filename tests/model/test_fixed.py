"""Attributes are fixed to constants of the type that they hold, and stay so from call to call."""

import math

import pytest
import torch
from torch import nn

from stateful_pipeline.errors import SpecError, StateError
from stateful_pipeline.model.fixed import fix_attribute, refuse_other_values
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.jit import quiet_scripting


class Inner(nn.Module):
    rates: list[int]

    def __init__(self) -> None:
        super().__init__()
        self._last_sr = 0
        self.rates = [8000, 16000]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self._last_sr + self.rates[0]


class Model(nn.Module):
    width = 3
    maybe: int | None
    pair: tuple[int, int]

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.gain = 1.0
        self.mode = "slow"
        self.fast = False
        self.maybe = None
        self.pair = (1, 2)
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maybe = self.maybe
        if maybe is not None:
            x = x + maybe
        if self.mode == "fast" or self.fast:
            x = x + self.pair[0]
        return self.inner(x) * self.gain + self.h


def scripted() -> nn.Module:
    with quiet_scripting():
        return torch.jit.script(Model().eval())


FORMS = pytest.mark.parametrize("form", [Model, scripted])


@FORMS
@pytest.mark.parametrize(
    ("path", "value", "held"),
    [
        ("inner._last_sr", 16000, 16000),
        ("gain", 2, 2.0),
        ("mode", "fast", "fast"),
        ("fast", True, True),
        ("maybe", 3, 3),
        ("pair", [3, 4], (3, 4)),
        ("inner.rates", [1, 2, 3], [1, 2, 3]),
        ("inner.rates.1", 7, 7),
    ],
)
def test_an_attribute_gets_the_constant_in_the_type_that_it_has(form, path, value, held) -> None:
    module = form()
    assert fix_attribute(module, path, value) == held
    now = read(module, path)
    assert now == held
    assert isinstance(now, type(held))
    refuse_other_values(module, {path: held})


@FORMS
def test_the_code_sees_the_constants(form) -> None:
    module = form()
    for path, value in (("inner._last_sr", 2), ("maybe", 5), ("fast", True), ("inner.rates.0", 0)):
        fix_attribute(module, path, value)
    assert module(torch.ones(3)).tolist() == [14.0] * 3


@FORMS
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("inner._last_sr", "a", "holds 0, which 'a' cannot stand for"),
        ("inner._last_sr", 1.5, "holds 0"),
        ("inner._last_sr", True, "holds 0"),
        ("fast", 1, "holds False"),
        ("mode", 1, "holds 'slow'"),
        ("pair", 1, "holds tuple"),
        ("inner.rates", ["a"], "holds 8000"),
        ("inner", 1, "cannot stand for"),
        ("h", 1.0, "is a tensor"),
    ],
)
def test_a_constant_of_another_type_is_refused(form, path, value, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        fix_attribute(form(), path, value)
    assert path in (caught.value.key or "")


@pytest.mark.parametrize(("path", "value"), [("maybe", "a"), ("inner._last_sr", None)])
def test_a_compiled_class_takes_no_value_of_another_type(path, value) -> None:
    with pytest.raises(SpecError, match="has another type"):
        fix_attribute(scripted(), path, value)


@FORMS
@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("inner.last_sr", "inner._last_sr"),
        ("_last_sr", "inner._last_sr"),
        ("gian", "gain"),
        ("nowhere.at.all", "inner._last_sr"),
    ],
)
def test_an_attribute_that_is_not_there_is_refused_with_the_nearest(form, path, near) -> None:
    with pytest.raises(SpecError, match=f"Model has no attribute '{path}'") as caught:
        fix_attribute(form(), path, 1)
    assert near in (caught.value.hint or "")


def test_an_attribute_of_the_class_is_fixed_in_the_object_alone() -> None:
    module = Model()
    fix_attribute(module, "width", 5)
    assert (module.width, Model.width) == (5, 3)


def test_what_a_compiled_class_holds_as_a_constant_of_its_code_is_refused() -> None:
    class Final(nn.Module):
        __constants__ = ("rate",)

        def __init__(self) -> None:
            super().__init__()
            self.rate = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.rate

    with quiet_scripting():
        module = torch.jit.script(Final())
    with pytest.raises(SpecError, match="a constant of the compiled code"):
        fix_attribute(module, "rate", 4)


@FORMS
def test_another_value_after_a_call_is_refused_by_name(form) -> None:
    module = form()
    fixed = {"inner._last_sr": fix_attribute(module, "inner._last_sr", 16000)}
    module.inner._last_sr = 8000
    with pytest.raises(StateError, match=r"fixed to 16000 .* leaves 8000") as caught:
        refuse_other_values(module, fixed)
    assert caught.value.attribute == "inner._last_sr"


def test_an_attribute_that_is_gone_is_refused() -> None:
    module = Model()
    fixed = {"mode": fix_attribute(module, "mode", "fast")}
    del module.mode
    with pytest.raises(StateError, match="leaves nothing there"):
        refuse_other_values(module, fixed)


def test_a_list_that_grows_in_place_is_refused() -> None:
    module = Model()
    fixed = {"inner.rates": fix_attribute(module, "inner.rates", [1])}
    module.inner.rates.append(2)
    with pytest.raises(StateError, match=r"fixed to \[1\]"):
        refuse_other_values(module, fixed)


def test_a_number_that_is_not_one_equals_itself() -> None:
    module = Model()
    fixed = {"gain": fix_attribute(module, "gain", math.nan)}
    refuse_other_values(module, fixed)
