"""``LSTM`` and ``GRU`` written out as a ``Scan`` over time, one per direction.

What depends on the input alone is computed for all steps at once; with ``g`` that part of one step,
``R`` and ``r`` the recurrent weights and bias, and gates in ONNX's order::

    LSTM    i, o, f, c~ = g + h R + r              c' = s(f) c + s(i) tanh(c~)
                                                   h' = s(o) tanh(c')
    GRU     z, r = s(g + h R + r)                  n = tanh(g_n + r (h R_n + r_n))
                                                   h' = (1 - z) n + z h

A layer that runs in reverse scans in reverse, its results too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from stateful_pipeline.stages.lowering.writing import Writer

_Cell = Callable[[Writer, Sequence[ir.Value], ir.Value, ir.Value, ir.Value], list[ir.Value]]
"""From states, the input's part, recurrent weights and bias to new states, ``h`` first."""


def is_plain(node: ir.Node) -> bool:
    """Whether a layer is as PyTorch has them, and its initial states are given."""
    wanted = 7 if node.op_type == "LSTM" else 6
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    given = all(value is not None for value in (*inputs[:4], *inputs[5:wanted]))
    others = {"activations", "activation_alpha", "activation_beta", "clip"} & {*node.attributes}
    like_torch = node.op_type == "LSTM" or node.attributes.get_int("linear_before_reset", 0) == 1
    rest = (inputs[4], inputs[7], node.attributes.get_int("layout", 0))
    coupled = node.attributes.get_int("input_forget", 0)
    return given and like_torch and not others and rest == (None, None, 0) and not coupled


def lstm(write: Writer, node: ir.Node) -> list[ir.Value]:
    """Write an ``LSTM`` that :func:`is_plain`; return what it makes."""
    return _layer(write, node, [*node.inputs[5:7]], _lstm_cell)


def gru(write: Writer, node: ir.Node) -> list[ir.Value]:
    """Write a ``GRU`` that :func:`is_plain`; return what it makes."""
    return _layer(write, node, [node.inputs[5]], _gru_cell)


def _lstm_cell(
    write: Writer, states: Sequence[ir.Value], given: ir.Value, weight: ir.Value, bias: ir.Value
) -> list[ir.Value]:
    h, c = states
    gates = write("Add", write("Add", given, write("MatMul", h, weight)), bias)
    i, o, f, new = write.many("Split", 4, gates, axis=-1, num_outputs=4)
    kept = write("Mul", write("Sigmoid", f), c)
    c = write("Add", kept, write("Mul", write("Sigmoid", i), write("Tanh", new)))
    return [write("Mul", write("Sigmoid", o), write("Tanh", c)), c]


def _gru_cell(
    write: Writer, states: Sequence[ir.Value], given: ir.Value, weight: ir.Value, bias: ir.Value
) -> list[ir.Value]:
    (h,) = states
    recurrent = write("Add", write("MatMul", h, weight), bias)
    z, r, n = write.many("Split", 3, recurrent, axis=-1, num_outputs=3)
    given_z, given_r, given_n = write.many("Split", 3, given, axis=-1, num_outputs=3)
    z = write("Sigmoid", write("Add", given_z, z))
    r = write("Sigmoid", write("Add", given_r, r))
    n = write("Tanh", write("Add", given_n, write("Mul", r, n)))
    new = write("Mul", write("Sub", write.double(1.0), z), n)
    return [write("Add", new, write("Mul", z, h))]


def _layer(
    write: Writer, node: ir.Node, initial: Sequence[ir.Value | None], cell: _Cell
) -> list[ir.Value]:
    """Write a layer; return all steps, ``[time, directions, batch, hidden]``, and last states."""
    x, *weights = node.inputs[:4]
    direction = node.attributes.get_string("direction", "forward")
    reversed_ones = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]
    steps: list[ir.Value] = []
    last: list[list[ir.Value]] = []
    for index, backwards in enumerate(reversed_ones):
        at = write.int(index)
        w, r, b = (write("Gather", value, at, axis=0) for value in weights)
        b_given, b_recurrent = write.many("Split", 2, b, axis=0, num_outputs=2)
        given = write("MatMul", x, write("Transpose", w, perm=[1, 0]))
        given = write("Add", given, b_given)
        states = [write("Gather", value, at, axis=0) for value in initial]
        body = _body(write, states, write("Transpose", r, perm=[1, 0]), b_recurrent, cell)
        *ends, every = write.many(
            "Scan", len(states) + 1, *states, given, body=body, num_scan_inputs=1,
            scan_input_directions=[backwards], scan_output_directions=[backwards],
        )  # fmt: skip
        steps.append(write("Unsqueeze", every, write.ints([1])))
        last.append([write("Unsqueeze", value, write.ints([0])) for value in ends])
    ends = [write("Concat", *values, axis=0) for values in zip(*last, strict=True)]
    return [write("Concat", *steps, axis=1), *ends]


def _body(
    write: Writer, states: Sequence[ir.Value], weight: ir.Value, bias: ir.Value, cell: _Cell
) -> ir.Graph:
    """Return the graph of one step: states and the input's part to states and the new ``h``."""
    kind = ir.TensorType(ir.DataType.DOUBLE)
    inputs = [
        ir.Value(name=write.names.fresh("written_step"), type=kind) for _ in (*states, "given")
    ]
    body = ir.Graph(inputs, [], nodes=[], name=write.names.fresh("written_body"))
    inner = Writer(write.names, body)
    after = cell(inner, inputs[:-1], inputs[-1], weight, bias)
    body.outputs.extend([*after, inner("Identity", after[0])])
    for value in body.outputs:
        value.type = kind
    return body
