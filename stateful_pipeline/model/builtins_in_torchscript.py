"""Python's functions that TorchScript has for some types alone, written in what it has.

Each is compiled once for every signature that is declared here, and a call takes the first that
fits.
"""

# ruff: noqa: UP006, UP035, F811, D103, RUF046 - TorchScript reads these types, and each signature in turn
# mypy: disable-error-code="no-redef,no-untyped-def,empty-body,misc,no-untyped-call"

from typing import List

import torch


@torch.jit._overload
def python_sum(items: List[torch.Tensor]) -> torch.Tensor:
    pass


@torch.jit._overload
def python_sum(items: List[float]) -> float:
    pass


@torch.jit._overload
def python_sum(items: List[int]) -> int:
    pass


@torch.jit._overload
def python_sum(items: List[bool]) -> int:
    pass


def python_sum(items):
    """Return the sum of what is in a list, from left to right."""
    if isinstance(items, List[torch.Tensor]):
        total = 0 + items[0]
        for index in range(1, len(items)):
            total = total + items[index]
        return total
    else:
        return sum(items)


@torch.jit._overload
def python_round(value: torch.Tensor) -> torch.Tensor:
    pass


@torch.jit._overload
def python_round(value: float) -> int:
    pass


@torch.jit._overload
def python_round(value: int) -> int:
    pass


def python_round(value):
    """Return the nearest integer, the even one of two: an int of a number."""
    if isinstance(value, torch.Tensor):
        return torch.round(value)
    else:
        return int(round(value))
