"""Operators that are decomposed when a program is made functional, since the exporter is wrong.

PyTorch's exporter writes the angle of a complex number as an arctangent of a quotient: -pi for pi
on the negative real axis.  ``torch.atan2`` has a form of this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def _angle(value: torch.Tensor) -> torch.Tensor:
    """``torch.angle``: of a real number, pi where it is negative."""
    if value.is_complex():
        return torch.atan2(value.imag, value.real)
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    return torch.where(value.isnan(), value, (value < 0).to(value.dtype) * math.pi)


DECOMPOSED: dict[Any, Callable[..., Any]] = {torch.ops.aten.angle.default: _angle}
"""What ``ExportedProgram.run_decompositions`` decomposes; everything else stays one operator."""
