"""Copies of a module as the reference for states that nobody knows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StageError
from stateful_pipeline.model.copies import Copies
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.subject import KeywordCall

AXES = (Axis("batch", 1, 2, 4), Axis("time", 1, 3, 5))
PLAN = InputPlan([Input("x", torch.float32, ("batch", "time"), Uniform())])


class Sums(nn.Module):
    """Its state follows the batch; time is free."""

    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        assert self.calls < 6
        self.calls += 1
        self.h = self.h + x.sum(1)
        return {"sum": self.h, "calls": torch.tensor(self.calls)}


def test_a_rollout_and_each_reset_start_from_the_module_as_it_is() -> None:
    module = Sums()
    inputs = [{"x": torch.ones(2, 3)} for _ in range(5)]
    for _ in range(2):
        steps = list(Copies(module, KeywordCall({})).rollout({}, inputs, 3))
        assert [step.index for step in steps] == list(range(5))
        assert [step.outputs["calls"].item() for step in steps] == [1, 2, 3, 1, 2]
        assert [step.outputs["sum"].tolist() for step in steps][2:4] == [[9.0] * 2, [3.0] * 2]
        assert all(step.before == step.after == {} for step in steps)
    assert (module.calls, module.h.tolist()) == (0, [0.0])


def test_what_the_module_raises_is_an_error_at_the_users_line() -> None:
    copies = Copies(Sums(), KeywordCall({}))
    with pytest.raises(StageError, match="the module raises AssertionError") as caught:
        list(copies.rollout({}, [{"x": torch.ones(1, 1)} for _ in range(7)]))
    assert caught.value.file == __file__


def test_sizes_change_along_the_axes_that_no_state_follows() -> None:
    found = Copies(Sums(), KeywordCall({})).changing(PLAN, AXES)
    assert found is not None
    assert found.turns == {"time": (1, 3, 5, 3)}
    assert found.sizes["batch"] == 2


def test_no_size_changes_where_states_follow_all_axes_or_none_can() -> None:
    copies = Copies(Sums(), KeywordCall({}))
    assert copies.changing(PLAN, (AXES[0], Axis("time", 3, 3, 3))) is None
    assert copies.changing(PLAN, (Axis("batch", 2, 2, 2), Axis("time", 3, 3, 3))) is None
