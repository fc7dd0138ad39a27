from __future__ import annotations

import array
import collections
import enum
import itertools
import logging
import pathlib
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.observe import Observation, observe


def watch(module: nn.Module, steps: int = 4) -> Observation:
    return observe(module, module, [(torch.full((2,), float(i + 1)),) for i in range(steps)])


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("reassigned", torch.zeros(2))
        self.register_buffer("in_place", torch.zeros(2))
        self.register_buffer("through_view", torch.zeros(2))
        self.register_buffer("same_value", torch.zeros(2))
        self.register_buffer("not_yet", torch.zeros(2))
        self.register_buffer("nan", torch.full((2,), float("nan")))
        self.register_buffer("constant", torch.ones(2))
        self.number = float("nan")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.reassigned = self.reassigned + x
        self.in_place += x
        self.through_view[0] = x[0]
        self.same_value.copy_(torch.zeros(2))
        self.not_yet = torch.where(x > 100, x, self.not_yet)
        return x * self.constant + self.nan


def test_whatever_is_stored_to_is_found_and_nothing_else() -> None:
    found = {state.name: state for state in watch(Buffers()).tracked}
    assert set(found) == {"reassigned", "in_place", "through_view", "same_value", "not_yet"}
    assert {n for n, s in found.items() if not s.exercised} == {"same_value", "not_yet"}
    assert {n for n, s in found.items() if s.reassigned} == {"reassigned", "not_yet"}


def test_initial_values_are_those_before_the_first_call() -> None:
    module = Buffers()
    module.reassigned.fill_(7)
    initial = {state.name: state.initial.tolist() for state in watch(module).tracked}
    assert initial["reassigned"] == [7.0, 7.0]
    assert module.reassigned.tolist() == [7.0, 7.0]


class Forgetful(nn.Module):
    """Raises at step 2, after it has changed half of its state."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.count = 0
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a += x
        self.count += 1
        if self.count == 2:
            raise self.error
        return self.a


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_module_that_raises_is_left_as_it_was(error: type[BaseException]) -> None:
    module = Forgetful(error)
    with pytest.raises(error):
        watch(module)
    assert module.a.tolist() == [0.0, 0.0]
    assert module.count == 0


class Holds(nn.Module):
    def __init__(self, start: object, change) -> None:
        super().__init__()
        self.thing = start
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        return x


def assign(value):
    def change(module: Holds, x: torch.Tensor) -> None:
        module.thing = value(module.thing, x)

    return change


class Mode(enum.Enum):
    IDLE = 0
    LOW = 1
    HIGH = 2
    FULL = 3
    OVER = 4


def add(box: list[int]) -> None:
    box[0] += 1


@pytest.mark.parametrize(
    ("start", "change", "said"),
    [
        (1j, assign(lambda n, x: n * 1j), "Python complex"),
        (0, assign(lambda n, x: n + 2**64), "Python int"),
        (0, assign(lambda n, x: str(n)), "from int to str"),
        ("a", assign(lambda s, x: s + "b"), "a str that changes"),
        (None, assign(lambda s, x: x), "from None to Tensor"),
        (torch.zeros(2), assign(lambda s, x: None), "from Tensor to None"),
        (torch.zeros(2), assign(lambda s, x: s.double()), "changes its dtype"),
        (np.zeros(2), lambda m, x: m.thing.__iadd__(1), "a ndarray that changes"),
        ({1}, lambda m, x: m.thing.add(len(m.thing) + 5), "a set that changes"),
        ([], lambda m, x: m.thing.append(x), "appears during a call"),
        ([torch.zeros(2)], lambda m, x: m.thing.clear(), "is gone after a call"),
        ({}, lambda m, x: m.thing.update(k=x), "appears during a call"),
        ([], lambda m, x: m.thing.append(()), "appears during a call"),
        ([1] * 9, lambda m, x: m.thing.pop(), "is gone after a call"),
        ({"a": 1, "b": 2}, lambda m, x: m.thing.update(a=m.thing.pop("a")), "order change"),
        (Mode.IDLE, assign(lambda mode, x: Mode(mode.value + 1)), "a Mode that changes"),
        (torch.Size([0]), assign(lambda s, x: torch.Size([s[0] + 1])), "a Size"),
        (torch.int8, assign(lambda d, x: torch.int16), "a dtype"),
        (range(0), assign(lambda r, x: range(len(r) + 1)), "a range"),
        (int, assign(lambda t, x: float), "another one"),
        (torch.tanh, assign(lambda f, x: torch.sigmoid), "another one"),
        (itertools.count(), lambda m, x: next(m.thing), "an iterator (count)"),
        (iter([1] * 9), lambda m, x: next(m.thing), "an iterator (list_iterator)"),
        ((n for n in range(9)), lambda m, x: next(m.thing), "generator"),
        (array.array("i", [0]), lambda m, x: m.thing.append(0), "an array that changes"),
        (random.Random(0), lambda m, x: m.thing.random(), "is drawn from"),
        (np.random.default_rng(0), lambda m, x: m.thing.random(), "is drawn from"),
        (torch.Generator(), lambda m, x: torch.rand(1, generator=m.thing), "is drawn from"),
        (torch.eye(2).to_sparse(), assign(lambda s, x: s * 2), "layout torch.sparse_coo"),
        ({torch.zeros(2)}, lambda m, x: next(iter(m.thing)).add_(x), "held in a set"),
        ({torch.zeros(2): 0}, lambda m, x: next(iter(m.thing)).add_(x), "the keys of a dict"),
    ],
)
def test_what_cannot_be_a_state_is_refused_with_the_reason(start, change, said: str) -> None:
    refused = watch(Holds(start, change)).refused
    assert len(refused) >= 1
    assert refused[0].path.startswith("thing")
    assert said in refused[0].reason


class Twins(nn.Module):
    def __init__(self, diverge: bool) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2))
        self.helper = [self.h]
        self.diverge = diverge

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.diverge:
            self.h = self.h + x
        else:
            self.h.add_(x)
        return x


def test_one_tensor_under_two_paths_is_one_state_named_as_the_buffer() -> None:
    (state,) = watch(Twins(diverge=False)).tracked
    assert (state.name, state.paths) == ("h", ("h", "helper.0"))


def test_twins_that_part_are_two_unless_one_is_written_in_place() -> None:
    observation = watch(Twins(diverge=True))
    assert observation.refused == ()
    assert [state.paths for state in observation.tracked] == [("h",)]

    class Both(Twins):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h.add_(x)
            self.h = self.h * 2
            return x

    [refused] = watch(Both(diverge=True)).refused
    assert "one tensor before the call and two after" in refused.reason


def test_a_state_that_is_a_view_of_another_buffer_is_a_part_of_it() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("base", torch.zeros(4))
            self.register_buffer("part", self.base[:2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.part.add_(x)
            return self.base * 1

    observation = watch(Views())
    assert observation.refused == ()
    assert [state.places for state in observation.tracked] == [("base", "part")]


def test_buffers_made_in_inference_mode_are_watched() -> None:
    with torch.inference_mode():
        module = Holds(torch.zeros(2), assign(lambda s, x: s + x))
    (state,) = watch(module).tracked
    assert state.exercised


class Machine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(x)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        self.step = self.second
        return x

    def second(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_method_that_is_exchanged_is_refused() -> None:
    (refused,) = watch(Machine()).refused
    assert refused.path == "step"
    assert "a method that is another one" in refused.reason


class Swaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.current = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.current = self.b if self.current is self.a else self.a
        return self.current(x)


def test_a_submodule_that_is_exchanged_is_refused() -> None:
    (refused,) = watch(Swaps(), steps=3).refused
    assert refused.path == "current"


def test_what_a_thread_holds_is_watched_and_restored() -> None:
    held = threading.local()
    held.n = 0
    module = Holds(held, lambda m, x: setattr(m.thing, "n", m.thing.n + 1))
    assert [state.name for state in watch(module).tracked] == ["thing.n"]
    assert held.n == 0


def test_a_queue_of_tensors_may_shift() -> None:
    queue = collections.deque([torch.zeros(2), torch.zeros(2)], maxlen=2)
    observation = watch(Holds(queue, lambda m, x: m.thing.append(x)))
    assert observation.refused == ()
    assert [state.name for state in observation.tracked] == ["thing.0", "thing.1"]


def test_a_container_that_is_made_anew_each_time_is_no_change() -> None:
    start = {"k": [torch.zeros(2)], "n": 2}
    module = Holds(start, assign(lambda d, x: {"k": [d["k"][0] + x], "n": 2}))
    observation = watch(module)
    assert observation.refused == ()
    assert [state.name for state in observation.tracked] == ["thing.k.0"]


def test_logs_and_paths_are_no_state() -> None:
    class Logging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log = logging.getLogger("a.new.one")
            self.file = pathlib.Path("a") / "b"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.log.debug("%s %s", self.file, hash(self.file))
            return x

    assert watch(Logging()).refused == ()


def test_a_module_that_has_no_shapes_yet_is_refused() -> None:
    with pytest.raises(StateError, match="no shape before the first call") as caught:
        watch(nn.LazyLinear(2))
    assert caught.value.attribute == "weight"
