"""Python numbers that a module keeps from call to call, as tensors and back.

A graph takes and gives tensors.  A bool, an int or a float that changes is therefore carried as a
0-d tensor of the dtype that has all its values, and is a Python number again where the module reads
it, so that it promotes as one: ``x * self.gain`` keeps the dtype of ``x``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stateful_pipeline.errors import StateError

DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""The dtype in which each kind of number is carried, the narrower ones first."""
_SYMBOLIC: dict[type, type] = {torch.SymBool: bool, torch.SymInt: int, torch.SymFloat: float}
_ORDER = list(DTYPES.values())
_INT64 = torch.iinfo(torch.int64)


def carrying(numbers: Iterable[Any]) -> torch.dtype | None:
    """Return the dtype that can carry all of ``numbers``, or None if there is none.

    A counter that begins at 0 and is 0.5 later is a float from the start.
    """
    dtypes = [_dtype(number) for number in numbers]
    found = [dtype for dtype in dtypes if dtype is not None]
    return max(found, key=_ORDER.index) if found and len(found) == len(dtypes) else None


def _dtype(number: Any) -> torch.dtype | None:
    if type(number) is int and not _INT64.min <= number <= _INT64.max:
        return None
    return DTYPES.get(_SYMBOLIC.get(type(number), type(number)))


def as_tensor(number: Any, dtype: torch.dtype, path: str) -> torch.Tensor:
    """Return a number, which may be a symbolic one, as a 0-d tensor of ``dtype``.

    Args:
        number: What the module holds at ``path``.
        dtype: The dtype in which this state is carried.
        path: Where the module holds it.

    Raises:
        StateError: It is no number, or one that the dtype does not have.
    """
    own = _dtype(number)
    if own is None or _ORDER.index(own) > _ORDER.index(dtype):
        raise StateError(
            f"is carried as {dtype}, and a call leaves a {type(number).__name__} there: {number}",
            attribute=path,
            hint="let it be of one kind from the start: 0.0, not 0, for a float",
        )
    if type(number) in _SYMBOLIC:
        return torch.scalar_tensor(number, dtype=dtype)
    return torch.tensor(number, dtype=dtype)


def as_number(tensor: torch.Tensor) -> Any:
    """Return the Python number in a 0-d tensor; a symbolic one while a tracer is at work."""
    return tensor.item()
