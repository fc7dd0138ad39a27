"""Modules as TorchScript that keeps its states inside: what it is made of, and what it leaves."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError, StageError, StateError
from stateful_pipeline.model.deployable import Deployable, deployable, initial_module
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.scripted import methods
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.subject import KeywordCall, Subject

PLAN = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
SIZES = ({"batch": 4}, {"batch": 1})


def compile_(module: nn.Module, reset: str | None = None, **call: Any) -> Deployable:
    return deployable(module, KeywordCall(call.pop("constants", {}), **call), PLAN, SIZES, reset)


def same_steps(one: nn.Module, other: nn.Module, count: int = 4, **more: Any) -> bool:
    steps = PLAN.steps({"batch": 1}, 1, count)
    return all(torch.equal(one(**step, **more), other(**step, **more)) for step in steps)


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.mean = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = 0.5 * self.h + x
        self.mean = self.mean + 0.5
        return self.h + self.mean

    def forget(self) -> None:
        self.h = torch.zeros_like(self.h)
        self.mean = 0.0


def test_it_does_the_same_and_the_module_stays_as_it_was() -> None:
    module = Leaky()
    before = dict(vars(module))
    h = module.h
    made = compile_(module).module
    assert module.h is h
    assert h.eq(0).all()
    assert vars(module) == before
    assert not hasattr(Leaky.forget, "_torchscript_modifier")
    made(torch.ones(1, 3))
    assert h.eq(0).all()
    assert same_steps(compile_(module).module, Leaky())


def test_the_reset_is_a_method_of_it() -> None:
    found = compile_(Leaky(), "forget")
    assert (found.reset, found.without_reset) == ("forget", None)
    found.module(torch.ones(1, 3))
    found.module.forget()
    assert same_steps(found.module, Leaky())
    assert "forget" not in methods(compile_(Leaky()).module)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Leaky(), Leaky()])
        self.layers[1].name = "second"  # two types in TorchScript: one at most is named Leaky

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forget(self) -> None:
        for layer in self.modules():
            if isinstance(layer, Leaky):
                layer.forget()

    def forget_half(self) -> None:
        self.layers[0].forget()

    def forget_in_python(self) -> None:
        [layer.forget() for layer in set(self.layers)]

    def fail(self) -> None:
        raise ValueError("not yet")


@pytest.mark.parametrize(
    ("reset", "reason"),
    [
        ("forget", "does not restore 'layers."),
        ("forget_half", "does not restore 'layers.1."),
        ("forget_in_python", "torch.jit.script refused"),
        ("fail", "raises in TorchScript"),
    ],
)
def test_a_reset_that_does_not_restore_in_torchscript_is_left_out(reset: str, reason: str) -> None:
    found = compile_(Stack(), reset)
    assert found.reset is None
    assert reason in str(found.without_reset)
    assert reset not in methods(found.module)
    assert same_steps(found.module, Stack())


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def step(self, x: torch.Tensor, rate: int = 8000, scale: float = 1.0) -> torch.Tensor:
        self.h = self.h + x * (rate / 8000) * scale
        return self.h


def test_the_entry_point_may_be_another_method() -> None:
    made = compile_(Other(), method="step", constants={"rate": 16000}).module
    eager = Other()
    for step in PLAN.steps({"batch": 1}, 1, 3):
        assert torch.equal(made.step(rate=16000, **step), eager.step(rate=16000, **step))


def test_a_scripted_module_is_taken_as_it_is() -> None:
    with quiet_scripting():
        module = torch.jit.script(Other())
    for reset, kept in (("forward", "forward"), ("nothing", None)):
        found = compile_(module, reset) if kept is None else compile_(module)
        assert found.module is module
        assert found.reset is None


class Typed(nn.Module):
    """What is None or not annotated has the types that calls show."""

    def __init__(self) -> None:
        super().__init__()
        self.last = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = self._mixed(x, 2)
        self.last = last
        return last

    def _mixed(self, x, times):
        return x * times if self.last is None else self.last + x * times


def test_types_are_learnt_from_calls() -> None:
    assert same_steps(compile_(Typed()).module, Typed())


class Refused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = {1: lambda v: v}
        return table[1](x)


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queue = collections.deque([torch.zeros(1, 3)] * 2, maxlen=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.queue.append(x)
        return self.queue[0] + x


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("m", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i = torch.tensor(1)
        self.m[i].add_(x[0])
        return self.m * x[0]


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = (i for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (Refused, StageError, "torch.jit.script refused: .*Lambda"),
        (Queue, StageError, "'queue' is a deque of at most 2 items"),
        (Rows, StateError, "view of one row|does not write|drop"),
        (Locked, StageError, "cannot be copied: TypeError: cannot pickle 'generator'"),
    ],
)
def test_what_would_not_be_the_same_is_refused(
    module: type[nn.Module], error: type[PipelineError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        compile_(module())
    assert caught.value.place is not None or caught.value.hint is not None


def test_a_refusal_names_the_users_line() -> None:
    with pytest.raises(StageError) as caught:
        compile_(Refused())
    assert str(caught.value.file) == __file__
    assert caught.value.line == Refused.forward.__code__.co_firstlineno + 1


def wished(wishes: Mapping[str, Wish]) -> Subject:
    return Subject(Leaky(), PLAN, (Axis("batch", 1, 2, 4),), KeywordCall({}), wishes)


def test_declared_initial_values_are_laid_into_a_copy() -> None:
    subject = wished({"h": Wish(("batch", 3), value=2.0), "mean": Wish(value=1.5)})
    module = initial_module(subject)
    assert module.h.tolist() == [[2.0] * 3]
    assert module.mean == 1.5
    assert subject.module.h.tolist() == [[0.0] * 3]
    own = wished({"h": Wish(("batch", 3))})
    assert initial_module(own) is own.module
