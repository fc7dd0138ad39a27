"""Reductions, scatters and differences of the TorchScript exporter are those of eager."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import stateful_pipeline as sp

FLOATS = (torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.int32, torch.uint8)
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}


class Counting(nn.Module):
    """A module of one state, so that it is exported as any other is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))


def matrices(rows, dtype, low, seed=0):
    """Two matrices of quarters, or of whole numbers, of 12 and 6 columns."""
    generator = torch.Generator().manual_seed(seed)
    low = max(low, 0) if dtype == torch.uint8 else low
    drawn = [torch.randint(low, 9, (rows, size), generator=generator) for size in (12, 6)]
    return tuple((m / 4 if dtype.is_floating_point else m).to(dtype) for m in drawn)


def assert_equal_to_eager(module, dtype, path, *, special=None):
    """Export with positive numbers and any number of rows; compare with eager on others.

    Args:
        module: Gives a dict of tensors for two matrices.
        dtype: That of the matrices.
        path: Where to export to.
        special: Numbers to put into the first row.
    """
    axes = {name: {0: "n"} for name in ("x", "y")}
    given = matrices(3, dtype, 1)
    sp.export_onnx(module.eval(), given, path, frontend="torchscript", dynamic_axes=axes)
    runner = sp.StatefulRunner(path)
    rounding = ROUNDING.get(dtype, 0)
    for rows in (1, 2, 5):
        x, y = matrices(rows, dtype, -9, seed=rows)
        if special is not None:
            x[0, : len(special)] = torch.tensor(special, dtype=dtype)
        got = runner.run({"x": x.numpy(), "y": y.numpy()})
        for name, value in module(x, y).items():
            expected = value.numpy()
            assert got[name].dtype == expected.dtype, name
            assert got[name].shape == expected.shape, name
            np.testing.assert_allclose(
                got[name], expected, rtol=rounding, atol=rounding, err_msg=f"{name} of {dtype}"
            )


class Truth(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        none = x[x == 99]
        return {
            "any": x.any(),
            "all": x.all(),
            "any_along": x.any(1),
            "all_along": x.all(0, keepdim=True),
            "any_bool": (x == 3).any(),
            "all_bool": (x < 3).all(-1),
            "any_of_none": none.any(),
            "all_of_none": none.all(),
            "any_of_one": x[0, 0].any(),
            "nonzero": torch.count_nonzero(x),
            "nonzero_along": torch.count_nonzero(x > 1, 1),
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_numbers_that_are_not_zero_are_true(number, dtype, tmp_path):
    assert_equal_to_eager(Truth(), dtype, tmp_path / "m.onnx", special=[number] * 12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_true(dtype, tmp_path):
    special = [float("nan")] * 12
    assert_equal_to_eager(Truth(), dtype, tmp_path / "m.onnx", special=special)


class Moments(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "std": x.std(),
            "var": x.var(unbiased=False),
            "var_along": x.var(1),
            "std_corrected": torch.std(x, dim=1, correction=0, keepdim=True),
            "var_mean": torch.var_mean(x, [0, 1])[0] * torch.var_mean(x)[1],
            "std_mean": torch.std_mean(x, 1)[0] * torch.std_mean(x, 1)[1],
            "norm": x.norm(),
            "norm_1": x.norm(1),
            "norm_3.5": x.norm(3.5),
            "norm_along": torch.norm(x, dim=1),
            "norm_kept": torch.norm(x, 2, [0, 1], True),
            "norm_infinite": torch.norm(x, p=float("inf"), dim=1),
            "norm_0": torch.norm(x, p=0.0, dim=1),
            "vector_norm": torch.linalg.vector_norm(x, 3),
            "vector_norm_along": torch.linalg.vector_norm(x, 2.0, dim=1, keepdim=True),
            "linalg_norm": torch.linalg.norm(x),
            "linalg_norm_along": torch.linalg.norm(x, 1, dim=1),
            "norm_of_none": x[x == 99].norm(),
            "norm_of_one": x[0, 0].norm(),
            "nansum": torch.nansum(x.log(), [1], True),
            "rms_norm": F.rms_norm(x, (12,)),
            "rms_norm_weighted": F.rms_norm(x, (12,), x[0], eps=1e-3),
            "layer_norm": F.layer_norm(x, (12,), eps=1e-3),
            "layer_norm_weighted": F.layer_norm(x, (12,), x[0], x[0], eps=1e-3),
            "group_norm": F.group_norm(x, 3, x[0], y[0].repeat(2), eps=1e-3),
            "instance_norm": F.instance_norm(x.reshape(x.size(0), 3, 4), eps=1e-3),
            "batch_norm": F.batch_norm(x, y[0].repeat(2), x[0].abs(), x[0], x[0], eps=1e-3),
            "addmm": torch.addmm(y, x[:, :6], y[:1].expand(6, 6), beta=0.1, alpha=0.3),
            "logsumexp": torch.logsumexp(x, 1, True),
            "smooth_l1": F.smooth_l1_loss(x[:, :6], y, beta=0.3),
            "huber": F.huber_loss(x[:, :6], y, reduction="sum", delta=0.3),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_moments_and_norms_keep_their_dtype(dtype, tmp_path):
    assert_equal_to_eager(Moments(), dtype, tmp_path / "m.onnx", special=[0.0, -0.0, 1.0, -8.25])


class Spread(Counting):
    """Sums along, differences, and matrices made of vectors."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "trace": torch.trace(x),
            "sum_down": x.cumsum(0),
            "sum_along": x.cumsum(-1),
            "sum_of_bool": (x > 2).cumsum(0),
            "diff": x.diff(),
            "diff_twice": x.diff(n=2),
            "diff_of_bool": (x > 2).diff(),
            "diff_more": x.diff(append=x[:, :2], prepend=x[:, :1]),
            "diagonal": torch.diag(x.reshape(-1)),
            "diagonal_right": torch.diag(x[:, 0], 1),
            "diagonal_left": torch.diag(x[:, 0], -2),
            "hstack": torch.hstack((x, y)),
            "hstack_vectors": torch.hstack((x.reshape(-1), y.reshape(-1))),
            "hstack_scalars": torch.hstack((x.sum(), y.sum())),
            "negative": -x,
            "bool_sum": (x > 1) + (x < 4),
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_differences_and_diagonals_are_those_of_eager(dtype, tmp_path):
    assert_equal_to_eager(Spread(), dtype, tmp_path / "m.onnx")


class Scatters(Counting):
    """Each index names a place twice, and has fewer columns than what is written."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        j = torch.tensor([0, 0, 2])
        i = j.expand(x.size(0), 3)
        same = y[:, :1].expand(-1, 6)
        return {
            "index_add": x.index_add(1, j, y[:, :3]),
            "index_add_alpha": x.index_add(1, j, y[:, :3], alpha=2),
            "index_add_down": x.index_add(0, torch.tensor([0, 0]), x[:1].expand(2, 12)),
            "index_fill": x.index_fill(1, j, 2),
            "index_fill_tensor": x.index_fill(1, j, x[0, 0]),
            "index_put": torch.index_put(x, (j[:2], j[:2]), y[0, :2], accumulate=True),
            "scatter": x.scatter(1, i, same),
            "scatter_number": x.scatter(1, i, 3),
            "scatter_add": x.scatter_add(1, i, y),
            "scatter_multiply": x.scatter(1, i, y, reduce="multiply"),
            "index_amax": x.index_reduce(1, j, y[:, :3], "amax"),
            "index_mean": x.index_reduce(1, j, y[:, :3], "mean"),
            "index_prod_alone": x.index_reduce(1, j, y[:, :3], "prod", include_self=False),
            "scatter_vector": x[:, 0].scatter(0, j[:1], y[:, 1]),
            "sum": x.scatter_reduce(1, i, y, "sum"),
            "sum_alone": x.scatter_reduce(1, i, y, "sum", include_self=False),
            "prod": x.scatter_reduce(1, i, y, "prod"),
            "prod_alone": x.scatter_reduce(1, i, y, "prod", include_self=False),
            "mean": x.scatter_reduce(1, i, y, "mean"),
            "mean_alone": x.scatter_reduce(1, i, y, "mean", include_self=False),
            "amax": x.scatter_reduce(1, i, y, "amax"),
            "amax_alone": x.scatter_reduce(1, i, y, "amax", include_self=False),
            "amin": x.scatter_reduce(1, i, y, "amin"),
            "amin_alone": x.scatter_reduce(1, i, y, "amin", include_self=False),
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatters_to_one_place_twice_are_those_of_eager(dtype, same_as_eager):
    axes = {name: {0: "n"} for name in ("x", "y")}
    given = [matrices(rows, dtype, -9, seed=rows) for rows in (1, 2, 5)]
    rounding = ROUNDING.get(dtype, 0)
    example = matrices(3, dtype, 1)
    same_as_eager(Scatters(), example, given, axes=axes, rtol=rounding, atol=rounding)
