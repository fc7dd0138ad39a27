"""A module rewritten from TorchScript: a function whose states are inputs and outputs.

The function's parameters are the states, then the module's inputs, then the weights; its results
are the module's outputs, then the new states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model import jit
from stateful_pipeline.model.interpreted import interpretable
from stateful_pipeline.model.program import Port, identifier
from stateful_pipeline.model.reference import Tensors


@dataclass(frozen=True)
class ScriptProgram:
    """A TorchScript function with explicit states.

    Attributes:
        graph: A pure graph; see the module's docstring for the order of inputs and outputs.
        weights: The parameters, and the tensors that never change, by name.
        inputs: Names of the module's inputs.
        outputs: Names of the module's outputs.
        states: Names of the states.
        ports: The descriptions that :meth:`given` and :meth:`made` return.
        raises: Lines of the module that raise under a condition; the graph goes on there.
        later: Names of the states after a call, where they are others than before it.
    """

    frontend = "torchscript"

    graph: jit.Graph
    weights: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    ports: tuple[tuple[Port, ...], tuple[Port, ...]]
    raises: tuple[Place, ...] = ()
    later: tuple[str, ...] | None = None

    @property
    def states_after(self) -> tuple[str, ...]:
        """Names of the states after a call."""
        return self.states if self.later is None else self.later

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", jit.function_of(self.graph))
        object.__setattr__(self, "_runnable", jit.function_of(interpretable(self.graph)))

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        return list(self.ports[0])

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        return list(self.ports[1])

    def with_outputs(self, names: tuple[str, ...]) -> ScriptProgram:
        """Return the same with other names of outputs."""
        return replace(self, outputs=names)

    def with_graph(self, graph: jit.Graph, weights: Mapping[str, torch.Tensor]) -> ScriptProgram:
        """Return the same with another graph of the same signature, and other weights."""
        return replace(self, graph=graph, weights=weights)

    @property
    def function(self) -> Any:
        """The graph as a function that can be called, and exported."""
        return self._function  # type: ignore[attr-defined]  # made once, when the program is

    def arguments(self, states: Tensors, inputs: Tensors) -> list[torch.Tensor]:
        """Return the function's arguments in order: states, inputs, weights."""
        return [
            *(states[name] for name in self.states),
            *(inputs[name] for name in self.inputs),
            *self.weights.values(),
        ]

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the graph in torch: ``(outputs, new states)``, both by name.

        Raises:
            StageError: PyTorch's interpreter fails on it.
        """
        arguments = self.arguments(states, inputs)
        try:
            with torch.no_grad(), jit.plain_execution():
                results = list(self._runnable(*arguments))  # type: ignore[attr-defined]
        except RuntimeError as error:  # the interpreter fails on some valid nests of loops
            raise StageError(
                f"PyTorch's TorchScript interpreter cannot run the rewritten graph: {error}",
                stage="rewrite",
                hint="write the innermost loop with tensor operators, or export with torch.export",
            ) from error
        count = len(self.outputs)
        return (
            dict(zip(self.outputs, results[:count], strict=True)),
            dict(zip(self.states_after, results[count:], strict=True)),
        )

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether a value of the graph has one of ``dtypes``."""
        return any(
            value.type().kind() == "TensorType" and value.type().dtype() in dtypes
            for value in jit.values(self.graph)
        )

    def code(self, title: str) -> str:
        """Return the graph as TorchScript, with states named ``h_in`` and ``h_out``.

        Args:
            title: The first line, as a comment.
        """
        results = [*self.outputs, *(f"{name}_out" for name in self.states_after)]
        names = [identifier(name) for name in results]
        graph = self.graph.copy()
        held = jit.name_results(graph, names)
        *lines, _ = str(jit.function_of(graph).code).strip().splitlines()
        lines += [
            f"  {name} = {value}" for name, value in zip(names, held, strict=True) if name != value
        ]
        last = f"  return ({', '.join(names)}{',' if len(names) == 1 else ''})"
        return "\n".join([f"# {title}", *lines, last, ""])
