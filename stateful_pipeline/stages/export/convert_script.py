"""Converts a program rewritten from TorchScript to an ONNX model, ``If`` and ``Loop`` kept.

PyTorch's TorchScript exporter writes it, at opset 20 at most; a newer opset is reached with onnx's
version converter.  Weights are inputs of the graph while it is converted, so that nothing folds
them away or renames them, and become initializers under their own names afterwards.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import onnx_ir as ir
import torch

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model import jit
from stateful_pipeline.model.arrays import dtype_name
from stateful_pipeline.model.program import Port
from stateful_pipeline.model.script_program import ScriptProgram
from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.interface import onnx_dtype
from stateful_pipeline.stages.export.promotion import with_promoted_operands
from stateful_pipeline.stages.export.python_numbers.forms import with_number_forms
from stateful_pipeline.stages.export.python_numbers.graph import with_python_numbers
from stateful_pipeline.stages.export.symbolics import EMPTY_LIST, MARK, RENAMED, registered

NEWEST = 20
"""The newest opset of PyTorch's TorchScript exporter."""
EXAMPLE_SIZE = 3
"""The size of dynamic axes in the example that the exporter asks for; it depends on none."""

_OPERATOR = re.compile(r"'?((?:aten|prim|quantized|torchvision|\w+)::\w+)'?")


def convert_script(program: ScriptProgram, opset: int) -> ir.Model:
    """Return the ONNX model of ``program`` at ``opset``: states, then inputs, then the results.

    Raises:
        StageError: An operator has no ONNX form, or the exporter failed; with the user's line.
    """
    torch_exporter.require_supported()
    ports = [*program.given()]
    names = [f"given_{index}" for index in range(len(ports))]
    weights = [f"weight_{index}" for index in range(len(program.weights))]
    made = [f"made_{index}" for index in range(len(program.made()))]
    arguments = (*map(_example, ports), *program.weights.values())
    dynamic = _dynamic(names, ports)
    buffer = io.BytesIO()
    written = min(opset, NEWEST)
    graph = jit.with_typed_lists(jit.with_kinds(program.graph, RENAMED), EMPTY_LIST)
    graph = jit.with_marks(with_promoted_operands(with_python_numbers(graph)), MARK)
    results = tuple(map(_example, program.made()))
    with torch.no_grad(), _silence(), torch_exporter.given(results), registered(written):
        try:
            torch.onnx.export(
                jit.function_of(graph),
                arguments,
                buffer,  # type: ignore[arg-type]  # it takes files, too
                dynamo=False,
                opset_version=written,
                input_names=[*names, *weights],
                output_names=made,
                dynamic_axes=dynamic,
                do_constant_folding=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises its own and torch's errors
            raise _refusal(error, program) from error
    model = onnx.load_from_string(buffer.getvalue())
    model = _raised(with_number_forms(model), opset)
    converted = ir.from_proto(model)
    _number_values(converted, program.weights)
    _attach(converted, dict(zip(weights, program.weights.items(), strict=True)))
    _remove_identities(converted)
    _restore_inputs(converted, dict(zip(names, ports, strict=True)))
    return converted


def _example(port: Port) -> torch.Tensor:
    sizes = [dim if isinstance(dim, int) else EXAMPLE_SIZE for dim in port.shape]
    return torch.zeros(sizes, dtype=port.dtype)


def _dynamic(names: Sequence[str], ports: Sequence[Port]) -> dict[str, dict[int, str]]:
    """Return the dimensions that are no numbers, each under a name of its own."""
    axes = {
        name: {
            index: f"{name}_{index}"
            for index, dim in enumerate(port.shape)
            if not isinstance(dim, int)
        }
        for name, port in zip(names, ports, strict=True)
    }
    return {name: dims for name, dims in axes.items() if dims}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's warnings quiet, and the graph that it prints where it fails."""
    with warnings.catch_warnings(), torch_exporter.quiet():
        warnings.filterwarnings("ignore", module=r"torch\.|onnx")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def _raised(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return ``model`` at ``opset``.

    Raises:
        StageError: onnx cannot convert an operator of it.
    """
    if opset <= NEWEST:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # onnx's own errors share no base
        raise StageError(
            f"the model cannot be raised from opset {NEWEST} to {opset}: {error}",
            stage="export",
            hint=f"ask for opset {NEWEST}, the newest of PyTorch's TorchScript exporter",
        ) from error


def _number_values(model: ir.Model, taken: Container[str]) -> None:
    """Name what is computed by numbers, so that nothing has the name of a weight."""
    names = (f"value_{number}" for number in itertools.count())
    free = (name for name in names if name not in taken)
    outside = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for graph in model.graphs():
        inner = graph.inputs if graph is not model.graph else ()
        made = (value for node in graph for value in node.outputs)
        for value in (*inner, *made, *graph.initializers.values()):
            if id(value) not in outside and value.name:
                value.name = next(free)


def _attach(model: ir.Model, weights: dict[str, tuple[str, torch.Tensor]]) -> None:
    """Make the inputs in ``weights`` initializers, under their own names."""
    graph = model.graph
    given = list(graph.inputs)
    graph.inputs.clear()
    for value in given:
        if value.name not in weights:
            graph.inputs.append(value)
            continue
        name, tensor = weights[value.name]
        value.name = name
        array = tensor.detach().cpu().contiguous()
        value.const_value = ir.tensor(_numpy(array), name=name, dtype=value.dtype)
        graph.register_initializer(value)


def _remove_identities(model: ir.Model) -> None:
    """Remove the marks that the program was converted with, and other nodes that do nothing.

    One stays where a graph would hand on a value from outside without it, or one value twice.
    """
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type != "Identity":
                continue
            value, made = node.inputs[0], node.outputs[0]
            assert value is not None  # an Identity has an input
            if made.is_graph_output() and not _may_be_output(value, graph):
                continue
            value.type = value.type or made.type
            ir.convenience.replace_all_uses_with(made, value, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def _may_be_output(value: ir.Value, graph: ir.Graph | ir.Function) -> bool:
    """Whether a node of ``graph`` makes ``value``, and ``graph`` does not hand it on yet."""
    producer = value.producer()
    return producer is not None and producer.graph is graph and not value.is_graph_output()


def _restore_inputs(model: ir.Model, ports: Mapping[str, Port]) -> None:
    """Put back the inputs that nobody reads, which the exporter drops."""
    graph = model.graph
    kept = {value.name: value for value in graph.inputs}
    graph.inputs.clear()
    for name, port in ports.items():
        value = kept.get(name)
        if value is None:
            kind = ir.TensorType(ir.DataType[onnx_dtype(dtype_name(port.dtype))])
            value = ir.Value(name=name, type=kind, shape=ir.Shape(list(port.shape)))
        graph.inputs.append(value)


def _numpy(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _refusal(error: Exception, program: ScriptProgram) -> StageError:
    text = [line for line in str(error).strip().splitlines() if line.strip()]
    found = _OPERATOR.search(text[0]) if text else None
    place: Place | None = None
    if found is not None:
        place = jit.place_of_kind(program.graph, found[1])
    missing = "is not supported" in str(error)
    what = f"there is no ONNX operator for {found[1]}" if found and missing else None
    return StageError(
        what or f"the graph has no ONNX form: {type(error).__name__}: " + "\n".join(text[:6]),
        stage="export",
        place=place,
        hint="write it with other operators",
    )
