"""What a front end makes of a module: a graph whose states are inputs and outputs.

There are two kinds: :class:`~stateful_pipeline.model.exported.ExportProgram`, captured with
``torch.export``, and :class:`~stateful_pipeline.model.script_program.ScriptProgram`, rewritten
from TorchScript.  Later stages see either as a :class:`Program`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import Place
from stateful_pipeline.model.reference import Tensors


@dataclass(frozen=True)
class Port:
    """An input or output of a graph: dtype, shape with named axes, and the line that makes it."""

    dtype: torch.dtype
    shape: Shape
    place: Place | None = None


class Program(Protocol):
    """A module as a graph with explicit states."""

    @property
    def frontend(self) -> str:
        """Which front end made it: ``export`` or ``torchscript``."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the module's inputs."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the module's outputs."""
        ...

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states."""
        ...

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        ...

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        ...

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether a value of the graph has one of ``dtypes``."""
        ...

    def code(self, title: str) -> str:
        """Return the graph as readable Python that begins with ``title`` as a comment."""
        ...

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the graph in torch: ``(outputs, new states)``, both by name."""
        ...

    @property
    def raises(self) -> tuple[Place, ...]:
        """Lines of the module that raise under a condition; the program goes on there."""
        ...

    def with_outputs(self, names: tuple[str, ...]) -> Program:
        """Return the same with other names of outputs."""
        ...


def identifier(name: str) -> str:
    """Return ``name`` as a Python identifier: dots become underscores."""
    return re.sub(r"\W", "_", name)


def dim_text(dim: Any, symbols: Mapping[str, str]) -> Dim:
    """Return a size of a traced tensor in the contract's form.

    Args:
        dim: A number, or a symbolic integer.
        symbols: The name of the axis that each symbol stands for.
    """
    if isinstance(dim, int):
        return dim
    expression = dim.node.expr
    if expression.is_Integer:
        return int(expression)
    import sympy

    names = {
        symbol: sympy.Symbol(symbols[str(symbol)], integer=True)
        for symbol in expression.free_symbols
        if str(symbol) in symbols
    }
    text: str = _dim_printer().doprint(expression.xreplace(names))
    return text


@functools.cache
def _dim_printer() -> Any:
    """Return a printer of sizes in the contract's form, which has ``%`` for a remainder."""
    from sympy.printing.str import StrPrinter

    class DimPrinter(StrPrinter):  # type: ignore[misc]  # sympy has no types
        def _print_remainder(self, expression: Any) -> str:
            a, b = (self._print(argument) for argument in expression.args)
            return f"(({a}) % ({b}))"

        _print_Mod = _print_PythonMod = _print_remainder  # noqa: N815 - sympy's names of methods

    return DimPrinter()
