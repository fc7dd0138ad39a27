"""Names for the values that lowering adds, unlike any other in the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir


class Names:
    """The names that are taken in one model, its subgraphs included."""

    def __init__(self, model: ir.Model) -> None:
        self._taken = {value.name for graph in model.graphs() for value in _values(graph)}

    def fresh(self, wish: str) -> str:
        """Return ``wish``, or with a number where a value has that name; it is taken then."""
        numbered = (f"{wish}_{number}" for number in itertools.count(2))
        name = next(n for n in itertools.chain([wish], numbered) if n not in self._taken)
        self._taken.add(name)
        return name


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
