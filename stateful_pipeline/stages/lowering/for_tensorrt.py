"""Writes out what TensorRT cannot build, and says what it computes otherwise.

Its compiler loses the type of a constant that a branch gives twice::

    If (first) { k = 1, n = 1 } else { k = 1, n = n + 1 }

which is every module that counts from its first call on.  Whole numbers and truth values are
concerned.  All of a branch's constants but the first are chosen by the condition, which is known
in the branch: ``Where(first, 1, 2)``.

It has no Fourier transforms (:mod:`.fourier`), and takes no slices at a moving place
(:mod:`.for_tensorrt_slices`).

Its ONNX parser turns float64 into float32 without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.lowering.for_tensorrt_slices import gather_slices
from stateful_pipeline.stages.lowering.fourier import write_out_transforms
from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.sizes import sizes_in
from stateful_pipeline.stages.lowering.typed import infer_types
from stateful_pipeline.stages.lowering.writing import Writer
from stateful_pipeline.stages.model_files import copy_model

_WHOLE = (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64)
_OF_SHIFTS = (ir.DataType.UINT32, ir.DataType.UINT64)
_LACKING = (*_OF_SHIFTS, ir.DataType.INT16, ir.DataType.UINT16)


@dataclass(frozen=True)
class ForTensorRt:
    """A model as TensorRT gets it.

    Attributes:
        path: The file.
        changed: What was written out, in words, each once.
        doubles: The operators that give float64, each once.
    """

    path: Path
    changed: tuple[str, ...]
    doubles: tuple[str, ...]


def lower_file_for_tensorrt(source: Path, folder: Path) -> ForTensorRt:
    """Return the model at ``source`` as TensorRT gets it: itself, or a changed copy in ``folder``.

    Args:
        source: The model; weights that lie beside it are copied with it.
        folder: Where a copy may be written.

    Raises:
        StageError: An operator has a type that TensorRT lacks.
    """
    model = ir.load(source)
    infer_types(model)
    nodes = [node for graph in model.graphs() for node in graph]
    _refuse_types(nodes)
    doubles = dict.fromkeys(
        node.op_type
        for node in nodes
        if any(output.dtype == ir.DataType.DOUBLE for output in node.outputs)
    )
    changed = lower_for_tensorrt(model)
    path = source
    if changed:
        path = copy_model(source, folder)
        ir.save(model, path)
    return ForTensorRt(path, changed, tuple(doubles))


def lower_for_tensorrt(model: ir.Model) -> tuple[str, ...]:
    """Write out what TensorRT cannot build, in place; return what was changed, each once.

    The dtypes of ``model`` are known, as far as they can be.
    """
    names, constants = Names(model), sizes_in(model)
    changed = gather_slices(model, constants, names)
    changed += write_out_transforms(model, names)
    for graph in list(model.graphs()):
        for node in list(graph):
            if node.op_type == "If" and node.domain == "":
                changed += _tell_constants_apart(node, constants, names)
    return tuple(dict.fromkeys(changed))


def _refuse_types(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        lacking = [output.dtype for output in node.outputs if output.dtype in _LACKING]
        if lacking:
            shifts = "; for `x >> k`, write `x // 2**k`" if lacking[0] in _OF_SHIFTS else ""
            where = f" ('{node.name}')" if node.name else ""
            raise StageError(
                f"TensorRT has no {lacking[0].name.lower()}, which {node.op_type}{where} gives",
                stage="build",
                hint=f"compute with int32 or int64{shifts}, or let a target of ONNX Runtime run it",
            )


def _tell_constants_apart(node: ir.Node, constants: set[ir.Value], names: Names) -> list[str]:
    condition, changed = node.inputs[0], list[str]()
    for branch in ("then_branch", "else_branch"):
        body = node.attributes[branch].as_graph()
        alike = [
            (index, value)
            for index, value in enumerate(body.outputs)
            if value in constants and value.dtype in _WHOLE
        ]
        for index, value in alike[1:]:
            write = Writer(names, body)
            other = _another(value, write)
            pair = (value, other) if branch == "then_branch" else (other, value)
            chosen = write("Where", condition, *pair)
            chosen.type, chosen.shape = value.type, value.shape
            body.outputs[index] = chosen
            changed.append("If: constants told apart")
    return changed


def _another(value: ir.Value, write: Writer) -> ir.Value:
    """Return what ``value`` is not."""
    if value.dtype == ir.DataType.BOOL:
        return write("Not", value)
    assert value.dtype is not None
    return write("Add", value, write("Constant", value=ir.tensor(1, dtype=value.dtype)))
