"""Joins the ONNX models of a module's phases into one that takes the path of the phase that is on.

ONNX's ``If`` (operator set 1) runs the one of two subgraphs that a condition names, so a phase that
is over costs nothing but its place in the file.  Weights that are the same in several phases are
stored once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from stateful_pipeline.model.arrays import dtype_name
from stateful_pipeline.model.phased_program import PaddedProgram
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.stages.export.interface import onnx_dtype, separate_outputs


def choose(models: Sequence[ir.Model]) -> ir.Model:
    """Return a model that does what ``models[i]`` does when its first input is ``i``.

    Args:
        models: At least two, of the same interface; used up.
    """
    last = models[-1]
    inputs = list(last.graph.inputs)
    weights: dict[str, ir.Value] = {}
    branches = [_branch(model, inputs, weights) for model in models]
    main = ir.Graph(
        inputs, [], nodes=[], initializers=[], opset_imports=last.graph.opset_imports,
        name=last.graph.name,
    )  # fmt: skip
    rest, results = branches[-1], list(branches[-1].outputs)
    for index in reversed(range(len(branches) - 1)):
        number = ir.Value(
            name=f"phase_{index}", const_value=ir.tensor(np.array(index, dtype=np.int64))
        )
        weights[f"phase_{index}"] = number
        is_on = ir.node("Equal", [inputs[0], number])
        taken = ir.node(
            "If",
            is_on.outputs,
            {"then_branch": branches[index], "else_branch": rest},
            num_outputs=len(results),
        )
        for value, result in zip(taken.outputs, results, strict=True):
            value.shape, value.type = result.shape, result.type
        rest = ir.Graph([], list(taken.outputs), nodes=[is_on, taken], name=f"after_{index}")
    outputs, nodes = list(rest.outputs), list(rest)
    rest.outputs.clear()
    rest.remove(nodes)
    main.extend(nodes)
    main.outputs.extend(outputs)
    for name, value in weights.items():
        value.name = name
        main.register_initializer(value)
    model = ir.Model(main, ir_version=last.ir_version)
    passes.DeduplicateInitializersPass()(model)
    return model


def _branch(model: ir.Model, inputs: Sequence[ir.Value], weights: dict[str, ir.Value]) -> ir.Graph:
    """Return the graph of ``model`` as a branch, which takes its inputs from outside.

    Args:
        model: The model; used up.
        inputs: The inputs of the whole.
        weights: Its weights by name; those of this model are added.
    """
    graph = model.graph
    separate_outputs(graph)
    for own, given in zip(list(graph.inputs), inputs, strict=True):
        if own is not given:
            ir.convenience.replace_all_uses_with(own, given)
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        same = _same_weight(name, value, weights)
        if same is None:
            weights[_free(name, weights)] = value
        else:
            ir.convenience.replace_all_uses_with(value, same)
    outputs, nodes = list(graph.outputs), list(graph)
    graph.inputs.clear()
    graph.outputs.clear()
    graph.remove(nodes)
    return ir.Graph([], outputs, nodes=nodes, name=graph.name)


def padded(model: ir.Model, program: PaddedProgram) -> ir.Model:
    """Give ``model`` the states that its phase lacks, handed on as they are, and the next phase.

    Args:
        model: The model of ``program.program``; changed.
        program: The program.
    """
    graph = model.graph
    separate_outputs(graph)
    own = dict(zip(program.program.states, graph.inputs, strict=False))
    count = len(program.outputs)
    made = dict(zip(program.program.states_after, list(graph.outputs)[count:], strict=True))
    inputs, outputs = [], []
    for index, state in enumerate(program.definitions):
        given = own.get(state.name) or _like(state)
        inputs.append(given)
        if state.name in made:
            outputs.append(made[state.name])
            continue
        source = given if index else _constant(graph, program.next)
        node = ir.node("Identity", [source])
        node.outputs[0].shape, node.outputs[0].type = given.shape, given.type
        graph.append(node)
        outputs.append(node.outputs[0])
    inputs += list(graph.inputs)[len(own) :]
    results = [*list(graph.outputs)[:count], *outputs]
    for values, wanted in ((graph.inputs, inputs), (graph.outputs, results)):
        values.clear()
        values.extend(wanted)
    return model


def _like(state: StateDef) -> ir.Value:
    dtype = ir.DataType[onnx_dtype(dtype_name(state.initial.dtype))]
    shape = ir.Shape(list(state.shape))
    return ir.Value(name=f"{state.name}_in", shape=shape, type=ir.TensorType(dtype))


def _constant(graph: ir.Graph, number: int) -> ir.Value:
    name = _free("next_phase", dict(graph.initializers))
    value = ir.Value(name=name, const_value=ir.tensor(np.array(number, dtype=np.int64), name=name))
    graph.register_initializer(value)
    return value


def _same_weight(name: str, value: ir.Value, weights: dict[str, ir.Value]) -> ir.Value | None:
    other = weights.get(name)
    if other is None or value.const_value is None or other.const_value is None:
        return None
    mine, theirs = value.const_value, other.const_value
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return None
    return other if mine.tobytes() == theirs.tobytes() else None


def _free(name: str, weights: dict[str, ir.Value]) -> str:
    number, free = 1, name
    while free in weights:
        number += 1
        free = f"{name}_{number}"
    return free
