"""Converts the functional program to an ONNX model with PyTorch's exporter, repeatably.

The exporter writes the traced source lines, with absolute paths, into node metadata, and labels
dimensions as it inferred them.  Both are replaced here: metadata goes, and the dimensions of
inputs and outputs are those of the captured program, in the names of the contract.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import re
import warnings
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch

from stateful_pipeline.contract import Shape
from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.locate import node_place, user_place
from stateful_pipeline.model.program import WRAPPED, Program
from stateful_pipeline.model.torch_internals import symbolic_shapes
from stateful_pipeline.stages.export.rnn import translations

_EXPORTER = r"torch\.|onnxscript|onnx_ir|onnx\.|copyreg|abc"


def convert(program: Program, opset: int) -> ir.Model:
    """Return the ONNX model of ``program`` at ``opset``, inputs and outputs in the program's order.

    Raises:
        StageError: An operator has no ONNX form, or the exporter failed; with the user's line.
    """
    _refuse_projections(program)
    with torch.no_grad(), symbolic_shapes(), _silence():
        try:
            exported = torch.onnx.export(
                program.exported,
                dynamo=True,
                opset_version=opset,
                optimize=True,
                verbose=False,
                external_data=False,
                custom_translation_table=translations(),
            )
        except Exception as error:  # the exporter raises its own and torch's errors
            raise _refusal(error, program) from error
    assert exported is not None  # only the legacy exporter returns None
    model = exported.model
    _strip_prefix(model)
    return model


def _refuse_projections(program: Program) -> None:
    for node in program.exported.graph.nodes:
        if node.target is torch.ops.aten.lstm.input:
            h, c = node.args[1]
            if h.meta["val"].shape[2] != c.meta["val"].shape[2]:
                raise StageError(
                    "an nn.LSTM with proj_size has no ONNX form: ONNX's LSTM projects nothing",
                    stage="export",
                    place=node_place(node),
                    hint="use proj_size=0 and a Linear layer, or write the cell with nn.LSTMCell",
                )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's progress, its log lines on missing torchvision and its warnings quiet."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.filterwarnings("ignore", module=_EXPORTER)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _refusal(error: Exception, program: Program) -> StageError:
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = str(root).strip().splitlines() or [type(root).__name__]
    missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text[0])
    if missing is not None:
        return StageError(
            f"there is no ONNX operator for {missing[1]}",
            stage="export",
            place=_place_of(program, missing[1]),
            hint="write it with other operators",
        )
    return StageError(
        f"the program has no ONNX form: {type(root).__name__}: " + "\n".join(text[:6]),
        stage="export",
        place=user_place(error),
    )


def _place_of(program: Program, operator: str) -> Place | None:
    """Return the user's line that called ``operator``, or what decomposes to it."""
    for node in program.exported.graph.nodes:
        name = str(node.target).rpartition(".")[0]
        related = name and (operator.startswith(name) or name.startswith(operator))
        if node.op == "call_function" and related:
            return node_place(node)
    return None


def _strip_prefix(model: ir.Model) -> None:
    """Name initializers as the module names its parameters and buffers."""
    for name, value in list(model.graph.initializers.items()):
        if name.startswith(WRAPPED):
            value.name = name.removeprefix(WRAPPED)


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
    _separate_outputs(graph)
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


def _separate_outputs(graph: ir.Graph) -> None:
    taken = {id(value) for value in graph.inputs} | {id(v) for v in graph.initializers.values()}
    for index, value in enumerate(list(graph.outputs)):
        if id(value) in taken:
            node = ir.node("Identity", [value])
            node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        taken.add(id(value))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def declare_shapes(model: ir.Model, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
    """Declare the dimensions of inputs and outputs, and drop inferred ones in between.

    What the exporter inferred in between can be wrong under a dynamic axis (a recurrent layer's
    output keeps the example's number of time steps), and runtimes infer it anyway.
    """
    graph = model.graph
    kept = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for value in _values(model):
        if id(value) not in kept and value.const_value is None:
            value.shape = None
    for value, shape in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.shape = ir.Shape(list(shape))
