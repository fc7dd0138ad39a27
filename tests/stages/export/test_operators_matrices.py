"""Inverses, systems, factors and determinants of small matrices are those of eager.

Engines have no operators for them: they are written out for each size.
"""

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StageError

ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-12}
FLOATS = tuple(ROUNDING)


class Counting(nn.Module):
    """A module of one state, so that it is exported as any other is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))


def drawn(batch, size, dtype, seed=0):
    """Numbers between -1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(*batch, size, size, generator=generator, dtype=torch.float64) - 1).to(
        dtype
    )


def regular(x: torch.Tensor) -> torch.Tensor:
    """Matrices that have an inverse, of any ``x``; their diagonal is weak: rows are exchanged."""
    size = x.size(-1)
    turned = torch.eye(size, dtype=x.dtype).flip(0)
    return torch.tanh(x) + (size + 0.5) * turned


def definite(x: torch.Tensor) -> torch.Tensor:
    """Positive definite matrices, of any ``x``."""
    return x @ x.transpose(-1, -2) + 0.5 * torch.eye(x.size(-1), dtype=x.dtype)


class Solutions(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        shifted = x.flip(-1) + 1
        x = regular(x)
        return {
            "inverse": torch.linalg.inv(x),
            "inverse_method": x.inverse(),
            "inverse_and_info": torch.linalg.inv_ex(x)[0],
            "info": torch.linalg.inv_ex(x)[1],
            "solution": torch.linalg.solve(x, shifted),
            "solution_right": torch.linalg.solve(x, shifted, left=False),
            "solution_column": torch.linalg.solve(x, shifted[..., :1]),
            "determinant": torch.linalg.det(x),
            "sign": torch.linalg.slogdet(x)[0],
            "logarithm": torch.linalg.slogdet(x)[1],
            "power": torch.linalg.matrix_power(x / 3, 5),
            "power_none": torch.linalg.matrix_power(x, 0),
            "power_of_inverse": torch.linalg.matrix_power(x, -3),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 6])
def test_systems_of_small_matrices_are_solved(size, dtype, same_as_eager):
    given = [(drawn((), size, dtype, seed),) for seed in range(1, 5)]
    rounding = ROUNDING[dtype]
    same_as_eager(Solutions(), (drawn((), size, dtype),), given, rtol=rounding, atol=rounding)


def test_systems_of_any_number_of_matrices_are_solved(same_as_eager):
    given = [(drawn((batch, 2), 4, torch.float64, batch),) for batch in (1, 2, 5)]
    same_as_eager(
        Solutions(),
        (drawn((3, 2), 4, torch.float64),),
        given,
        axes={"x": {0: "n"}},
        rtol=1e-9,
        atol=1e-9,
    )


class Right(Counting):
    """What is on the right of a system: vectors, and fewer matrices than on the left, or more."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        x = regular(x)
        return {
            "vector": torch.linalg.solve(x, y[0, :, 0]),
            "vectors": torch.linalg.solve(x, y[:, :, 0]),
            "one_matrix": torch.linalg.solve(x, y[0]),
            "one_system": torch.linalg.solve(x[0], y),
            "one_system_right": torch.linalg.solve(x[0], y.mT, left=False),
            "one_vector": torch.linalg.solve(x[0], y[0, :, 0]),
            "triangle_of_one": torch.linalg.solve_triangular(x[0].tril(), y, upper=False),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_on_the_right_of_a_system_is_broadcast(dtype, same_as_eager):
    def draw(seed):
        return drawn((3,), 4, dtype, seed), drawn((3,), 4, dtype, seed + 10)[..., :2]

    rounding = ROUNDING[dtype]
    given = [draw(seed) for seed in range(1, 4)]
    same_as_eager(Right(), draw(0), given, rtol=rounding, atol=rounding)


class Triangles(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        other = x.flip(-1)
        x = definite(x)
        lower = torch.linalg.cholesky(x)
        upper = torch.linalg.cholesky(x, upper=True)
        return {
            "lower": lower,
            "upper": upper,
            "old": torch.cholesky(x),
            "factor": torch.linalg.cholesky_ex(x)[0],
            "info": torch.linalg.cholesky_ex(x)[1],
            "solved": torch.cholesky_solve(other, lower),
            "solved_upper": torch.cholesky_solve(other, upper, upper=True),
            "inverse": torch.cholesky_inverse(lower),
            "inverse_upper": torch.cholesky_inverse(upper, upper=True),
            "below": torch.linalg.solve_triangular(lower, other, upper=False),
            "above": torch.linalg.solve_triangular(upper, other, upper=True),
            "right": torch.linalg.solve_triangular(lower, other, upper=False, left=False),
            "unit": torch.linalg.solve_triangular(
                upper * 0.1, other, upper=True, unitriangular=True
            ),
            "deprecated": torch.triangular_solve(other, upper)[0],
            "transposed": torch.triangular_solve(other, upper, transpose=True)[0],
        }


@pytest.mark.filterwarnings("ignore:torch.(cholesky|triangular_solve) is deprecated")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_factors_and_triangular_systems_are_those_of_eager(size, dtype, same_as_eager):
    rounding = ROUNDING[dtype]
    given = [(drawn((2,), size, dtype, seed),) for seed in range(1, 4)]
    same_as_eager(Triangles(), (drawn((2,), size, dtype),), given, rtol=rounding, atol=rounding)


def test_matrices_that_have_no_inverse_or_factor_are_named_in_info(same_as_eager):
    class Info(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            inverse, factor = torch.linalg.inv_ex(x)[1], torch.linalg.cholesky_ex(x)[1]
            return {"inverse": inverse, "factor": factor, "determinant": torch.det(x)}

    rows = [
        [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[2.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 3.0]],
        [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]],
    ]
    odd = torch.tensor(rows)
    same_as_eager(Info(), (drawn((4,), 3, torch.float32),), [(odd,), (odd[[3, 0, 2, 1]],)])


def test_the_transpose_of_matrices_is_that_of_eager(same_as_eager):
    class Turned(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {"turned": x.mT}

    given = [(torch.randn(n, 2, 3),) for n in (1, 4)]
    same_as_eager(Turned(), (torch.randn(2, 2, 3),), given, axes={"x": {0: "n"}})


class Distances(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "euclidean": torch.cdist(x, y),
            "cities": torch.cdist(x, y, p=1.0),
            "largest": torch.cdist(x, y, p=float("inf")),
            "differing": torch.cdist(x, y, p=0.0),
            "other": torch.cdist(x, y, p=2.5),
            "batches": torch.cdist(torch.stack([x, x + 1]), y),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_distances_are_those_of_eager_also_from_itself(dtype, same_as_eager):
    def draw(n, m):
        generator = torch.Generator().manual_seed(n + m)
        x, y = (torch.randn(k, 3, generator=generator, dtype=torch.float64) for k in (n, m))
        y[0] = x[0]
        return x.to(dtype), y.to(dtype)

    rounding = ROUNDING[dtype]
    axes, given = {"x": {0: "n"}, "y": {0: "m"}}, [draw(1, 1), draw(2, 7), draw(6, 1)]
    if same_as_eager.frontend == "export":  # it chooses a kernel by the number of vectors
        axes, given = None, [draw(4, 3)]
    same_as_eager(Distances(), draw(4, 3), given, axes=axes, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_a_matrix_that_is_too_large_or_of_any_size_is_refused(frontend, tmp_path):
    class Inverse(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return torch.linalg.inv(definite(x))

    path = tmp_path / "m.onnx"
    with pytest.raises(StageError, match="17 rows: only up to 16") as caught:
        sp.export_onnx(Inverse(), (drawn((), 17, torch.float32),), path, frontend=frontend)
    assert caught.value.place is None or caught.value.place.file == __file__
    axes = {"x": {0: "n", 1: "n"}}
    with pytest.raises(StageError, match="size of the matrix varies"):
        sp.export_onnx(
            Inverse(), (drawn((), 3, torch.float32),), path, frontend=frontend, dynamic_axes=axes
        )
