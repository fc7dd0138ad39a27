"""Fills in the dtypes that a file does not say, by ONNX's own inference."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as passes

_MAKE_SEQUENCES = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap"}
    | {"SplitToSequence"}
)
_BODIES = {"If": "then_branch", "Loop": "body"}
"""Operators of control flow, to the graph whose results they hand on."""


def infer_types(model: ir.Model) -> None:
    """Give each tensor of ``model`` its dtype where that is missing; shapes stay as they are."""
    if any(value.type is None and not _is_sequence(value) for value in _made(model)):
        _infer(model, data_prop=False)


def shapes_in(model: ir.Model) -> dict[ir.Value, ir.Shape | None]:
    """Return the shape of each tensor, as far as it can be inferred; ``model`` stays as it is."""
    return _infer(model, data_prop=True)


def _infer(model: ir.Model, *, data_prop: bool) -> dict[ir.Value, ir.Shape | None]:
    """Give each tensor its dtype, and return the shapes that were found, which it does not get."""
    before = [(value, value.shape) for value in _made(model)]
    # The pass takes a sequence of tensors for a tensor.
    sequences = [(value, value.type) for value in _made(model) if _is_sequence(value)]
    passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=data_prop)(model)
    found = {value: value.shape for value, _ in before}
    for value, shape in before:
        value.shape = shape
    for value, kind in sequences:
        value.type = kind
    return found


def _made(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        for node in graph:
            yield from (value for value in node.outputs if value.name)


def _is_sequence(value: ir.Value) -> bool:
    """Whether ``value`` is a sequence of tensors, by its type or by what makes it."""
    node = value.producer()
    if value.type is not None or node is None:
        return isinstance(value.type, ir.SequenceType)
    if node.op_type in _MAKE_SEQUENCES:
        return True
    if node.op_type == "Identity":
        given = node.inputs[0]
        return given is not None and _is_sequence(given)
    if node.op_type not in _BODIES:
        return False
    results = node.attributes[_BODIES[node.op_type]].as_graph().outputs
    index = node.outputs.index(value) + (node.op_type == "Loop")  # a body begins with its condition
    return _is_sequence(results[index])
