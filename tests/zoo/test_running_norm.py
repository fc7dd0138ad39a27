"""The running normaliser: the statistics of the whole history, also where they are hard to get."""

import numpy as np
import pytest
import torch

from stateful_pipeline.zoo.running_norm import RunningNorm

COUNT = {"count": {"shape": ["batch"]}}


def small() -> RunningNorm:
    return RunningNorm(3).eval()


def wide(batch: int) -> RunningNorm:
    model = small()
    for name, value in list(model.named_buffers()):
        setattr(model, name, value.expand(batch, *value.shape[1:]).clone())
    return model


@torch.inference_mode()
def test_each_output_is_normalised_by_all_observations_so_far() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(5.0, 2.0, (50, 4, 3)).astype(np.float32))
    model = wide(4)
    for n in range(1, 51):
        got = model(x[n - 1]).numpy()
        seen = x[:n].numpy().astype(np.float64)
        std = np.sqrt(seen.var(axis=0) + model.eps)
        np.testing.assert_allclose(got, (seen[-1] - seen.mean(axis=0)) / std, rtol=1e-4, atol=1e-4)
    assert model.count.tolist() == [50] * 4
    np.testing.assert_allclose(model.mean, seen.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(model.m2 / 50, seen.var(axis=0), rtol=1e-5)


@torch.inference_mode()
def test_variance_survives_an_offset_that_the_difference_of_squares_does_not() -> None:
    x = np.random.default_rng(0).normal(10_000.0, 1.0, (2000, 1, 3)).astype(np.float32)
    model = small()
    for observation in torch.from_numpy(x):
        model(observation)
    true = x.astype(np.float64).var(axis=0)
    square = np.add.accumulate(x**2)[-1] / np.float32(2000)
    naive = square - (np.add.accumulate(x)[-1] / np.float32(2000)) ** 2
    assert (np.abs(naive - true) > 0.5).all()
    np.testing.assert_allclose(model.m2 / 2000, true, rtol=2e-2)


@torch.inference_mode()
def test_first_observation_of_a_stream_and_a_constant_one_come_out_as_0() -> None:
    model = small()
    for _ in range(3):
        assert model(torch.full((1, 3), 7.5)).tolist() == [[0.0, 0.0, 0.0]]


@torch.inference_mode()
def test_outliers_are_clipped() -> None:
    model = small()
    for step in range(500):
        model(torch.full((1, 3), float(step % 2)))
    assert model(torch.tensor([[1e6, -1e6, 0.5]]))[0, :2].tolist() == [10.0, -10.0]


@torch.inference_mode()
def test_reset_forgets_what_was_observed() -> None:
    model = small()
    model(torch.randn(1, 3))
    model.reset_states()
    fresh = small()
    for x in torch.randn(3, 1, 3):
        assert torch.equal(model(x), fresh(x))


def test_scripted_normaliser_equals_eager(script_equals_eager) -> None:
    script_equals_eager(small, torch.randn(6, 1, 3).unbind())


def test_exported_normaliser_has_float_and_integer_states_and_equals_eager(
    runner_equals_eager,
) -> None:
    steps = (20 + torch.rand(12, 4, 3)).unbind()
    runner = runner_equals_eager(small, steps, {"x": {0: "batch"}}, states=COUNT)
    assert {state.name: (state.shape, state.dtype) for state in runner.contract.states} == {
        "count": (("batch",), "int64"),
        "mean": (("batch", 3), "float32"),
        "m2": (("batch", 3), "float32"),
    }


def test_one_stream_of_an_exported_batch_is_reset_alone(exported) -> None:
    x = np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32)
    runner = exported(small(), torch.from_numpy(x[0]), {"x": {0: "batch"}}, states=COUNT)
    model, fresh = wide(4), small()
    for step, observation in enumerate(x):
        if step == 3:
            runner.reset(rows=[2])
        got = runner.run({"x": observation})["output"]
        with torch.inference_mode():
            expected = model(torch.from_numpy(observation)).numpy()
            if step >= 3:
                expected[2] = fresh(torch.from_numpy(observation[2:3]))[0].numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert runner.state["count"].tolist() == [6, 6, 3, 6]


@pytest.mark.parametrize("eps", [1e-5, 1e-8])
def test_exported_normaliser_keeps_a_small_eps(runner_equals_eager, eps) -> None:
    runner_equals_eager(
        lambda: RunningNorm(3, eps=eps).eval(),
        torch.full((4, 2, 3), 0.25).unbind(),
        {"x": {0: "batch"}},
        states=COUNT,
    )
