"""Converts a program captured with ``torch.export`` to an ONNX model with PyTorch's exporter.

What the exporter refuses is said in a sentence, with the line of the user's code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator

import onnx
import onnx_ir as ir
import onnxscript
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.exported import WRAPPED, ExportProgram
from stateful_pipeline.model.locate import node_place, user_place
from stateful_pipeline.model.torch_internals import (
    forms_read_once,
    lookups_kept,
    numbers_kept,
    symbolic_shapes,
)
from stateful_pipeline.stages.export.exact_floats import restore_numbers
from stateful_pipeline.stages.export.exported_forms import element_by_element
from stateful_pipeline.stages.export.exported_numbers import arithmetic, restore_types
from stateful_pipeline.stages.export.rnn import translations
from stateful_pipeline.stages.export.simplify import simplify
from stateful_pipeline.stages.lowering.fourier import is_better_as_product, write_out_transforms
from stateful_pipeline.stages.lowering.names import Names

_TRANSLATING = re.compile(r"Error when translating node .*target=torch\.ops\.([\w.]+?)\.\w+\]")
_PACKAGES = tuple(path + os.sep for p in (onnx, onnxscript, ir) for path in p.__path__)
_EXPORTER = r"torch\.|onnxscript|onnx_ir|onnx\.|copyreg|abc"


def convert_exported(program: ExportProgram, opset: int) -> ir.Model:
    """Return the ONNX model of ``program`` at ``opset``, inputs and outputs in the program's order.

    Raises:
        StageError: An operator has no ONNX form, or the exporter failed; with the user's line.
    """
    _refuse_projections(program)
    with (
        torch.no_grad(),
        symbolic_shapes(),
        numbers_kept(),
        forms_read_once(),
        lookups_kept(),
        _silence(),
    ):
        try:
            exported = torch.onnx.export(
                program.exported,
                dynamo=True,
                opset_version=opset,
                optimize=False,  # it takes 0.999995 for 1: see simplify
                verbose=False,
                external_data=False,
                custom_translation_table={
                    **element_by_element(),
                    **arithmetic(),
                    **translations(),
                },
            )
            assert exported is not None  # only the legacy exporter returns None
            restore_numbers(exported.model)
            restore_types(exported.model)
            simplify(exported.model)
            if write_out_transforms(
                exported.model, Names(exported.model), which=is_better_as_product
            ):
                simplify(exported.model)
        except Exception as error:  # the exporter raises its own and torch's errors
            raise _refusal(error, program) from error
    _strip_prefix(exported.model)
    return exported.model


def _refuse_projections(program: ExportProgram) -> None:
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


def _refusal(error: Exception, program: ExportProgram) -> StageError:
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = str(root).strip().splitlines() or [type(root).__name__]
    missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text[0])
    if missing is not None and "complex-valued" in text[0] and "sym_" in missing[1]:
        return StageError(
            "a complex tensor has a size or a place that depends on values, such as "
            "table[p : p + n]: there is no ONNX form of that",
            stage="export",
            place=_place_of_moving_complex(program),
            hint="keep torch.view_as_real(table), slice that, and make it complex where it is used",
        )
    if missing is not None:
        return StageError(
            f"there is no ONNX operator for {missing[1]}",
            stage="export",
            place=_place_of(program, missing[1]),
            hint="write it with other operators",
        )
    operator = _translated(error)
    place = user_place(error) if operator is None else _place_of(program, operator)
    inside = place is not None and place.file.startswith(_PACKAGES)
    what = "the program" if operator is None else operator.replace(".", "::")
    return StageError(
        f"{what} has no ONNX form: {type(root).__name__}: " + "\n".join(text[:6]),
        stage="export",
        place=None if inside else place,
        hint="write it with other operators" if operator is not None else None,
    )


def _translated(error: BaseException) -> str | None:
    """Return the operator (``aten.amax``) whose translation raised, if that is what happened."""
    current: BaseException | None = error
    while current is not None:
        found = _TRANSLATING.search(str(current))
        if found is not None:
            return found[1]
        current = current.__cause__
    return None


def _place_of(program: ExportProgram, operator: str) -> Place | None:
    """Return the user's line that called ``operator``, or what decomposes to it."""
    wanted = operator.rpartition(".")[2].strip("_").removesuffix("_ex")
    for node in program.exported.graph.nodes:
        name = str(node.target).rpartition(".")[0].rpartition(".")[2].strip("_")
        if node.op == "call_function" and name and (wanted in name or name in wanted):
            return node_place(node)
    return None


def _place_of_moving_complex(program: ExportProgram) -> Place | None:
    """Return the user's line that makes the first complex tensor whose sizes depend on values."""
    for node in program.exported.graph.nodes:
        made = node.meta.get("val") if node.op == "call_function" else None
        if not isinstance(made, torch.Tensor) or not made.is_complex():
            continue
        if any(free_unbacked_symbols(part) for part in (*made.shape, made.storage_offset())):
            return node_place(node)
    return None


def _strip_prefix(model: ir.Model) -> None:
    """Name initializers as the module names its parameters and buffers."""
    for name, value in list(model.graph.initializers.items()):
        if name.startswith(WRAPPED):
            value.name = name.removeprefix(WRAPPED)
