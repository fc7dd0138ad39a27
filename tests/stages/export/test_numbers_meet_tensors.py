"""A number of Python meets a tensor in the dtype that PyTorch says, in the ONNX model too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn


def number(value: float) -> Tensor:
    """Return a float as it is: TorchScript's torch.tensor rounds it to float32 on the way."""
    return torch.full((), value, dtype=torch.float64)


class Readings(nn.Module):
    """Reads numbers from tensors of all dtypes, with and without dimensions."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor(3).to(dtype))
        self.register_buffer("b", torch.full((1, 1), 7).to(dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.a = (self.a * 3 + x[0].to(self.a.dtype)) % 101
        whole = [int(self.a), int(self.b), int(self.a) * 16777217, int(bool(self.b))]
        parts = [number(float(self.a) / 3), number(float(self.b) * 0.1), number(float(self.a) ** 2)]
        return torch.tensor(whole), torch.stack(parts)


MEETINGS: dict[str, Callable[[Tensor, int, float], Tensor]] = {}


def meeting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    MEETINGS[function.__name__] = function
    return function


@meeting
def arithmetic(x: Tensor, k: int, f: float) -> Tensor:
    return x * f + k - f / (x * x + 1) + (f - x) * k + x % (abs(f) + 1) + x.abs() ** f + x**2 / k


@meeting
def arithmetic_of_integers(x: Tensor, k: int, f: float) -> Tensor:
    whole = torch.arange(3)
    return whole * f + whole / k + (whole + k) * f + (whole * k - k).to(x.dtype) + (whole > f)


@meeting
def arithmetic_without_dimensions(x: Tensor, k: int, f: float) -> Tensor:
    return x.sum() * f + k * x[0] - f + (x[1] > f).to(x.dtype) + x.sum() / k


@meeting
def comparisons(x: Tensor, k: int, f: float) -> Tensor:
    return torch.stack([x > f, x <= f, x * 0 + k == k, f < x, x != f, x >= k]).to(x.dtype)


@meeting
def bounds(x: Tensor, k: int, f: float) -> Tensor:
    return x.clamp(min=f) + x.clamp(max=k) + x.clamp(f - 1.0, f) + x.clip(min=f)


@meeting
def filled(x: Tensor, k: int, f: float) -> Tensor:
    by_number = torch.full([3], f, dtype=x.dtype) + torch.full([3], k) + torch.full_like(x, f)
    return (
        by_number + x.new_full([3], f) + torch.full([], f, dtype=x.dtype) + torch.ones(3).fill_(f)
    )


@meeting
def default_dtype(x: Tensor, k: int, f: float) -> Tensor:
    return torch.full([2], f) + torch.tensor(f) + torch.tensor([f, 1.0]) + torch.tensor([k, 1])


@meeting
def chosen(x: Tensor, k: int, f: float) -> Tensor:
    chosen = torch.where(x > 0, x, f) + torch.where(x > f, k, x) + torch.where(x > 0, f, 0.1)
    return chosen + x.masked_fill(x > f, f) + F.threshold(x, f, f)


@meeting
def weighted(x: Tensor, k: int, f: float) -> Tensor:
    return (x * x).add(x.abs() + 1, alpha=abs(f)) + x.abs().addcmul(x, x, value=abs(f))


@meeting
def padded(x: Tensor, k: int, f: float) -> Tensor:
    return F.pad(x, [1, 1], value=f)


@meeting
def ranges(x: Tensor, k: int, f: float) -> Tensor:
    return torch.arange(abs(k)).sum() + torch.arange(k, 2 * abs(k) + 1, 2).sum() + torch.zeros(2)


@meeting
def assigned(x: Tensor, k: int, f: float) -> Tensor:
    f = int(f * 64) / 64  # TorchScript rounds what is assigned to float32 on the way
    m = torch.zeros(4, dtype=x.dtype)
    m[k % 4] = f
    m[(k + 1) % 4] = k
    m[2:] += f
    return m


class Meeting(nn.Module):
    def __init__(self, meeting: Callable[[Tensor, int, float], Tensor]) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(-13))
        self.meeting = meeting

    def forward(self, x: Tensor) -> Tensor:
        self.n += 2
        return self.meeting(x, int(self.n), float(x.sum()) / 3)


DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_numbers_are_read_from_tensors_of_all_dtypes(dtype, follow) -> None:
    follow(Readings(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MEETINGS)
def test_a_number_meets_tensors_in_their_dtype(name, dtype, follow) -> None:
    rtol = 1e-5 if dtype == torch.float32 else 1e-14
    follow(Meeting(MEETINGS[name]), rtol=rtol, dtype=dtype)
