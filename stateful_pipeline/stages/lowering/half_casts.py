"""Writes a plan of half precision into a model, with a cast only where two dtypes meet.

Each float32 value gets one dtype, that of what makes it, and each reader wants one.  Where they
differ, the value is cast once, right behind what makes it, for all who want it.  Constants are
stored as they are wanted; nothing is cast down to be cast up again.
"""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.stages.lowering.half_operators import constant_tensor, is_constant, takes_any
from stateful_pipeline.stages.lowering.half_plan import HalfPlan
from stateful_pipeline.stages.lowering.half_ports import Port
from stateful_pipeline.stages.lowering.half_weights import Weights
from stateful_pipeline.stages.lowering.names import Names

_FLOAT = ir.DataType.FLOAT
_NOTHING: frozenset[int] = frozenset()


class HalfCasts:
    """Writes a plan into a model.

    Args:
        model: The model to change.
        half: float16 or bfloat16.
        plan: What is computed in half.
        weights: Makes constants in half.
    """

    def __init__(
        self, model: ir.Model, half: ir.DataType, plan: HalfPlan, weights: Weights
    ) -> None:
        self._model, self._half = model, half
        self._plan, self._weights = plan, weights
        self._names = Names(model)
        self._converted: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._made: set[ir.Value] = {
            node.outputs[index] for node, indices in plan.makes.items() for index in indices
        }
        self._wanted: set[tuple[ir.Graph, int]] = set()
        self._reads: dict[ir.Node, set[int]] = {
            node: set(indices) for node, indices in plan.reads.items()
        }

    def write(self, inputs: frozenset[str], outputs: frozenset[str]) -> None:
        """Change the model; graph ``inputs`` and ``outputs`` of these names become half, too."""
        graph = self._model.graph
        self._made |= {value for value in graph.inputs if value.name in inputs}
        self._wanted |= {
            (graph, index) for index, value in enumerate(graph.outputs) if value.name in outputs
        }
        self._settle_ports()
        for node in self._plan.reads:
            if node.op_type == "Attention" and "softmax_precision" not in node.attributes:
                node.attributes["softmax_precision"] = ir.AttrInt64("softmax_precision", _FLOAT)
        values = [value for value in _values(self._model) if value.dtype == _FLOAT]
        for value in self._made:
            value.type = ir.TensorType(self._half)
        for value in values:
            self._convert_uses(value)
        for body in list(self._model.graphs()):
            self._convert_outputs(body)
        for value in values:
            self._forget(value)

    def _settle_ports(self) -> None:
        """Let ports be half where both sides are; what a loop carries stays float32."""
        left = [port for port in self._plan.ports if not port.carried]
        for port in left:
            self._switch(port, on=True)
        while wrong := [port for port in left if not self._is_half(port)]:
            for port in wrong:
                self._switch(port, on=False)
                left.remove(port)

    def _is_half(self, port: Port) -> bool:
        given = all(value in self._made or is_constant(value) for value in port.sources())
        return given and all(self._is_read_in_half(value) for value in port.values)

    def _is_read_in_half(self, value: ir.Value) -> bool:
        uses = [
            use.idx in self._reads.get(use.node, ())
            for use in value.uses()
            if not takes_any(use.node)
        ]
        wanted = [
            (graph, index) in self._wanted
            for graph in self._model.graphs()
            for index, output in enumerate(graph.outputs)
            if output is value
        ]
        return bool(uses or wanted) and all(uses) and all(wanted)

    def _switch(self, port: Port, *, on: bool) -> None:
        reads = self._reads.setdefault(port.node, set())
        if on:
            self._made.update(port.values)
            self._wanted.update(port.results)
            reads.update(port.operands)
        else:
            self._made.difference_update(port.values)
            self._wanted.difference_update(port.results)
            reads.difference_update(port.operands)

    def _convert_uses(self, value: ir.Value) -> None:
        """Give each reader of ``value`` the dtype that it wants."""
        for use in tuple(value.uses()):
            in_half = use.idx in self._reads.get(use.node, ())
            if in_half != (value in self._made) and not takes_any(use.node):
                new = self._as(value, self._half if in_half else _FLOAT)
                use.node.replace_input_with(use.idx, new)

    def _convert_outputs(self, graph: ir.Graph) -> None:
        for index, value in enumerate(graph.outputs):
            in_half = (graph, index) in self._wanted
            before = self._half if value in self._made else _FLOAT
            if value.dtype == before and in_half != (value in self._made):
                new = self._as(value, self._half if in_half else _FLOAT)
                graph.outputs[index] = new
                if graph is self._model.graph and not value.is_graph_input():
                    name = value.name
                    value.name = self._names.fresh(f"{name}_as_{before.name.lower()}")
                    new.name = name

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return ``value`` as ``dtype``, made once."""
        key = (value, dtype)
        if key not in self._converted:
            if dtype == self._half and is_constant(value):
                self._converted[key] = self._constant(value)
            else:
                self._converted[key] = self._cast(value, dtype)
        return self._converted[key]

    def _constant(self, value: ir.Value) -> ir.Value:
        """Store a constant in half, beside the one in float32."""
        tensor = self._weights.in_half(value)
        name = self._names.fresh(f"{value.name}_as_{self._half.name.lower()}")
        node = value.producer()
        if node is None:
            graph = value.graph
            assert isinstance(graph, ir.Graph)
            kind = ir.TensorType(self._half)
            new = ir.Value(name=name, shape=value.shape, type=kind, const_value=tensor)
            tensor.name = name
            graph.register_initializer(new)
            return new
        made = ir.node("Constant", [], {"value": tensor})
        _insert_after(value, made)
        return self._describe(made.outputs[0], value, name, self._half)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = self._names.fresh(f"{value.name}_as_{dtype.name.lower()}")
        cast = ir.node("Cast", [value], {"to": dtype}, name=f"cast_to_{name}")
        _insert_after(value, cast)
        return self._describe(cast.outputs[0], value, name, dtype)

    @staticmethod
    def _describe(new: ir.Value, like: ir.Value, name: str, dtype: ir.DataType) -> ir.Value:
        new.name, new.type = name, ir.TensorType(dtype)
        new.shape = None if like.shape is None else like.shape.copy()
        return new

    def _forget(self, value: ir.Value) -> None:
        """Remove a constant of float32 that is stored in half now; that takes its name."""
        new = self._converted.get((value, self._half))
        if new is None or not is_constant(value) or tuple(value.uses()) or value.is_graph_output():
            return
        if constant_tensor(new) is None:  # it is cast, for an output
            return
        name, node = value.name, value.producer()
        graph = value.graph if node is None else node.graph
        assert isinstance(graph, ir.Graph)
        assert name is not None
        if node is None:
            del graph.initializers[name]
            value.name = None
        else:
            graph.remove(node, safe=True)
        new.name = name


def _values(model: ir.Model) -> list[ir.Value]:
    """Return each value of ``model`` once."""
    found: dict[ir.Value, None] = {}
    for graph in model.graphs():
        found.update(dict.fromkeys(graph.inputs))
        found.update(dict.fromkeys(graph.initializers.values()))
        for node in graph:
            found.update(dict.fromkeys(node.outputs))
    return list(found)


def _insert_after(value: ir.Value, node: ir.Node) -> None:
    """Put ``node`` behind what makes ``value``, or at the start of its graph."""
    producer, graph = value.producer(), value.graph
    assert isinstance(graph, ir.Graph)
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
