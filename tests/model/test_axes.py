"""Which dimension of a state follows which axis, found by running the module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.settle import Wish

BATCH = Axis("batch", 1, 2, 8)
TIME = Axis("time", 1, 3, 9)


def shapes_of(module: nn.Module, *shape: int | str, wishes=None, axes=(BATCH, TIME)):
    used = [axis for axis in axes if axis.name in shape]
    plan = InputPlan([Input("x", torch.float32, shape, Uniform())])
    found = discover(module.eval(), lambda m, i: m(i["x"]), plan, used, wishes or {})
    return {state.name: state.shape for state in found.reference.states}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], layers: int, batch: int = 1, **more) -> None:
        super().__init__()
        self.rnn = kind(4, 6, num_layers=layers, **more)
        directions = 2 if more.get("bidirectional") else 1
        size = more.get("proj_size", 6)
        self.register_buffer("h", torch.zeros(layers * directions, batch, size))
        self.register_buffer("c", torch.zeros(layers * directions, batch, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.rnn, nn.LSTM):
            y, (self.h, self.c) = self.rnn(x, (self.h, self.c))
        else:
            y, self.h = self.rnn(x, self.h)
        return y


def test_lstm_of_batch_one() -> None:
    found = shapes_of(Recurrent(nn.LSTM, 2, batch_first=True), "batch", "time", 4)
    assert found == {"h": (2, "batch", 6), "c": (2, "batch", 6)}


def test_gru_of_one_layer_whose_state_has_two_dimensions_of_size_one() -> None:
    found = shapes_of(Recurrent(nn.GRU, 1, batch_first=True), "batch", "time", 4)
    assert found == {"h": (1, "batch", 6)}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projected_lstm_both_ways_time_first() -> None:
    module = Recurrent(nn.LSTM, 1, bidirectional=True, proj_size=3)
    assert shapes_of(module, "time", "batch", 4) == {"h": (2, "batch", 3), "c": (2, "batch", 6)}


class Accumulator(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x
        return self.h


def test_an_accumulator_that_broadcasts_follows_its_input() -> None:
    assert shapes_of(Accumulator(1, 3), "batch", 3) == {"h": ("batch", 3)}
    assert shapes_of(Accumulator(1, 1, 3), "batch", "time", 3) == {"h": ("batch", "time", 3)}


def test_a_state_that_follows_no_axis_keeps_its_shape() -> None:
    class Mean(Accumulator):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h * 0.5 + x.mean(0, keepdim=True)
            return x - self.h

    assert shapes_of(Mean(1, 3), "batch", 3) == {"h": (1, 3)}


class Cache(nn.Module):
    """Rows of its own, and one position for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 64, 4))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k.index_copy_(2, self.pos + torch.arange(x.shape[2]), x)
        self.pos += x.shape[2]
        return x @ self.k.transpose(-1, -2)


def test_a_cache_has_rows_and_its_position_has_none() -> None:
    found = shapes_of(Cache(), "batch", 2, "time", 4)
    assert found == {"k": ("batch", 2, 64, 4), "pos": (1,)}


def test_a_cache_that_grows_has_an_axis_of_its_own() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", torch.zeros(1, 0, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k = torch.cat([self.k, x], 1)
            return x @ self.k.transpose(-1, -2)

    assert shapes_of(Growing(), "batch", "time", 4) == {"k": ("batch", "k_1", 4)}


def test_a_state_that_changes_rank_is_refused_at_its_line() -> None:
    with pytest.raises(StateError, match=r"changes its shape from \[3\]") as caught:
        shapes_of(Accumulator(3), "batch", 3)
    assert caught.value.attribute == "h"
    assert caught.value.file == __file__
    assert "size 1 along the batch axis" in caught.value.hint


def test_a_state_of_a_fixed_batch_is_refused_with_what_to_do() -> None:
    with pytest.raises(StateError, match=r"no choice of which dimensions.*h\[4, 3\]") as caught:
        shapes_of(Accumulator(4, 3), "batch", 3)
    assert "size 1 along dynamic axes" in caught.value.hint


def test_zeros_of_any_batch_are_had_by_declaring_them() -> None:
    wishes = {"h": Wish(shape=("batch", 3), value="zeros")}
    assert shapes_of(Accumulator(4, 3), "batch", 3, wishes=wishes) == {"h": ("batch", 3)}


def test_a_declared_shape_is_kept() -> None:
    wishes = {"h": Wish(shape=("batch", "time", 3))}
    found = shapes_of(Accumulator(1, 1, 3), "batch", "time", 3, wishes=wishes)
    assert found == {"h": ("batch", "time", 3)}


def test_probe_sizes_are_distinct_and_in_range() -> None:
    axes = [Axis("a", 1, 2, 16), Axis("b", 1, 2, 16), Axis("c", 4, 4, 4), Axis("d", 1, 1, 1)]
    for variant in (0, 1):
        sizes = probe_sizes(axes, fixed=[3], variant=variant)
        assert len({sizes["a"], sizes["b"]}) == 2
        assert min(sizes["a"], sizes["b"]) >= 2
        assert 3 not in (sizes["a"], sizes["b"])
        assert (sizes["c"], sizes["d"]) == (4, 1)
