"""Writes the casts: an operator gets wider operands, and its results are narrowed again."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.signatures import (
    ATTRIBUTES,
    Signature,
    input_parameters,
    output_parameters,
    schema_of,
)


class Casts:
    """Puts casts around nodes of one model.

    A value that several nodes of a graph want wider is cast once there.

    Args:
        model: The model to change.
    """

    def __init__(self, model: ir.Model) -> None:
        self._wide: dict[tuple[ir.Graph, ir.Value, ir.DataType], ir.Value] = {}
        self._names = Names(model)

    def wrap(self, node: ir.Node, signature: Signature, dtypes: Mapping[str, ir.DataType]) -> None:
        """Let ``node`` run with ``dtypes``; every other node sees what it saw before.

        Args:
            node: The node.
            signature: Its signature.
            dtypes: The dtype that each parameter of the signature should have.
        """
        schema = schema_of(signature.domain, signature.operator, signature.version)
        changed = {name: dtypes[name] for name, was in signature.dtypes if dtypes[name] != was}
        taken = input_parameters(node, schema)
        made = output_parameters(node, schema)
        for index, (name, value) in enumerate(zip(taken, node.inputs, strict=True)):
            if name in changed and value is not None:
                node.replace_input_with(index, self._widened(node, value, changed[name]))
        for name, value in zip(made, node.outputs, strict=True):
            if name in changed:
                if name not in taken:
                    _make(node, changed[name])
                self._narrow(node, value, changed[name])

    def _widened(self, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return ``value`` as ``dtype``, cast before ``node`` unless that was done before."""
        graph = node.graph
        assert isinstance(graph, ir.Graph)  # functions have been written out
        key = (graph, value, dtype)
        if key not in self._wide:
            cast = _cast(value, dtype, self._names.fresh(f"{value.name}_as_{dtype.name.lower()}"))
            graph.insert_before(node, cast)
            self._wide[key] = cast.outputs[0]
        return self._wide[key]

    def _narrow(self, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> None:
        """Let ``node`` make ``value`` as ``dtype``, and all its readers get it cast back."""
        assert value.dtype is not None
        assert value.name is not None
        graph, before, name = node.graph, value.dtype, value.name
        assert isinstance(graph, ir.Graph)
        value.name = self._names.fresh(f"{name}_in_{dtype.name.lower()}")
        value.type = ir.TensorType(dtype)
        cast = _cast(value, before, name)
        ir.convenience.replace_all_uses_with(value, cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        graph.insert_after(node, cast)


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": dtype}, name=f"cast_to_{name}")
    cast.outputs[0].name = name
    cast.outputs[0].type = ir.TensorType(dtype)
    cast.outputs[0].shape = None if value.shape is None else value.shape.copy()
    return cast


def _make(node: ir.Node, dtype: ir.DataType) -> None:
    """Let a node whose attributes say what it makes make ``dtype``."""
    name = ATTRIBUTES[node.op_type]
    if name == "value":
        array = node.attributes[name].as_tensor().numpy()
        node.attributes[name] = ir.AttrTensor(name, ir.tensor(array.astype(dtype.numpy())))
    else:
        node.attributes[name] = ir.AttrInt64(name, dtype.value)
