"""The counter: what it adds, what it remembers, how it starts again."""

import torch

from stateful_pipeline.zoo.counter import Counter


def test_each_call_adds_one_more_than_the_last() -> None:
    model = Counter()
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert model(x).tolist() == [[4.0, 5.0, 6.0]]
    assert model(x).tolist() == [[5.0, 6.0, 7.0]]


def test_states_are_a_float_and_an_integer_without_dimensions() -> None:
    model = Counter()
    model(torch.zeros(1, 3))
    assert {name: (value.dtype, value.ndim) for name, value in model.named_buffers()} == {
        "h": (torch.float32, 0),
        "counter": (torch.int64, 0),
    }
    assert (model.h.item(), model.counter.item()) == (4.0, 1)


def test_reset_restores_the_initial_state() -> None:
    model = Counter(init_h=-2.5)
    first = model(torch.zeros(2, 3))
    model(torch.zeros(2, 3))
    model.reset_states()
    assert (model.h.item(), model.counter.item()) == (-2.5, 0)
    assert torch.equal(model(torch.zeros(2, 3)), first)
