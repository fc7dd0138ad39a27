import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")


def ones(*shape):
    return np.ones(shape, np.float32)


def test_the_first_step_binds_the_axes_of_the_states(accumulator):
    runner = StatefulRunner(accumulator)
    assert runner.sizes == {}
    runner.run({"x": ones(4, 5)})
    assert runner.sizes == {"batch": 4}
    with pytest.raises(ContractError, match=r"'batch' is 4 since .* and 2 now\n.*reset\(\)"):
        runner.run({"x": ones(2, 5)})
    assert runner.run({"x": ones(4, 5)})["total"].tolist() == [10] * 4
    runner.reset()
    assert runner.sizes == {}
    assert runner.run({"x": ones(2, 5)})["total"].tolist() == [5, 5]


def test_a_batch_of_one_is_bound_as_well(accumulator):
    runner = StatefulRunner(accumulator)
    runner.run({"x": ones(1, 5)})
    assert runner.sizes == {"batch": 1}
    with pytest.raises(ContractError, match="'batch' is 1 since the last reset"):
        runner.run({"x": ones(2, 5)})


def test_an_axis_that_no_state_has_changes_freely(accumulator):
    runner = StatefulRunner(accumulator)
    totals = [runner.run({"x": ones(2, time)})["total"][0] for time in (5, 1, 200, 5, 3)]
    assert totals == [5, 6, 206, 211, 214]


def test_batches_of_many_sizes_one_after_the_other(accumulator):
    runner = StatefulRunner(accumulator)
    for batch in (3, 1, 8, 2, 8, 3):
        runner.reset()
        for step in range(1, 4):
            assert runner.run({"x": ones(batch, 2)})["total"].tolist() == [2 * step] * batch


def test_shapes_that_were_right_before_a_reset_are_checked_again_after_it(accumulator):
    runner = StatefulRunner(accumulator)
    for _ in range(3):
        runner.run({"x": ones(4, 5)})
    runner.reset()
    runner.run({"x": ones(2, 5)})
    with pytest.raises(ContractError, match="'batch' is 2 since the last reset, and 4 now"):
        runner.run({"x": ones(4, 5)})


def test_a_failed_first_step_binds_nothing(accumulator):
    runner = StatefulRunner(accumulator)
    with pytest.raises(ContractError, match="out: 'total' has shape"):
        runner.run({"x": ones(4, 5)}, out={"total": ones(3)})
    assert runner.sizes == {}
    runner.run({"x": ones(2, 5)})
    assert runner.sizes == {"batch": 2}


def two_axes(axes=()):
    return Contract(
        (Value("x", "float32", ("batch", "time")), Value("mask", "float32", ("time",))),
        (Value("y", "float32", ("batch", "time")),),
        (State("h", "h_in", "h_out", "float32", ("batch", 1), Initial("zeros", (1, 1)), "h"),),
        axes=axes,
    )


TWO_AXES = """g (float[batch,time] x, float[time] mask, float[batch,1] h_in)
                => (float[batch,time] y, float[batch,1] h_out) <int64[1] axis = {1}> {
                  masked = Mul(x, mask)
                  y = Add(masked, h_in)
                  h_out = ReduceMax<keepdims=1>(y, axis)
                }"""


def test_inputs_must_agree_about_an_axis(save_model):
    runner = StatefulRunner(save_model(TWO_AXES, two_axes()))
    with pytest.raises(ContractError, match="'time' is 3 in input 'x' and 2 in input 'mask'"):
        runner.run({"x": ones(1, 3), "mask": ones(2)})


def test_sizes_outside_the_declared_range_are_refused(save_model):
    axes = (Axis("batch", 1, 4, 16), Axis("time", 2, None, None))
    runner = StatefulRunner(save_model(TWO_AXES, two_axes(axes)))
    runner.run({"x": ones(16, 1000), "mask": ones(1000)})
    with pytest.raises(ContractError, match="'time' is 1, the model was made for at least 2"):
        runner.run({"x": ones(16, 1), "mask": ones(1)})
    runner.reset()
    with pytest.raises(ContractError, match="'batch' is 17, the model was made for 1 to 16"):
        runner.run({"x": ones(17, 2), "mask": ones(2)})


def test_sizes_given_by_expressions(save_model):
    contract = Contract(
        (Value("x", "float32", ("time",)), Value("half", "float32", ("time//2",))),
        (Value("y", "float32", ("2*time",)),),
        (State("h", "h_in", "h_out", "float32", ("time//2",), Initial("zeros", (1,)), "h"),),
    )
    path = save_model(
        """g (float[time] x, float[k] half, float[k] h_in) => (float[m] y, float[k] h_out)
           { h_out = Add(half, h_in) y = Concat<axis=0>(x, x) }""",
        contract,
    )
    runner = StatefulRunner(path)
    assert runner.run({"x": ones(5), "half": ones(2)})["y"].shape == (10,)
    assert runner.state["h"].shape == (2,)
    assert runner.sizes == {"time": 5}
    with pytest.raises(ContractError, match="'time' is 5 since the last reset"):
        runner.run({"x": ones(6), "half": ones(3)})
    runner.reset()
    with pytest.raises(ContractError, match="size 2 along 'time//2', which is 3 for time = 6"):
        runner.run({"x": ones(6), "half": ones(2)})


def test_an_axis_that_only_a_state_has_is_bound_by_its_value(save_model):
    contract = Contract(
        (Value("x", "float32", (1,)),),
        (Value("y", "float32", ("slots",)),),
        (State("h", "h_in", "h_out", "float32", ("slots",), Initial("zeros", (3,)), "h"),),
    )
    path = save_model(
        """g (float[1] x, float[slots] h_in) => (float[slots] y, float[slots] h_out)
           { h_out = Add(h_in, x) y = Identity(h_out) }""",
        contract,
    )
    assert StatefulRunner(path).run({"x": ones(1)})["y"].tolist() == [1, 1, 1]
    longer = StatefulRunner(path, {"h": np.arange(5, dtype=np.float32)})
    assert longer.sizes == {"slots": 5}
    assert longer.run({"x": ones(1)})["y"].tolist() == [1, 2, 3, 4, 5]
