"""Writes out what OpenVINO lacks or gets wrong: local functions, ``TensorScatter``, small integers.

``TensorScatter(cache, update, start)`` writes ``update`` along an axis, in each row of the batch
from a position of its own.  With ``i`` the position along the axis of ``update``, that is
``ScatterElements(cache, start[row] + i, update)``; a circular cache takes the position modulo its
size.

OpenVINO's arithmetic on int8 and uint8 stops at the ends of their range, where PyTorch and ONNX
Runtime wrap around.  It is done in int32 and brought into the range: a cast alone would be taken
into the operator, and stop there, too::

    int8: (n + 128) mod 256 - 128      uint8: n mod 256

``Cast`` to bool of an operator's second result gives the first one, and NaN gives False.  It is
written as ``Not(Equal(x, 0))``.

``DFT`` of real numbers gets a dimension too many where its result is reduced (:mod:`.fourier`).

``BitShift`` is done by multiplying and dividing numbers with a sign, in float32.  To the right,
that is wrong for uint32 and uint64 from 2**31 on, which a negative number is when PyTorch's ``>>``
is exported: such shifts are refused.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as passes

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.lowering.casts import Casts
from stateful_pipeline.stages.lowering.for_openvino_integers import write_out_integers
from stateful_pipeline.stages.lowering.for_openvino_narrowed import narrowed_operators
from stateful_pipeline.stages.lowering.for_openvino_reductions import separate_reductions
from stateful_pipeline.stages.lowering.fourier import write_out_transforms
from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.signatures import is_defined, signature_of
from stateful_pipeline.stages.lowering.typed import infer_types
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_ARITHMETIC = frozenset(
    {"Abs", "Add", "BitShift", "CumSum", "MatMul", "Mul", "Neg", "Pow", "ReduceProd", "ReduceSum"}
    | {"Sub", "Sum"}
)
_SIGNLESS = (ir.DataType.UINT32, ir.DataType.UINT64)


def lower_for_openvino(model: ir.Model) -> tuple[str, ...]:
    """Write out what OpenVINO lacks, in place; return what was changed, each once.

    Raises:
        StageError: OpenVINO computes an operator otherwise, and it is not written out.
    """
    changed = [f"{function.name}: written out" for function in model.functions.values()]
    if model.functions:
        passes.InlinePass()(model)
    names = Names(model)
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type == "TensorScatter" and node.domain == "":
                _write_out_scatter(node, names)
                changed.append("TensorScatter: as ScatterElements")
    infer_types(model)
    _refuse_shifts(model)
    changed += write_out_transforms(model, names, onesided_only=True)
    changed += _compare_with_zero(model, names)
    changed += [*write_out_integers(model, names), *_widen_bytes(model, names)]
    changed += separate_reductions(model, names)
    return tuple(dict.fromkeys([*changed, *narrowed_operators(model)]))


def lower_file_for_openvino(source: Path, path: Path) -> tuple[str, ...]:
    """Write the model at ``source`` to ``path`` as :func:`lower_for_openvino` changes it.

    Weights that lie beside ``source`` must lie beside ``path``, too.  Where nothing has to change,
    nothing is written.
    """
    model = ir.load(source)
    changed = lower_for_openvino(model)
    if changed:
        ir.save(model, path)
    return changed


def _write_out_scatter(node: ir.Node, names: Names) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)  # functions have been written out
    cache, update = node.inputs[0], node.inputs[1]
    start = node.inputs[2] if len(node.inputs) > 2 else None
    assert cache is not None
    assert update is not None
    known = cache.shape if cache.shape is not None else update.shape
    assert known is not None  # the dtypes and ranks of a graph's inputs are declared
    rank = len(known)
    axis = node.attributes.get_int("axis", -2) % rank
    write = Writer(names, graph, node)
    shape = write("Shape", update)
    length = write("Gather", shape, write.int(axis))
    positions = write("Range", write.int(0), length, write.int(1))
    others = [dim for dim in range(rank) if dim != axis]
    positions = write("Unsqueeze", positions, write.ints(others))
    if start is not None:
        rows = write("Unsqueeze", start, write.ints(range(1, rank)))
        positions = write("Add", positions, rows)
    if node.attributes.get_string("mode", "linear") == "circular":
        size = write("Gather", write("Shape", cache), write.int(axis))
        positions = write("Mod", positions, size)
    index = write("Expand", positions, shape)
    written = write("ScatterElements", cache, index, update, axis=axis)
    replace_by(node, written)


def _refuse_shifts(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            is_right = node.attributes.get_string("direction", "") == "RIGHT"
            if node.op_type == "BitShift" and is_right and node.outputs[0].dtype in _SIGNLESS:
                where = f" ('{node.name}')" if node.name else ""
                dtype = node.outputs[0].dtype.name.lower()
                raise StageError(
                    f"OpenVINO shifts {dtype} to the right as numbers with a sign, and rounds "
                    f"those below zero to the wrong side: BitShift{where}",
                    stage="build",
                    hint="divide by a power of two, `//`, or let a target of ONNX Runtime run it",
                )


def _compare_with_zero(model: ir.Model, names: Names) -> list[str]:
    """Write every cast to bool as a comparison."""
    changed = []
    for graph in model.graphs():
        for node in list(graph):
            given = node.inputs[0] if node.op_type == "Cast" and node.domain == "" else None
            if given is None or node.attributes.get_int("to", 0) != ir.DataType.BOOL.value:
                continue
            replace_by(node, _is_not_zero(given, Writer(names, graph, node)))
            changed.append("Cast to bool: as a comparison")
    return changed


def _is_not_zero(given: ir.Value, write: Writer) -> ir.Value:
    dtype = given.dtype
    if dtype == ir.DataType.BOOL:
        return write("Identity", given)
    if dtype in (None, ir.DataType.BFLOAT16):  # which Equal has from opset 19 on
        dtype = ir.DataType.FLOAT
        given = write("Cast", given, to=dtype.value)
    zero = write("Constant", value=ir.tensor(0, dtype=dtype))
    return write("Not", write("Equal", given, zero))


def _widen_bytes(model: ir.Model, names: Names) -> list[str]:
    casts, changed = Casts(model), list[str]()
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type not in _ARITHMETIC or node.domain != "":
                continue
            signature = signature_of(node, model.opset_imports)
            if signature is None or all(dtype not in _BYTES for _, dtype in signature.dtypes):
                continue
            # A shift is defined for numbers without a sign; OpenVINO has int32 for both.
            wider = ir.DataType.UINT32 if node.op_type == "BitShift" else ir.DataType.INT32
            wide = {name: wider if dtype in _BYTES else dtype for name, dtype in signature.dtypes}
            if is_defined(signature.with_dtypes(wide)):
                lowest = -128 if node.outputs[0].dtype == ir.DataType.INT8 else 0
                casts.wrap(node, signature, wide)
                _wrap_around(node, lowest, wider, names)
                narrow = signature.dtypes[0][1].name.lower()
                changed.append(f"{node.op_type}: {narrow} in {wider.name.lower()}")
    return changed


def _wrap_around(node: ir.Node, lowest: int, dtype: ir.DataType, names: Names) -> None:
    """Bring what ``node`` makes in 32 bits into 256 numbers from ``lowest``, before its cast."""
    made, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)
    for use in tuple(made.uses()):
        write = Writer(names, graph, use.node)
        start = write("Constant", value=ir.tensor(lowest, dtype=dtype))
        size = write("Constant", value=ir.tensor(256, dtype=dtype))
        within = write("Mod", write("Sub", made, start), size)
        use.node.replace_input_with(use.idx, write("Add", within, start))
