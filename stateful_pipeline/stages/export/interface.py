"""Gives the ONNX graph the interface that the contract describes, repeatably.

The exporter writes the traced source lines, with absolute paths, into node metadata, labels
dimensions as it inferred them, and now and then computes an output in another dtype than the
program.  All of it is replaced here: metadata goes, and the names, dtypes and dimensions of inputs
and outputs are those of the captured program, in the words of the contract.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from stateful_pipeline.dimensions import Shape


def order_inputs(model: ir.Model, states: int) -> None:
    """Put the user's inputs before the states, as the outputs are."""
    graph_inputs = model.graph.inputs
    ordered = [*graph_inputs[states:], *graph_inputs[:states]]
    graph_inputs.clear()
    graph_inputs.extend(ordered)


def cast_outputs(model: ir.Model, dtypes: Sequence[str]) -> None:
    """Append a ``Cast`` to each graph output that has another dtype than the one in ``dtypes``."""
    graph = model.graph
    for index, (value, name) in enumerate(zip(list(graph.outputs), dtypes, strict=True)):
        wanted = ir.DataType[onnx_dtype(name)]
        if value.dtype == wanted:
            continue
        node = ir.node("Cast", [value], {"to": wanted})
        node.outputs[0].shape, node.outputs[0].type = value.shape, ir.TensorType(wanted)
        graph.append(node)
        graph.outputs[index] = node.outputs[0]


def onnx_dtype(name: str) -> str:
    """Return ONNX's name of the dtype that the contract calls ``name``."""
    return {"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())


def clean(model: ir.Model) -> None:
    """Remove everything that depends on the machine, the folder or the time."""
    model.metadata_props.clear()
    model.doc_string = None
    model.producer_name, model.producer_version = "stateful-pipeline", None
    for graph in model.graphs():
        graph.metadata_props.clear()
        graph.doc_string = None
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.metadata_props.clear()
            value.doc_string = None


def rename_io(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give graph inputs and outputs their names; whatever else had such a name gets another.

    An output that is also an input, or that comes twice, gets an ``Identity`` of its own.
    """
    graph = model.graph
    for every in model.graphs():
        separate_outputs(every)
    _part_names(model)
    outside = [*graph.inputs, *graph.outputs]
    fixed = {id(value) for value in outside}
    inside = [value for value in _values(model) if id(value) not in fixed]
    taken = {value.name for value in inside} | {*inputs, *outputs}
    for value in inside:
        if value.name is not None and value.name in (*inputs, *outputs):
            value.name = next(n for n in _other_names(value.name) if n not in taken)
            taken.add(value.name)
    for value, temporary in zip(outside, _other_names("io"), strict=False):
        value.name = temporary  # so that two of them can trade names
    for value, name in zip(outside, (*inputs, *outputs), strict=True):
        value.name = name


def _other_names(name: str) -> Iterator[str]:
    return (f"{name}_value_{number}" for number in itertools.count(1))


def separate_outputs(graph: ir.Graph) -> None:
    """Let each output of ``graph`` be a result of a node of its own.

    A branch or a body that hands on one value twice, or one from outside, is valid, but ONNX
    Runtime then reads memory that it has given away.
    """
    taken = {id(value) for value in graph.inputs} | {id(v) for v in graph.initializers.values()}
    for index, value in enumerate(list(graph.outputs)):
        producer = value.producer()
        if id(value) in taken or producer is None or producer.graph is not graph:
            node = ir.node("Identity", [value])
            node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        taken.add(id(value))


def _part_names(model: ir.Model) -> None:
    """Let no two values have the same name, also not in different graphs of the model."""
    weights = [v for graph in model.graphs() for v in graph.initializers.values()]
    every = {id(value): value for value in (*weights, *_values(model))}.values()
    taken = {value.name for value in every}
    seen: set[str | None] = {None}
    for value in every:
        if value.name in seen:
            value.name = next(n for n in _other_names(value.name or "unnamed") if n not in taken)
            taken.add(value.name)
        seen.add(value.name)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _loop_counters(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the number of the iteration and the condition that the body of each ``Loop`` gets."""
    for graph in model.graphs():
        for node in graph:
            if node.op_type == "Loop":
                yield from node.attributes["body"].as_graph().inputs[:2]


def declare_shapes(model: ir.Model, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
    """Declare the dimensions of inputs and outputs, and drop inferred ones in between.

    What the exporter inferred in between can be wrong under a dynamic axis (a recurrent layer's
    output keeps the example's number of time steps), and runtimes infer it anyway.
    """
    graph = model.graph
    kept = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for value in _loop_counters(model):
        value.shape = ir.Shape([])  # a runtime insists
        kept.add(id(value))
    for value in _values(model):
        if id(value) not in kept and value.const_value is None:
            value.shape = None
    for value, shape in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.shape = ir.Shape(list(shape))
