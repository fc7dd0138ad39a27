"""A captured module: an ``ExportedProgram`` whose states are inputs and outputs.

The program's user inputs are the states, in order, then the module's inputs; its user outputs are
the module's outputs, then the new states.  :class:`ExportProgram` says which is which, and runs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import Place
from stateful_pipeline.model.locate import node_place
from stateful_pipeline.model.program import Port, dim_text, identifier
from stateful_pipeline.model.reference import Tensors

_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")

WRAPPED = "module."
"""Prefix of the module's parameters and buffers in the program's state dict."""


@dataclass(frozen=True)
class ExportProgram:
    """A captured module with explicit states.

    Attributes:
        exported: The program; see the module's docstring for the order of inputs and outputs.
        inputs: Names of the module's inputs.
        outputs: Names of the module's outputs.
        states: Names of the states.
        symbols: The name of the axis that each symbol of the program's shapes stands for.
    """

    frontend: ClassVar[str] = "export"
    raises: ClassVar[tuple[Place, ...]] = ()

    exported: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    symbols: Mapping[str, str]

    def with_exported(self, exported: ExportedProgram) -> ExportProgram:
        """Return the same with another graph of the same signature."""
        return replace(self, exported=exported)

    def with_outputs(self, names: tuple[str, ...]) -> ExportProgram:
        """Return the same with other names of outputs."""
        return replace(self, outputs=names)

    def shape(self, value: Any) -> Shape:
        """Return the shape of a graph node's ``meta['val']`` with the names of axes."""
        return tuple(self._dim(dim) for dim in value.shape)

    def _dim(self, dim: Any) -> Dim:
        return dim_text(dim, self.symbols)

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        return [self._port(node) for node in self.user_nodes()[0]]

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        return [self._port(node) for node in self.user_nodes()[1]]

    def _port(self, node: torch.fx.Node) -> Port:
        value = node.meta["val"]
        return Port(value.dtype, self.shape(value), node_place(node))

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether a value of the graph has one of ``dtypes``."""
        for node in self.exported.graph.nodes:
            value = node.meta.get("val")
            values = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(v, torch.Tensor) and v.dtype in dtypes for v in values):
                return True
        return False

    def user_nodes(self) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
        """Return the graph's nodes of user inputs and of user outputs, in order."""
        signature = self.exported.graph_signature
        nodes = {node.name: node for node in self.exported.graph.nodes}
        given = [nodes[name] for name in signature.user_inputs if isinstance(name, str)]
        made = [nodes[name] for name in signature.user_outputs if isinstance(name, str)]
        return given, made

    def code(self, title: str) -> str:
        """Return the graph as readable Python, with states named ``h_in`` and ``h_out``.

        Args:
            title: The first line, as a comment.
        """
        given, made = self.user_nodes()
        names = [f"{name}_in" for name in self.states] + list(self.inputs)
        renamed = {node.name: identifier(name) for node, name in zip(given, names, strict=True)}
        renamed |= {
            spec.arg.name: identifier(str(spec.target).removeprefix(WRAPPED))
            for spec in self.exported.graph_signature.input_specs
            if spec.target is not None
        }
        results = list(self.outputs) + [f"{name}_out" for name in self.states]
        graph = self.exported.graph_module.graph
        given_names = [node.name for node in given]
        lines = []
        for line in self.exported.graph_module.code.strip().splitlines():
            if line.startswith("def forward("):
                parameters = [
                    node.name for node in graph.find_nodes(op="placeholder") if node.users
                ]
                used = [name for name in parameters if name not in given_names] + list(given_names)
                line = f"def forward(self, {', '.join(used)}):"
            if line.lstrip().startswith("return"):
                lines += [
                    f"    {identifier(name)} = {renamed.get(node.name, node.name)}"
                    for name, node in zip(results, made, strict=True)
                ]
                line = f"    return ({', '.join(identifier(name) for name in results)},)"
            lines.append(_WORD.sub(lambda m: renamed.get(m.group(), m.group()), line))
        return "\n".join([f"# {title}", "import torch", "", *lines, ""])

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the graph in torch: ``(outputs, new states)``, both by name."""
        with torch.no_grad():
            return self.named(self.exported.graph_module(*self.arguments(states, inputs)))

    def arguments(self, states: Tensors, inputs: Tensors) -> list[Any]:
        """Return the graph's arguments in order: weights and constants, states, inputs."""
        given = iter(
            [states[name] for name in self.states] + [inputs[name] for name in self.inputs]
        )
        return [self._argument(spec, given) for spec in self.exported.graph_signature.input_specs]

    def named(self, results: Sequence[Any]) -> tuple[Tensors, Tensors]:
        """Return what the graph returned as ``(outputs, new states)``, both by name."""
        count = len(self.outputs)
        results = list(results)[len(results) - count - len(self.states) :]
        return (
            dict(zip(self.outputs, results[:count], strict=True)),
            dict(zip(self.states, results[count:], strict=True)),
        )

    def _argument(self, spec: Any, given: Any) -> Any:
        if spec.kind == InputKind.USER_INPUT:
            return next(given)
        target = spec.target
        if target in self.exported.state_dict:
            return self.exported.state_dict[target]
        return self.exported.constants[target]
