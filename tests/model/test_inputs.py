from __future__ import annotations

import numpy as np
import pytest
import torch

from stateful_pipeline.errors import ContractError
from stateful_pipeline.model.inputs import Input, InputPlan, Recorded, Resampled, Uniform


def plan(shape, sampler, dtype=torch.float32) -> InputPlan:
    return InputPlan([Input("x", dtype, shape, sampler)])


def test_the_same_seed_and_step_give_the_same_values_and_others_do_not() -> None:
    made = plan(("batch", 3), Uniform())
    x = made.step({"batch": 2}, seed=1, step=5)["x"]
    assert torch.equal(x, made.step({"batch": 2}, 1, 5)["x"])
    assert not torch.equal(x, made.step({"batch": 2}, 1, 6)["x"])
    assert not torch.equal(x, made.step({"batch": 2}, 2, 5)["x"])


def test_inputs_of_one_shape_differ_by_name() -> None:
    made = InputPlan([Input(n, torch.float32, (4,), Uniform()) for n in ("a", "b")]).step({}, 0, 0)
    assert not torch.equal(made["a"], made["b"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
def test_ranges_are_kept(dtype: torch.dtype) -> None:
    x = plan((1000,), Uniform(2, 5), dtype).step({}, 0, 0)["x"]
    assert x.dtype == dtype
    assert x.min() >= 2
    assert x.max() <= (5 if dtype.is_floating_point else 4)
    assert len(x.unique()) > 2


def test_a_low_bound_alone_is_kept() -> None:
    x = plan((1000,), Uniform(low=3.0)).step({}, 0, 0)["x"]
    assert x.min() >= 3.0


def test_a_high_bound_alone_is_kept() -> None:
    x = plan((1000,), Uniform(high=-2.0)).step({}, 0, 0)["x"]
    assert x.max() <= -2.0


def test_booleans_are_both() -> None:
    assert set(plan((50,), Uniform(), torch.bool).step({}, 0, 0)["x"].tolist()) == {True, False}


def test_an_example_comes_first_and_its_values_after() -> None:
    example = torch.tensor([[3, 7, 9]])
    made = plan(("batch", 3), Resampled(example), torch.int64)
    assert torch.equal(made.step({"batch": 1}, 0, 0)["x"], example)
    later = made.step({"batch": 4}, 0, 3)["x"]
    assert later.shape == (4, 3)
    assert set(later.flatten().tolist()) <= {3, 7, 9}


def series(length: int = 10) -> np.ndarray:
    """A recording of one sample a step: value n at step n."""
    return np.arange(float(length)).reshape(length, 1, 1, 1)


def test_time_chunks_of_a_recording_continue_across_steps_and_wrap() -> None:
    made = plan(("batch", "time", 1), Recorded(series(), ("batch", "time", 1)))
    sizes = {"batch": 1, "time": 3}
    read = torch.cat([made.step(sizes, 0, n)["x"].flatten() for n in range(5)])
    start = int(read[0])
    assert read.tolist() == [float((start + n) % 10) for n in range(15)]


def test_rows_of_a_recording_differ() -> None:
    made = plan(("batch", "time", 1), Recorded(series(), ("batch", "time", 1)))
    x = made.step({"batch": 5, "time": 2}, 0, 0)["x"][..., 0]
    assert len({tuple(row.tolist()) for row in x}) == 5
    assert torch.equal((x[:, 1] - x[:, 0]) % 10, torch.ones(5))


def test_a_recording_without_time_gives_a_sample_a_step() -> None:
    made = plan(("batch", 2), Recorded(np.arange(12.0).reshape(6, 1, 2), ("batch", 2)))
    first, second = (made.step({"batch": 3}, 4, n)["x"] for n in range(2))
    assert torch.equal((second - first) % 12, torch.full((3, 2), 2.0))


def test_a_recording_that_has_the_size_is_played_as_it_is() -> None:
    array = np.arange(24.0).reshape(4, 3, 2)
    made = plan((3, 2), Recorded(array, (3, 2)))
    x = made.step({}, 0, 1)["x"]
    assert any(np.array_equal(x.numpy(), step) for step in array)


@pytest.mark.parametrize(
    ("array", "shape", "said"),
    [
        (np.zeros((5, 3)), ("batch", 3), "needs 3"),
        (np.zeros((5, 1, 4)), ("batch", 3), "size 4 where the input has 3"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(array, shape, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Recorded(array, shape)


def test_recorded_rows_are_used_again_later_where_more_are_wanted() -> None:
    array = np.arange(30.0).reshape(10, 3, 1)  # row r at step n holds 3 n + r
    made = plan(("batch", 1), Recorded(array, ("batch", 1)))
    x = made.step({"batch": 6}, 0, 0)["x"].flatten()
    assert (x % 3).tolist() == [0, 1, 2, 0, 1, 2]
    assert len(set(x.tolist())) == 6


def test_recorded_chunks_are_one_stream_for_chunks_of_any_size() -> None:
    array = np.arange(12.0).reshape(3, 1, 4, 1)  # three steps of four samples
    made = plan(("batch", "time", 1), Recorded(array, ("batch", "time", 1)))
    read = torch.cat([made.step({"batch": 1, "time": 5}, 0, n)["x"].flatten() for n in range(3)])
    start = int(read[0])
    assert start % 4 == 0
    assert read.tolist() == [float((start + n) % 12) for n in range(15)]


def test_a_recording_of_the_sizes_wanted_is_played_step_by_step() -> None:
    array = np.arange(24.0).reshape(3, 2, 4, 1)
    made = plan(("batch", "time", 1), Recorded(array, ("batch", "time", 1)))
    played = [made.step({"batch": 2, "time": 4}, 0, n)["x"].numpy() for n in range(3)]
    first = next(n for n in range(3) if np.array_equal(array[n], played[0]))
    for n in range(3):
        assert np.array_equal(played[n], array[(first + n) % 3])
