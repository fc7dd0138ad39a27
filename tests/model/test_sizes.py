from __future__ import annotations

from stateful_pipeline.contract import Axis
from stateful_pipeline.model.sizes import corner_sizes, usual_sizes


def test_each_of_min_opt_and_max_of_each_axis_is_visited() -> None:
    axes = [Axis("batch", 1, 4, 16), Axis("time", 2, 20, 200), Axis("past", 0, 8, 64)]
    sets = corner_sizes(axes)
    for axis in axes:
        assert {axis.min, axis.opt, axis.max} <= {sizes[axis.name] for sizes in sets}
    assert sets[0] == usual_sizes(axes) == {"batch": 4, "time": 20, "past": 8}
    assert {"batch": 1, "time": 200, "past": 0} in sets or len(sets) == 8


def test_no_axes_are_one_set_of_no_sizes() -> None:
    assert corner_sizes([]) == [{}]
