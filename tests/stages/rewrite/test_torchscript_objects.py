"""Helper objects, class attributes and ``super()`` in modules that go through TorchScript."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from stateful_pipeline.errors import PipelineError


class Decaying:
    limit = 3
    decay: float = 0.5

    def __init__(self):
        self.k = torch.zeros(2, 3)
        self.n = 0

    def update(self, x, gain=1.0):
        self.n += 1
        if self.n % self.limit == 0:
            self.k = self.k * self.decay
        self.k = self.k + x * gain
        return self.k


class Slower(Decaying):
    limit = 4

    def update(self, x, gain=1.0):
        y = super().update(x * 2, gain=gain * 0.5)
        if self.full:
            y = self.scaled(y, 3.0)
        return y + self.mean

    @property
    def full(self):
        return self.n > 5

    @property
    def mean(self):
        return self.k / max(self.n, 1)

    @property
    def unused(self):
        return {str(key): key for key in range(self.n)}

    @staticmethod
    def scaled(x, by):
        return x * by

    def __len__(self):
        return self.n


class Inherited(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Slower()

    def forward(self, x: Tensor) -> Tensor:
        y = self.cache.update(x) + self.cache.update(x, 0.5)
        return y + 1 if self.cache.full and len(self.cache) % 4 == 0 else y


def test_class_attributes_properties_static_methods_defaults_and_super(roll):
    contract = roll(Inherited(), steps=10)
    assert sorted(state.name for state in contract.states) == ["cache.k", "cache.n"]


class Stepping:
    def __init__(self):
        self.h = torch.zeros(2, 3)
        self.n = 0

    def forward(self, x):
        self.n += 1
        if self.n % 3 == 0:
            self.h = -self.h
        self.h = self.h + x
        return self.h


class Called(Stepping):
    forward = None  # type: ignore[assignment]
    del forward

    def __call__(self, x):
        return Stepping.forward(self, x)


class CalledDirectly:
    __slots__ = ("h", "n")

    def __init__(self):
        self.h = torch.zeros(2, 3)
        self.n = 0

    def __call__(self, x):
        self.n += 1
        if self.n % 3 == 0:
            self.h = -self.h
        self.h = self.h + x
        return self.h


class OfAnObject(nn.Module):
    def __init__(self, helper):
        super().__init__()
        self.helper = helper

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)


class OfItsForward(OfAnObject):
    def forward(self, x: Tensor) -> Tensor:
        return self.helper.forward(x)


def test_an_object_with_a_forward_method(roll):
    roll(OfItsForward(Stepping()), steps=8)


def test_an_object_that_is_called_and_has_slots(roll):
    roll(OfAnObject(CalledDirectly()), steps=8)


class Both(Stepping):
    def __call__(self, x):
        return self.forward(x) * 2


def test_an_object_with_a_forward_method_that_is_called_is_refused(roll):
    with pytest.raises(PipelineError):
        roll(OfAnObject(Both()), steps=8)


class WalksItsChildren(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.helper = CalledDirectly()

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x + self.helper(x)


def test_an_object_is_not_among_the_children_of_a_module(roll):
    with pytest.raises(PipelineError):
        roll(WalksItsChildren())


class Clamping:
    def __init__(self):
        self.level = 0.0

    def __setattr__(self, name, value):
        object.__setattr__(self, name, min(value, 1.0))


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = Clamping()

    def forward(self, x: Tensor) -> Tensor:
        self.helper.level += float(x.sum())
        return x * self.helper.level


def test_an_object_that_stores_attributes_its_own_way_is_refused(roll):
    with pytest.raises(PipelineError):
        roll(Clamped())


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.row = [Decaying(), Slower()]
        self.table = {"a": Decaying(), "b": Decaying()}
        self.same = self.row[0]

    def forward(self, x: Tensor) -> Tensor:
        for cache in self.row:
            x = cache.update(x)
        if self.same.n % 2 == 0:
            self.same.k = self.same.k * 0.5
        return x + self.table["a"].update(x) + self.table["b"].update(x, gain=3.0)


def test_lists_and_dicts_of_objects_one_of_which_has_two_names(roll):
    names = {state.name for state in roll(Several(), steps=8).states}
    assert {"row.0.k", "row.1.n", "table.b.k"} <= names
    assert not any(name.startswith("same") for name in names)


class WithALayer:
    def __init__(self, owner):
        self.owner = owner
        self.layer = nn.Linear(3, 3)
        self.h = torch.zeros(2, 3)
        self.n = 0

    def step(self, x):
        self.n += 1
        if self.n % 2 == 1:
            self.h = torch.tanh(self.layer(x) + self.h)
        return self.h


class LayerInAnObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = WithALayer(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.helper.step(x)


def test_an_object_that_holds_a_layer_and_the_module_around_it(roll):
    roll(LayerInAnObject(), steps=6)


@dataclass
class Statistics:
    mean: Tensor = field(default_factory=lambda: torch.zeros(3))
    count: int = 0

    def push(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = self.mean + max(0.1, 1.0 / self.count) * (x.mean(0) - self.mean)
        return self.mean


class OfStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.statistics = Statistics()

    def forward(self, x: Tensor) -> Tensor:
        if self.statistics.count % 2 == 0:
            return x - self.statistics.push(x)
        return x + self.statistics.push(x)


def test_a_dataclass(roll):
    roll(OfStatistics(), steps=14)


class Memory(NamedTuple):
    h: Tensor
    n: int


class OfNamedTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory(torch.zeros(2, 3), 0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.memory.h + x
        if self.memory.n % 3 == 2:
            h = h * 0.5
        self.memory = Memory(h, self.memory.n + 1)
        return h


def test_a_named_tuple_whose_annotations_are_strings(roll):
    roll(OfNamedTuple(), steps=8)


class Plain(nn.Module):
    rate, every = 0.3, 3
    shift = torch.tensor([0.5, 1.0, 2.0])

    def __init__(self):
        super().__init__()
        self.h = torch.zeros(2, 3)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if self.n % self.every == 0:
            self.h = self.h * self.rate
        self.h = self.h + x + self.shift
        return self.h


class Derived(Plain):
    every = 2

    @property
    def rate(self):
        return 0.1 * self.n

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.n % 2 == 0:
            y = y + self.every
        return y


class Again(Derived):
    def forward(self, x: Tensor) -> Tensor:
        return super(Again, self).forward(x) * 2  # noqa: UP008 - the form under test


@pytest.mark.parametrize("cls", [Plain, Derived, Again])
def test_constants_of_a_modules_class_and_super_of_modules(roll, cls):
    roll(cls(), steps=8)


class Written(nn.Module):
    h = torch.zeros(3)

    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if self.n > 20:
            self.h.add_(x[0])
        return x + self.h


def test_a_rare_write_to_a_tensor_of_the_class_is_refused(roll):
    with pytest.raises(PipelineError, match="h"):
        roll(Written())


def test_the_module_and_its_classes_are_left_as_they_were(roll):
    module = Several().eval()
    before = list(vars(module).items())
    classes = {cls: set(vars(cls)) for cls in (Plain, Derived, Slower)}
    roll(module)
    roll(Derived())
    assert [(name, id(value)) for name, value in before] == [
        (name, id(value)) for name, value in vars(module).items()
    ]
    assert {cls: set(vars(cls)) for cls in classes} == classes
