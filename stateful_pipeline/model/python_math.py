"""Functions of ``math`` on Python floats that are symbols while a tracer is at work.

``math.sin(self.phase)`` asks for a float, and a symbol has none: the tracer refuses it.  Here such
a call becomes an operator of this project on a tensor without dimensions, which computes the very
number that ``math`` does when the graph runs, and whose result is a symbol again.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

NAMES = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp", "expm1", "log", "log1p", "log10", "sqrt", "pow", "fmod", "fabs"),
    *("degrees", "radians"),
)
"""The functions, of one float or of two."""
_OURS = "stateful_pipeline"
_LIBRARY: Any = torch.library.Library(_OURS, "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(name: str) -> Any:
    """Return the operator that stands for ``math``'s function ``name`` in graphs."""
    return getattr(getattr(torch.ops, _OURS), f"math_{name}").default


def _define(name: str) -> None:
    _LIBRARY.define(f"math_{name}(Tensor[] numbers) -> Tensor")
    _LIBRARY.impl(f"math_{name}", functools.partial(_computed, getattr(math, name)), "CPU")
    _LIBRARY.impl(f"math_{name}", lambda numbers: torch.empty_like(numbers[0]), "Meta")


def _computed(function: Callable[..., float], numbers: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor(function(*(n.item() for n in numbers)), dtype=torch.float64)


for _name in NAMES:
    _define(_name)


def _traced(name: str, function: Callable[..., float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*numbers: Any) -> Any:
        if not any(isinstance(number, torch.SymFloat) for number in numbers):
            return function(*numbers)
        given = [torch.scalar_tensor(number, dtype=torch.float64) for number in numbers]
        return operator(name)(given).item()

    return call


@contextmanager
def traced_math(module: nn.Module) -> Iterator[None]:
    """Let functions of ``math`` take symbols, those too that the code of ``module`` imported.

    They are looked for where the classes of its submodules are defined.
    """
    traced = {id(f): (_traced(name, f), f) for name in NAMES for f in [getattr(math, name)]}
    files = {type(inner).__module__ for inner in module.modules()} & sys.modules.keys()
    spaces = [vars(math), *(vars(sys.modules[name]) for name in sorted(files))]
    found = [(s, name, f) for s in spaces for name, f in list(s.items()) if id(f) in traced]
    try:
        for space, name, function in found:
            space[name] = traced[id(function)][0]
        yield
    finally:
        for space, name, function in found:
            space[name] = function
