from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stateful_pipeline.model.indexing import TensorIndices

INTEGERS = (torch.int64, torch.int32, torch.int8)


@st.composite
def tensors_and_indices(draw):
    """A shape, and an index of numbers, slices, None, ... and at least one 0-d tensor."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    count = draw(st.integers(1, len(shape)))
    tensor_at = draw(st.integers(0, count - 1))
    # where an ellipsis stands, what comes after it counts from the end
    split = draw(st.integers(0, count)) if draw(st.booleans()) else None
    dims = [d if split is None or d < split else len(shape) - count + d for d in range(count)]
    index = []
    for position, dim in enumerate(dims):
        size = shape[dim]
        if position == split:
            index.append(...)
        if draw(st.integers(0, 5)) == 0:
            index.append(None)
        if position == tensor_at or draw(st.integers(0, 2)) == 0:
            dtype = draw(st.sampled_from(INTEGERS))
            index.append(torch.tensor(draw(st.integers(-size, size - 1)), dtype=dtype))
        elif draw(st.booleans()):
            index.append(draw(st.integers(-size, size - 1)))
        else:
            start = draw(st.none() | st.integers(-size, size))
            stop = draw(st.none() | st.integers(-size, size))
            index.append(slice(start, stop, draw(st.sampled_from([None, 1, 2]))))
    if split == count:
        index.append(...)
    if len(index) == 1 and draw(st.booleans()):
        return shape, index[0]
    return shape, tuple(index)


@settings(max_examples=300, deadline=None)
@given(tensors_and_indices())
def test_reading_equals_eager(case) -> None:
    shape, index = case
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    expected = x[index]
    with TensorIndices():
        got = x[index]
    assert got.shape == expected.shape
    assert torch.equal(got, expected)


@settings(max_examples=300, deadline=None)
@given(tensors_and_indices(), st.sampled_from(["number", "scalar", "full", "row", "ones", "int"]))
def test_writing_equals_eager(case, kind: str) -> None:
    shape, index = case
    x, y = torch.zeros(shape), torch.zeros(shape)
    target = x[index].shape
    count = int(torch.Size(target).numel())
    value = {
        "number": 3.5,
        "scalar": torch.tensor(2.5),
        "full": torch.arange(1.0, count + 1).reshape(target),
        "row": torch.arange(1.0, target[-1] + 1) if target else torch.tensor(1.5),
        "ones": torch.arange(1.0, count + 1).reshape((1, *target)),
        "int": torch.full(target, 7),
    }[kind]
    x[index] = value
    with TensorIndices():
        y[index] = value
    assert torch.equal(x, y)


@settings(max_examples=200, deadline=None)
@given(tensors_and_indices())
def test_what_is_written_through_a_read_arrives(case) -> None:
    shape, index = case

    def work(x: torch.Tensor) -> torch.Tensor:
        part = x[index]
        part.add_(1.0)
        part *= 2.0
        part[...] = part + 0.5
        part[..., None].sub_(0.25)
        torch.mul(part, 3.0, out=part)
        return part

    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    y = x.clone()
    expected = work(x)
    with TensorIndices():
        got = work(y)
    assert torch.equal(x, y)
    assert torch.equal(got, expected)


class Positions(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        with TensorIndices():
            x[i, 1:, j] = 5.0
            x[..., i].mul_(2.0)
            x[j, None, i] += 1.0
            slot = x[i]
            slot[j].copy_(slot[0] * 3.0)
            return x * 1.0


def test_a_graph_follows_indices_that_change() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3, 3)
    first = (x, torch.tensor(1), torch.tensor(2))
    program = torch.export.export(Positions(), first).module()
    for i in range(-3, 3):
        for j in range(-3, 3):
            given = (x, torch.tensor(i), torch.tensor(j))
            assert torch.equal(program(*given), Positions()(*given)), (i, j)


def test_indices_that_are_not_plain_are_left_to_torch() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    cases = [
        [0, 2],
        torch.tensor([0, 2]),
        (torch.tensor(1), [0, 1]),
        (torch.tensor(1), torch.tensor([True, False, True, False])),
        x > 5,
        True,
        torch.tensor(True),
    ]
    for index in cases:
        expected = x[index]
        with TensorIndices():
            assert torch.equal(x[index], expected)


@st.composite
def windows(draw):
    """A shape, an index with one slice that starts at a tensor, and how long that slice is."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim] - 1))
    length = draw(st.integers(1, shape[dim] - start))
    index = []
    for size in shape[:dim]:
        if draw(st.integers(0, 4)) == 0:
            index.append(None)
        index.append(draw(st.sampled_from([slice(None), 0, -1, slice(0, size)])))
    if draw(st.booleans()) and all(item == slice(None) for item in index):
        index = [...] if draw(st.booleans()) and dim == len(shape) - 1 else index
    position = torch.tensor(start)
    stop = draw(st.sampled_from([position + length, start + length]))
    index.append(slice(position, stop))
    return shape, tuple(index)


@settings(max_examples=300, deadline=None)
@given(windows(), st.booleans())
def test_writing_a_window_that_starts_at_a_tensor_equals_eager(case, extra: bool) -> None:
    shape, index = case
    x, y = torch.zeros(shape), torch.zeros(shape)
    target = x[index].shape
    value = torch.arange(1.0, target.numel() + 1).reshape((1, *target) if extra else target)
    x[index] = value
    with TensorIndices():
        y[index] = value
    assert torch.equal(x, y)


class Window(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        with TensorIndices():
            x[:, at : at + v.shape[1]] = v
            x[0, at + 1 : at + 2] = 9.0 * v[0, :1]
        return x


def test_a_graph_follows_a_window_that_moves() -> None:
    x, v = torch.zeros(2, 8), torch.arange(1.0, 7).reshape(2, 3)
    program = torch.export.export(Window(), (x, torch.tensor(0), v)).module()
    for at in range(5):
        given = (x, torch.tensor(at), v)
        assert torch.equal(program(*given), Window()(*given)), at
