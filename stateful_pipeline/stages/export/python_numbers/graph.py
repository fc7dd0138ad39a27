"""Gives arithmetic on Python numbers operators of its own, before a graph is converted to ONNX.

PyTorch's exporter takes each Python number for a tensor like any other, and computes floats in
float32 and ``//`` by cutting off.  Here an operator on numbers, or one that reads a number from a
tensor, becomes one of :mod:`.operators`: an ``int`` is INT64, a ``float`` DOUBLE and a
``bool`` BOOL, each a tensor without dimensions.

A number of TorchScript's type ``Scalar`` (``x.item()``) gets the type that it has at run time.

Where a number meets a tensor, PyTorch brings it to the dtype that the operator computes in.  The
exporter does so in comparisons; for other operators a cast is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Block, Graph, Node, Value
from stateful_pipeline.stages.export.python_numbers.forms import FORMS
from stateful_pipeline.stages.export.python_numbers.operators import (
    CAST,
    DTYPES,
    READ,
    TENSOR,
    TYPES,
    number_schemas,
    ours,
)

_SCALAR = "number"
"""TorchScript's ``Scalar``: a number of any type."""
_READS = {
    "aten::Int": "int",
    "aten::IntImplicit": "int",
    "aten::Float": "float",
    "aten::FloatImplicit": "float",
    "aten::Bool": "bool",
    "aten::is_nonzero": "bool",
    "aten::ScalarImplicit": _SCALAR,
    "aten::item": _SCALAR,
}
"""Operators that read a number from a tensor of one element, and the number's type."""
_FILLED = {"aten::full": 1, "aten::full_like": 1, "aten::new_full": 2, "aten::fill": 1}
"""Operators that give tensors of one number, and the number's position."""


def with_python_numbers(graph: Graph) -> Graph:
    """Return a copy of ``graph`` in which operators on Python numbers are of this project.

    Raises:
        StageError: A number is an integer or a float, depending on a branch.
    """
    changed = graph.copy()
    _rewrite(changed, changed)
    return changed


def _rewrite(graph: Graph, block: Block) -> None:
    """Rewrite the operators of a block, in their order."""
    for node in list(block.nodes()):
        if node.kind() == "prim::If":
            for inner in node.blocks():
                _rewrite(graph, inner)
            _settle(node, list(node.outputs()), [list(b.outputs()) for b in node.blocks()])
        elif node.kind() == "prim::Loop":
            _rewrite_loop(graph, node)
        elif node.kind() in _READS and jit.is_tensor_type(node.inputsAt(0).type()):
            _rewrite_read(graph, node)
        elif node.kind() == "aten::__getitem__" and str(node.output().type()) == "float":
            _rewrite_item(graph, node)
        elif not (_rewrite_filled(graph, node) or _rewrite_computation(graph, node)):
            _cast_arguments(graph, node)


def _rewrite_loop(graph: Graph, node: Node) -> None:
    [body] = node.blocks()
    start = list(node.inputs())[2:]
    carried = list(body.inputs())[1:]
    _settle(node, carried, [start])
    _rewrite(graph, body)
    _settle(node, carried, [start, list(body.outputs())[1:]])
    _settle(node, list(node.outputs()), [carried])


def _settle(node: Node, values: Sequence[Value], sources: Sequence[Sequence[Value]]) -> None:
    """Give numbers that come from one of some sources the type that all of these have."""
    for index, value in enumerate(values):
        origins = [origin[index] for origin in sources]
        if str(value.type()) not in (_SCALAR, *TYPES):
            continue
        kinds = {str(origin.type()) for origin in origins}
        if len(kinds) == 1:
            value.setType(origins[0].type())
            continue
        raise StageError(
            f"a number is {' or '.join(sorted(kinds))}, depending on the way that is taken",
            stage="export",
            place=jit.place_of(node),
            hint="make it one type with float(...) or int(...)",
        )


def _rewrite_read(graph: Graph, node: Node) -> None:
    """Let an operator that reads a number from a tensor be ours, if the number's type is known."""
    value = node.inputsAt(0)
    kind = _READS[node.kind()]
    if kind == _SCALAR:
        kind = _kind_of(value.type().dtype())
    if kind in TYPES:
        _replace(graph, node, READ[kind], TYPES[kind])


def _rewrite_item(graph: Graph, node: Node) -> None:
    """Read an item of a list of floats from a float64 tensor: the exporter makes it float32."""
    made = node.inputsAt(0).node()
    if made.kind() not in ("prim::Constant", "prim::ListConstruct"):
        return
    listed = [value.toIValue() for value in made.inputs()]
    if made.kind() == "prim::Constant":
        listed = made.output().toIValue()
    with graph.insert_point_guard(node):
        if None not in listed:  # all are constants
            items = graph.insertConstant(torch.tensor(listed, dtype=torch.float64))
        else:
            constants = (jit.dtype_code(torch.float64), None, False)
            values = [made.output(), *map(graph.insertConstant, constants)]
            items = _insert(graph, node, "aten::tensor", values)
            items.setType(jit.tensor_type(torch.empty(len(listed), dtype=torch.float64)))
        values = [items, graph.insertConstant(0), node.inputsAt(1)]
        item = _insert(graph, node, "aten::select", values)
    item.setType(jit.tensor_type(torch.empty((), dtype=torch.float64)))
    _replace(graph, node, READ["float"], jit.FLOAT, [item])


def _insert(graph: Graph, before: Node, kind: str, values: Sequence[Value]) -> Value:
    """Insert an operator at the insertion point; return its result."""
    made = graph.create(kind, list(values), 1)
    made.copyMetadata(before)
    graph.insertNode(made)
    return made.output()


def _kind_of(dtype: torch.dtype | None) -> str:
    """Return the type of a number from a tensor of ``dtype``."""
    if dtype is None or dtype.is_complex:
        return _SCALAR
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"


def _rewrite_computation(graph: Graph, node: Node) -> bool:
    """Let an operator on numbers be ours; return whether it is one."""
    if node.kind() not in FORMS or node.outputsSize() != 1:
        return False
    values = list(node.inputs())
    type_ = _type_of_result(node.kind(), values)
    if type_ is None and {str(value.type()) for value in values} == {"int", "float"}:
        values = [_as_float(graph, node, value) for value in values]
        type_ = _type_of_result(node.kind(), values)
    if type_ is not None:
        _replace(graph, node, ours(node.kind()), type_, values)
    return type_ is not None


def _type_of_result(kind: str, values: Sequence[Value]) -> Any:
    """Return what an operator gives for numbers of these types, or None if it takes no such."""
    types = [str(value.type()) for value in values]
    for schema in number_schemas(kind):
        if types == [str(argument.type) for argument in schema.arguments]:
            return TYPES[str(schema.returns[0].type)]
    return None


def _as_float(graph: Graph, node: Node, value: Value) -> Value:
    """Return a number as a float, before ``node``: not all operators take an integer beside one."""
    if str(value.type()) == "float":
        return value
    with graph.insert_point_guard(node):
        made = _insert(graph, node, ours("aten::Float"), [value])
    made.setType(jit.FLOAT)
    return made


def _replace(
    graph: Graph, node: Node, kind: str, type_: Any, values: Sequence[Value] | None = None
) -> None:
    """Let an operator of ours take the place of ``node``, on the same values if none are given."""
    other = graph.create(kind, list(node.inputs() if values is None else values), 1)
    other.copyMetadata(node)
    other.insertBefore(node)
    other.output().setType(type_)
    node.output().replaceAllUsesWith(other.output())
    node.destroy()


def _cast_arguments(graph: Graph, node: Node) -> None:
    """Cast the computed numbers that an operator on tensors reads to the dtype of its result.

    Comparisons are left to the exporter, which casts the number as PyTorch does.
    """
    schema = jit.schema_of(node)
    if schema is None or node.outputsSize() != 1 or not _gives_tensor(node.output()):
        return
    dtype = node.output().type().dtype()
    if dtype == torch.bool:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.name == "dtype" and node.kind() == "aten::tensor" and dtype is not None:
            with graph.insert_point_guard(node):
                node.replaceInput(index, graph.insertConstant(jit.dtype_code(dtype)))
        elif _takes_number(node.kind(), argument) and _is_computed(node.inputsAt(index)):
            _cast(graph, node, index, dtype)


def _rewrite_filled(graph: Graph, node: Node) -> bool:
    """Let a number that fills a tensor be cast where the exporter does not; return whether it is.

    The exporter adds the number to zeros, which truth values have no sum for; they are of float32
    if there are no dimensions, and for ``full`` if no dtype is given.
    """
    position = _FILLED.get(node.kind())
    kind = node.output().type() if position is not None else None
    if kind is None or kind.dim() is None or kind.dtype() is None:
        return False
    is_full, number = node.kind() == "aten::full", node.inputsAt(position)
    with graph.insert_point_guard(node):
        code = graph.insertConstant(jit.dtype_code(kind.dtype()))
        if is_full and node.inputsAt(2).type().kind() == "NoneType":
            node.replaceInput(2, code)
        if not _is_computed(number):
            return False
        if kind.dim() == 0:
            _replace(graph, node, TENSOR, kind, [number, code])
            return True
        if not is_full or kind.dtype() != torch.bool:
            return False
        flag = _insert(graph, node, TENSOR, [number, code])
        flag.setType(jit.tensor_type(torch.empty((), dtype=torch.bool)))
        values = [flag, node.inputsAt(0), graph.insertConstant(False)]
    _replace(graph, node, "aten::expand", kind, values)
    return True


def _gives_tensor(value: Value) -> bool:
    return bool(value.type().kind() == "TensorType")


def _takes_number(kind: str, argument: Any) -> bool:
    """Whether an argument is a number that PyTorch brings to the dtype of the result."""
    if kind == "aten::pad":
        return bool(argument.name == "value")
    return str(argument.type) in (_SCALAR, f"Optional[{_SCALAR}]")


def _is_computed(value: Value) -> bool:
    return str(value.type()) in TYPES and value.node().kind() != "prim::Constant"


def _cast(graph: Graph, node: Node, index: int, dtype: torch.dtype | None) -> None:
    value = node.inputsAt(index)
    kind = str(value.type())
    if dtype is None:
        dtype = torch.float32 if kind == "float" else torch.int64
    if dtype == DTYPES[kind]:
        return
    with graph.insert_point_guard(node):
        code = graph.insertConstant(jit.dtype_code(dtype))
        cast = _insert(graph, node, CAST, [value, code])
    cast.setType(value.type())
    node.replaceInput(index, cast)
