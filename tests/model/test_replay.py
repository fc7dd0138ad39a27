from __future__ import annotations

import functools
import weakref

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.discover import Discovery, discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform


def find(module: nn.Module, shape=(1, 3), axes=()) -> Discovery:
    plan = InputPlan([Input("x", torch.float32, shape, Uniform())])
    return discover(module.eval(), lambda m, given: m(**given), plan, axes, {})


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.add_(x)
        return self.read()

    def read(self) -> torch.Tensor:
        return self.h * 1.0


def through_a_default(module: Sums) -> None:
    module.read = lambda h=module.h: h * 2.0


def through_a_weak_reference(module: Sums) -> None:
    seen = weakref.ref(module.h)
    module.read = lambda: seen() * 2.0


@pytest.mark.parametrize("tie", [through_a_default, through_a_weak_reference])
def test_a_state_that_something_else_holds_too_is_refused(tie) -> None:
    module = Sums()
    tie(module)
    with pytest.raises(StateError):
        find(module)


def test_a_partial_that_holds_a_state_follows_it() -> None:
    module = Sums()
    module.read = functools.partial(torch.mul, module.h, 2.0)
    plan = InputPlan([Input("x", torch.float32, (1, 3), Uniform())])
    program = capture(find(module).reference, plan, {})
    outputs, _ = program.run({"h": torch.ones(1, 3)}, {"x": torch.ones(1, 3)})
    assert outputs["output"].tolist() == [[4.0] * 3]


def test_a_state_that_nothing_else_holds_is_found() -> None:
    (state,) = find(Sums()).reference.states
    assert state.name == "h"


CALLS = {"n": 0}


def test_a_warm_up_that_a_global_counts_is_refused() -> None:
    class Warm(Sums):
        def read(self) -> torch.Tensor:
            CALLS["n"] += 1
            return self.h * (0.0 if CALLS["n"] <= 5 else 1.0)

    CALLS["n"] = 0
    with pytest.raises(StateError):
        find(Warm())


class LastLength(nn.Module):
    """Starts anew where a chunk is shorter than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.last = "1"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < int(self.last):
            self.h = torch.zeros(3)
        self.last = str(x.shape[0])
        self.h = self.h + x.sum(0)
        return self.h


def test_state_that_shows_only_where_chunks_vary_is_refused_with_its_line() -> None:
    with pytest.raises(StateError, match="'last'") as caught:
        find(LastLength(), ("time", 3), [Axis("time", 1, 4, 9)])
    assert caught.value.file == __file__


def test_a_buffer_that_changes_only_where_chunks_vary_is_a_state() -> None:
    class Longest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("longest", torch.tensor(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 4:
                self.longest = self.longest + 1
            return x * self.longest

    found = find(Longest(), ("time", 3), [Axis("time", 1, 4, 9)])
    assert [state.name for state in found.reference.states] == ["longest"]


class Trims(nn.Module):
    def __init__(self, test) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 0, 3))
        self.test = test

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k = torch.cat([self.k, x[:, None]], dim=1)
        if self.test(self.k.shape[1]):
            self.k = self.k[:, -100:]
        return self.k.mean(1)


@pytest.mark.parametrize("test", [lambda n: n > 100, lambda n: n % 64 == 0, lambda n: n == 77])
def test_code_that_tests_how_long_a_state_has_grown_is_refused(test) -> None:
    plan = InputPlan([Input("x", torch.float32, (1, 3), Uniform())])
    reference = find(Trims(test)).reference
    with pytest.raises(StateError, match="how long it has grown") as caught:
        capture(reference, plan, {})
    assert caught.value.attribute == "k"


def test_two_states_that_grow_together_are_no_test_of_length() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", torch.zeros(1, 0, 3))
            self.register_buffer("v", torch.zeros(1, 0, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k = torch.cat([self.k, x[:, None]], dim=1)
            self.v = torch.cat([self.v, x[:, None] * 2], dim=1)
            return torch.softmax(x[:, None] @ self.k.transpose(1, 2), -1) @ self.v

    plan = InputPlan([Input("x", torch.float32, (1, 3), Uniform())])
    assert capture(find(Cache()).reference, plan, {}).states == ("k", "v")


def test_an_argument_that_forward_writes_to_is_no_obstacle() -> None:
    class Writes(Sums):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2.0)
            self.h = self.h + x
            return self.h

    plan = InputPlan([Input("x", torch.float32, (1, 3), Uniform())])
    program = capture(find(Writes()).reference, plan, {})
    x = torch.ones(1, 3)
    outputs, _ = program.run({"h": torch.zeros(1, 3)}, {"x": x})
    assert outputs["output"].tolist() == [[2.0] * 3]
