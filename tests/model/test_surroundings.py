from __future__ import annotations

import functools
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from stateful_pipeline.model.observe import Observation, observe
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import survey

calls = 0
level = torch.zeros(2)
table: dict[str, int] = {"n": 0}
log: list[tuple[()]] = []
known: dict[str, torch.Tensor] = {}
unrelated = 0


class Odometer:
    turns = 0

    def turn(self) -> None:
        Odometer.turns += 1


class InGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global calls
        calls += 1
        return x


class InGlobalTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level.add_(1)
        return x + level


class InGlobalDict(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table["n"] += 1
        return x


class InGlobalLength(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        log.append(())
        return x


class InClass(nn.Module):
    frames = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).frames += 1
        return x


class InClassTensor(nn.Module):
    total = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return x + self.total


class InHelperClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odometer = Odometer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.odometer.turn()
        return x


class InDefault(nn.Module):
    def forward(self, x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return x


def count_up() -> int:
    count_up.calls += 1
    return count_up.calls


count_up.calls = 0


class InFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count_up()
        return x


def counted():
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up


up = counted()


class InClosure(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up()
        return x


class Drawing(nn.Module):
    def __init__(self, draw) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.draw(x)


def watch(module: nn.Module) -> Observation:
    return observe(module, module, [(torch.ones(2),)] * 3)


NAME = __name__
OUTSIDE = [
    (InGlobal, f"<global {NAME}.calls>", "a global variable"),
    (InGlobalTensor, f"<global {NAME}.level>", "a global variable"),
    (InGlobalDict, f"<global {NAME}.table>.n", "a global variable"),
    (InGlobalLength, f"<global {NAME}.log>.0", "a global variable"),
    (InClass, "<class InClass>.frames", "a class attribute"),
    (InClassTensor, "<class InClassTensor>.total", "a class attribute"),
    (InHelperClass, "<class Odometer>.turns", "a class attribute"),
    (InDefault, "<default of InDefault.forward>.seen.0", "a default argument"),
    (InFunction, "<function count_up>.calls", "a function attribute"),
    (InClosure, "<closure of up>.count", "a variable that a function encloses"),
]


@pytest.mark.parametrize(("make", "path", "place"), OUTSIDE, ids=lambda value: str(value)[:40])
def test_state_outside_the_module_is_refused_by_name(make, path: str, place: str) -> None:
    refused = watch(make()).refused
    assert [item.path for item in refused][:1] == [path]
    assert place in refused[0].reason
    assert "registered buffer" in refused[0].hint


def picture() -> list[object]:
    cell = up.__closure__[0].cell_contents
    default = list(InDefault.forward.__defaults__[0])
    numbers = [calls, table["n"], len(log), InClass.frames, Odometer.turns, count_up.calls, cell]
    return [*numbers, default, level.tolist(), InClassTensor.total.tolist()]


@pytest.mark.parametrize("make", [item[0] for item in OUTSIDE])
def test_state_outside_the_module_is_restored(make) -> None:
    module = make()
    before = picture()
    with Snapshot(module):
        module(torch.ones(2))
        assert picture() != before
    assert picture() == before


def test_names_that_appear_are_taken_away_again() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            global appeared
            appeared = 1
            type(self).also = 2
            return x

    (first, second) = watch(Late()).refused
    assert "appears during a call" in first.reason
    assert "appears during a call" in second.reason
    assert "appeared" not in globals()
    assert not hasattr(Late, "also")


@pytest.mark.parametrize(
    ("draw", "whose"),
    [
        (lambda x: random.random(), "Python"),
        (lambda x: float(np.random.rand()), "numpy"),
        (torch.randn_like, "torch"),
        (nn.Dropout(), "torch"),
    ],
)
def test_drawing_from_a_generator_of_the_process_is_refused_and_undone(draw, whose: str) -> None:
    module = Drawing(draw)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    (refused,) = watch(module).refused
    assert "random numbers" in refused.reason
    assert whose in refused.reason
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == states


def test_dropout_in_eval_mode_draws_nothing() -> None:
    assert watch(Drawing(nn.Dropout()).eval()).refused == ()


@functools.lru_cache(maxsize=2)
def ramp(size: int, step: int) -> torch.Tensor:
    return torch.arange(float(size)) + step


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.kept = functools.lru_cache(maxsize=None)(lambda size: torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x + ramp(2, int(self.n)) + self.kept(2)


def test_a_cache_that_fills_is_no_state() -> None:
    observation = watch(Cached())
    assert observation.refused == ()
    assert [state.name for state in observation.tracked] == ["n"]


def test_a_cached_tensor_that_is_stored_to_is_refused() -> None:
    kept = functools.lru_cache(maxsize=None)(lambda: torch.zeros(2))
    (refused,) = watch(Drawing(lambda x: kept().add_(1))).refused
    assert "cache of a function" in refused.reason


class Aliased(nn.Module):
    def __init__(self, hold) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2))
        self.held = hold(self.h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.add_(x)
        return x + known.get("h", 0)


@pytest.mark.parametrize(
    ("hold", "place"),
    [
        (weakref.ref, "held.<referent>"),
        (lambda h: weakref.WeakValueDictionary(h=h), "held.data.h.<referent>"),
        (lambda h: {h}, "held.<member 0>"),
        (lambda h: {h: 1}, "held.<key 0>"),
        (lambda h: lambda x, h=h: h + x, "<default of <lambda>>.h"),
        (lambda h: known.update(h=h), f"<global {__name__}.known>.h"),
    ],
)
def test_a_state_that_something_else_holds_for_good_is_refused(hold, place: str) -> None:
    try:
        observation = watch(Aliased(hold))
    finally:
        known.clear()
    assert observation.tracked == ()
    assert [item.path for item in observation.refused] == ["h"]
    assert f"is also held by '{place}'" in observation.refused[0].reason


def test_a_partial_function_follows_a_state() -> None:
    (state,) = watch(Aliased(lambda h: functools.partial(torch.mul, h))).tracked
    assert state.paths == ("h", "held.args.0")


def test_what_the_code_does_not_name_is_not_looked_at() -> None:
    paths = {leaf.path for leaf in survey(InGlobal()).leaves}
    assert f"<global {NAME}.calls>" in paths
    assert f"<global {NAME}.unrelated>" not in paths
    assert not any("torch" in path for path in paths if "generator" not in path)
