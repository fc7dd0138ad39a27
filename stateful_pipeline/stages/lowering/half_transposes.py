"""Casts before transposing, where ONNX Runtime would otherwise crash.

When ONNX Runtime 1.32 finds ``MatMul(Cast(Transpose(x)))`` it turns the two around, so that the
product can read ``x`` transposed.  If that is not possible after all, as for ``perm=[1, 0, 2]``, a
later pass for the CPU follows a null pointer to the new node, and the process dies
(microsoft/onnxruntime#28392).  A file where the two are turned around already gives it no reason::

    MatMul(Cast(Transpose(x)))    becomes    MatMul(Transpose(Cast(x)))

which is the same, element by element.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def crashing_casts(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the casts that :func:`cast_before_transposes` puts elsewhere."""
    yield from (node for graph in model.graphs() for node in graph if _is_cast_after(node))


def cast_before_transposes(model: ir.Model) -> tuple[str, ...]:
    """Cast operands of products before they are transposed, in place.

    Returns:
        What was changed, in words; nothing where there is none.
    """
    names = Names(model)
    found = list(crashing_casts(model))
    for cast in found:
        _turn_around(cast, names)
    return ("Transpose: after the cast for a product",) if found else ()


def _is_cast_after(node: ir.Node) -> bool:
    """Whether ``node`` casts a transposed half for a product."""
    if node.op_type != "Cast" or node.domain != "":
        return False
    given = node.inputs[0]
    transpose = given.producer() if given is not None else None
    if transpose is None or transpose.op_type != "Transpose" or transpose.domain != "":
        return False
    assert given is not None
    read = any(use.node.op_type == "MatMul" for use in node.outputs[0].uses())
    return read and given.dtype in _HALVES and transpose.graph is node.graph


def _turn_around(cast: ir.Node, names: Names) -> None:
    graph, moved, result = cast.graph, cast.inputs[0], cast.outputs[0]
    assert isinstance(graph, ir.Graph)
    assert moved is not None
    transpose = moved.producer()
    assert transpose is not None
    source = transpose.inputs[0]
    assert source is not None
    wide = ir.node("Cast", [source], {"to": cast.attributes["to"].as_int()})
    wide.outputs[0].name = names.fresh(f"{source.name}_before_transposing")
    wide.outputs[0].type = result.type
    wide.outputs[0].shape = None if source.shape is None else source.shape.copy()
    again = ir.node("Transpose", [wide.outputs[0]], dict(transpose.attributes))
    again.outputs[0].type = result.type
    again.outputs[0].shape = result.shape
    graph.insert_after(cast, [wide, again])
    name, result.name = result.name, names.fresh(f"{result.name}_unused")
    again.outputs[0].name = name
    ir.convenience.replace_all_uses_with(result, again.outputs[0], replace_graph_outputs=True)
    graph.remove(cast, safe=True)
    if not tuple(moved.uses()) and not moved.is_graph_output():
        graph.remove(transpose, safe=True)
