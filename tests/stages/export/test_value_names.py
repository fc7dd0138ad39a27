"""Names of the values of an ONNX model."""

import onnx_ir as ir

from stateful_pipeline.stages.export.interface import rename_io


def branch(condition: ir.Value, value: ir.Value, depth: int) -> ir.Node:
    """Return an ``If`` with ``depth`` more levels in it; each branch hands on one value twice."""
    graphs = []
    for side in ("then", "else"):
        deeper = depth > 0 and side == "then"
        inner = branch(condition, value, depth - 1) if deeper else ir.node("Abs", [value])
        graphs.append(ir.Graph([], [inner.outputs[0]] * 2, nodes=[inner], name=side))
    named = {
        f"{name}_branch": ir.AttrGraph(f"{name}_branch", graph)
        for name, graph in zip(("then", "else"), graphs, strict=True)
    }
    return ir.Node("", "If", [condition], named.values(), num_outputs=2)


def test_each_value_of_nested_graphs_has_a_name_of_its_own():
    condition, value = (ir.Value(name=name) for name in ("condition", "value"))
    node = branch(condition, value, 2)
    graph = ir.Graph([condition, value], node.outputs[:1], nodes=[node], opset_imports={"": 20})
    model = ir.Model(graph, ir_version=10)
    rename_io(model, ["c", "x"], ["y"])
    names = [v.name for g in model.graphs() for n in g for v in n.outputs]
    assert None not in names
    assert len(names) == len(set(names)) == 16
