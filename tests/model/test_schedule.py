"""Sizes of rollouts: corners, and axes that no state follows changing from step to step."""

from __future__ import annotations

import torch

from stateful_pipeline.contract import Axis
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.schedule import Schedule, schedules

BATCH, TIME = Axis("batch", 1, 4, 16), Axis("time", 1, 20, 200)
H = StateDef("h", ("h",), (2, "batch", 8), torch.zeros(2, 1, 8))


def in_turn(axes, states) -> list[Schedule]:
    return [schedule for schedule in schedules(axes, states) if schedule.turns]


def test_an_axis_that_no_state_follows_changes_in_one_rollout() -> None:
    (found,) = in_turn([BATCH, TIME], [H])
    assert [found.at(step) for step in range(5)] == [
        {"batch": 4, "time": time} for time in (1, 20, 200, 20, 1)
    ]
    assert found.summary() == {"batch": 4, "time": "1, 20, 200 in turn"}
    assert str(found) == "batch=4, time=1, 20, 200 in turn"


def test_the_other_rollouts_keep_their_sizes() -> None:
    found = [schedule for schedule in schedules([BATCH, TIME], [H], 3) if not schedule.turns]
    assert [schedule.at(7) for schedule in found] == [
        {"batch": 4, "time": 20},
        {"batch": 1, "time": 1},
        {"batch": 16, "time": 200},
    ]


def test_no_axis_changes_that_a_state_follows_or_that_is_fixed() -> None:
    assert in_turn([BATCH], [H]) == []
    assert in_turn([Axis("time", 5, 5, 5)], []) == []
    assert in_turn([], []) == []
    doubled = StateDef("d", ("d",), ("2*time",), torch.zeros(1))
    assert in_turn([TIME], [doubled]) == []


def test_an_axis_that_only_makes_a_state_grow_may_change() -> None:
    cache = StateDef(
        "k",
        ("k",),
        ("past", 4),
        torch.zeros(0, 4),
        frozenset({"past"}),
        out_shape=("past + time", 4),
    )
    (found,) = in_turn([TIME], [cache])
    assert list(found.turns) == ["time"]


def test_fixed_sizes_are_called_so() -> None:
    assert [str(schedule) for schedule in schedules([], [H])] == ["fixed sizes"]
