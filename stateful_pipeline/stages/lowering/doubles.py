"""Convolutions and recurrent layers of float64, by operators that ONNX Runtime has in float64.

No wider dtype stands for float64, and float32 would lose half of its digits.  So ``Conv`` becomes a
sum over the positions ``k`` of its kernel, with ``x_k`` every ``stride``-th element of the padded
input from ``k * dilation`` on::

    y[n, m, p] = b[m] + sum over k, c of w[m, c, k] * x_k[n, c, p]

and ``LSTM`` and ``GRU`` become a ``Scan`` over time (see :mod:`.recurrent`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.recurrent import gru, is_plain, lstm
from stateful_pipeline.stages.lowering.writing import Writer

_LAST = (1 << 63) - 1


def write_out_doubles(model: ir.Model) -> tuple[str, ...]:
    """Write out each operator of float64 that ONNX Runtime lacks and that has a form, in place.

    Returns:
        What was changed, as ``Conv: float64 written out``, each once.
    """
    names = Names(model)
    changed: dict[str, None] = {}
    for node in list(doubles(model)):
        graph = node.graph
        assert isinstance(graph, ir.Graph)  # functions have been written out
        writer = Writer(names, graph, node)
        for old, new in zip(node.outputs, _FORMS[node.op_type](writer, node), strict=False):
            name, new.shape = old.name, old.shape
            new.type = ir.TensorType(ir.DataType.DOUBLE)
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            old.name, new.name = names.fresh(f"{name}_before"), name
        graph.remove(node, safe=True)
        changed[f"{node.op_type}: float64 written out"] = None
    return tuple(changed)


def doubles(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes that :func:`write_out_doubles` writes out."""
    for graph in model.graphs():
        for node in graph:
            given = node.inputs[0] if node.op_type in _FORMS and not node.domain else None
            if given is not None and given.dtype == ir.DataType.DOUBLE and _has_form(node):
                yield node


def _has_form(node: ir.Node) -> bool:
    if node.op_type != "Conv":
        return is_plain(node)
    weight = node.inputs[1]
    assert weight is not None  # a Conv has weights
    padding = node.attributes.get_string("auto_pad", "NOTSET")
    known = weight.shape is not None and all(isinstance(size, int) for size in weight.shape)
    return known and padding == "NOTSET"


def _conv(write: Writer, node: ir.Node) -> list[ir.Value]:
    x, weight, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert weight is not None
    assert weight.shape is not None
    outputs, channels, *kernel = weight.shape.numpy()
    rank, groups = len(kernel), node.attributes.get_int("group", 1)
    pads = list(node.attributes.get_ints("pads", [0] * (2 * rank)))
    if any(pads):
        x = write("Pad", x, write.ints([0, 0, *pads[:rank], 0, 0, *pads[rank:]]))
    strides = write.ints(node.attributes.get_ints("strides", [1] * rank))
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    axes = write.ints(range(2, rank + 2))
    flat = write("Reshape", weight, write.ints([outputs, channels, -1]))
    terms = []
    for position, offsets in enumerate(itertools.product(*map(range, kernel))):
        begin = [k * d for k, d in zip(offsets, dilations, strict=True)]
        left = [(size - 1) * d for size, d in zip(kernel, dilations, strict=True)]
        end = [b - whole or _LAST for b, whole in zip(begin, left, strict=True)]
        seen = write("Slice", x, write.ints(begin), write.ints(end), axes, strides)
        at = write("Gather", flat, write.int(position), axis=2)
        terms.append(_weighted(write, at, seen, groups, (outputs, channels, rank)))
    total = terms[0]
    for term in terms[1:]:
        total = write("Add", total, term)
    if bias is not None:
        total = write("Add", total, write("Reshape", bias, write.ints([-1, *[1] * rank])))
    return [total]


def _weighted(
    write: Writer, weight: ir.Value, x: ir.Value, groups: int, sizes: tuple[int, int, int]
) -> ir.Value:
    """Return the sum over the channels of ``x``, in groups, by ``weight`` of one position."""
    outputs, channels, rank = sizes
    if channels == 1 and outputs == groups:
        return write("Mul", x, write("Reshape", weight, write.ints([-1, *[1] * rank])))
    if groups == 1:
        return _mixed(write, weight, x)
    weights = write.many("Split", groups, weight, axis=0, num_outputs=groups)
    parts = write.many("Split", groups, x, axis=1, num_outputs=groups)
    mixed = [_mixed(write, *pair) for pair in zip(weights, parts, strict=True)]
    return write("Concat", *mixed, axis=1)


def _mixed(write: Writer, weight: ir.Value, x: ir.Value) -> ir.Value:
    return write("Einsum", weight, x, equation="mc,nc...->nm...")


_FORMS: dict[str, Callable[[Writer, ir.Node], Any]] = {"Conv": _conv, "GRU": gru, "LSTM": lstm}
