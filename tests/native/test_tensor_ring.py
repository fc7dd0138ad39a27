"""Every method of ``stateful.TensorRing`` against a list of tensors in Python."""

from __future__ import annotations

import copy
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.libraries import LoadedLibrary

Script = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _loaded(ring: LoadedLibrary) -> None:
    """The class is there in every test."""


def make(capacity: int = 3, features: int = 2) -> Any:
    return torch.classes.stateful.TensorRing(capacity, features)


def frames(count: int, features: int = 2, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(features, generator=generator) for _ in range(count)]


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ring = torch.classes.stateful.TensorRing(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.ring.push(x)
        return self.ring.mean(), self.ring.window()


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_ring_holds_the_last_frames_oldest_first(capacity: int) -> None:
    ring = make(capacity)
    expected: deque[torch.Tensor] = deque(maxlen=capacity)
    for frame in frames(11):
        ring.push(frame)
        expected.append(frame)
        assert torch.equal(ring.window(), torch.stack(list(expected)))
        assert torch.equal(ring.mean(), torch.stack(list(expected)).mean(0))
        assert ring.size() == len(expected)


def test_empty_ring_has_an_empty_window_and_a_mean_of_zeros() -> None:
    ring = make(3, 5)
    assert ring.window().shape == (0, 5)
    assert torch.equal(ring.mean(), torch.zeros(5))
    assert ring.size() == 0


def test_later_frames_do_not_change_what_was_read() -> None:
    ring = make(2)
    first, second, third = frames(3)
    ring.push(first)
    partial = ring.window()
    ring.push(second)
    full = ring.window()
    ring.push(third)
    assert torch.equal(partial, first[None])
    assert torch.equal(full, torch.stack([first, second]))


def test_later_changes_of_a_frame_do_not_change_the_ring() -> None:
    ring = make()
    frame = torch.ones(2)
    ring.push(frame)
    frame.zero_()
    assert torch.equal(ring.mean(), torch.ones(2))


def test_reset_forgets_and_the_ring_works_on() -> None:
    ring = make()
    for frame in frames(4):
        ring.push(frame)
    ring.reset()
    assert ring.size() == 0
    ring.push(torch.ones(2))
    assert torch.equal(ring.window(), torch.ones(1, 2))


def test_clone_shares_nothing() -> None:
    ring = make()
    ring.push(torch.ones(2))
    other = ring.clone()
    other.push(torch.zeros(2))
    assert (ring.size(), other.size()) == (1, 2)
    ring.push(torch.full((2,), 5.0))
    assert torch.equal(other.window()[1], torch.zeros(2))


def test_ring_keeps_no_graph() -> None:
    ring = make()
    frame = torch.ones(2, requires_grad=True)
    ring.push(frame * 2)
    assert not ring.mean().requires_grad
    assert not ring.window().requires_grad
    assert torch.equal(ring.mean(), torch.full((2,), 2.0))


def test_ring_outlives_inference_mode() -> None:
    ring = make()
    with torch.inference_mode():
        ring.push(torch.ones(2))
        ring.reset()
        ring.push(torch.ones(2))
        made_there = make()
        cloned = ring.clone()
    for each in (ring, made_there, cloned):
        each.push(torch.zeros(2))
        assert torch.equal(each.window()[-1], torch.zeros(2))


@pytest.mark.parametrize(
    "frame",
    [torch.zeros(3), torch.zeros(1, 2), torch.zeros(2, dtype=torch.float64), torch.zeros(())],
    ids=["features", "batch", "float64", "scalar"],
)
def test_frame_that_does_not_fit_is_refused(frame: torch.Tensor) -> None:
    ring = make()
    with pytest.raises(ValueError, match=r"a frame must be float32 \[2\], got"):
        ring.push(frame)
    assert ring.size() == 0


@pytest.mark.parametrize(("capacity", "features"), [(0, 2), (2, 0), (-1, 2)])
def test_ring_without_room_is_refused(capacity: int, features: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        make(capacity, features)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((torch.zeros(3), 0, 0), "the buffer must be"),
        ((torch.zeros(3, 2, dtype=torch.float64), 0, 0), "the buffer must be"),
        ((torch.zeros(3, 2), 3, 3), "writes row 3"),
        ((torch.zeros(3, 2), 0, 4), "has 4 frames"),
        ((torch.zeros(3, 2), 2, 1), "has 1 frames and writes row 2"),
    ],
)
def test_state_that_no_ring_has_is_refused(state: Any, message: str) -> None:
    take = make()._get_method("__setstate__")
    with pytest.raises(ValueError, match=message):
        take(state)


@pytest.mark.parametrize("count", [0, 2, 3, 8])
def test_ring_is_pickled_wherever_its_head_is(count: int) -> None:
    ring = make()
    for frame in frames(count):
        ring.push(frame)
    for other in (pickle.loads(pickle.dumps(ring)), copy.deepcopy(ring)):
        for each in (ring.clone(), other):
            each.push(torch.ones(2))
        expected = ring.clone()
        expected.push(torch.ones(2))
        assert torch.equal(other.window(), expected.window())


def test_scripted_function_takes_and_returns_a_ring(script: Script) -> None:
    def filled(
        ring: torch.classes.stateful.TensorRing, frame: torch.Tensor
    ) -> torch.classes.stateful.TensorRing:
        other = ring.clone()
        ring.reset()
        while other.size() < 2:
            other.push(frame)
        return other

    ring = make()
    ring.push(torch.zeros(2))
    returned = script(filled)(ring, torch.ones(2))
    assert ring.size() == 0
    assert torch.equal(returned.window(), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_saved_module_goes_on_from_the_state_it_was_saved_in(
    script: Script, reload: Script
) -> None:
    module, expected = script(Smoother()), Smoother()
    for frame in frames(5):
        module(frame), expected(frame)
    again = reload(module)
    for frame in frames(5, seed=1):
        want = expected(frame)
        for got in (module(frame), again(frame)):
            assert all(map(torch.equal, got, want))
