"""Decides which operators of a model are run in which wider dtype, and has it done."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from stateful_pipeline.stages.lowering.casts import Casts
from stateful_pipeline.stages.lowering.doubles import doubles, write_out_doubles
from stateful_pipeline.stages.lowering.half_transposes import (
    cast_before_transposes,
    crashing_casts,
)
from stateful_pipeline.stages.lowering.kernels import has_kernel
from stateful_pipeline.stages.lowering.signatures import Signature, is_defined, signature_of
from stateful_pipeline.stages.lowering.typed import infer_types

_D = ir.DataType
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _D.BFLOAT16: (_D.FLOAT,),
    _D.FLOAT16: (_D.FLOAT,),
    _D.INT8: (_D.INT32, _D.INT64),
    _D.INT16: (_D.INT32, _D.INT64),
    _D.UINT8: (_D.INT32, _D.INT64, _D.UINT32, _D.UINT64),
    _D.UINT16: (_D.INT32, _D.INT64, _D.UINT32, _D.UINT64),
    _D.INT32: (_D.INT64,),
    _D.UINT32: (_D.INT64, _D.UINT64),
    _D.BOOL: (_D.UINT8, _D.INT32, _D.INT64, _D.FLOAT),
}
"""What a dtype can be computed in with the same result once it is cast back.

Integers wrap around alike.  There is nothing for int64, float32 and float64.
"""

_MEANS_ITS_DTYPE = frozenset(
    {"BitCast", "Cast", "CastLike", "Constant", "ConvInteger", "DequantizeLinear"}
    | {"DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"}
)
"""Operators that do something else at another dtype."""


def define(model: ir.Model) -> tuple[str, ...]:
    """Run each operator that ONNX does not define for its dtypes in a wider one, in place.

    Returns:
        What was changed, as ``Conv: bfloat16 in float32``, each once.
    """
    return _change(model, _choose_defined)


def lower(model: ir.Model) -> tuple[str, ...]:
    """Run each operator that ONNX Runtime's CPU has no kernel for in a wider dtype, in place.

    Some of float64, for which there is none, are written out.

    Returns:
        What was changed, as ``Add: bfloat16 in float32``, each once.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    if model.functions:
        passes.InlinePass()(model)
    infer_types(model)
    changed = (*write_out_doubles(model), *_change(model, _choose_with_kernel))
    return (*changed, *cast_before_transposes(model))


def is_lowered(model: ir.Model) -> bool:
    """Whether :func:`lower` would leave ``model`` as it is.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    infer_types(model)
    plans = _plans(model, _choose_with_kernel)
    changes = itertools.chain(doubles(model), plans, crashing_casts(model))
    return not model.functions and next(changes, None) is None


def lower_file(source: Path, path: Path) -> tuple[str, ...]:
    """Write the model at ``source`` to ``path`` as :func:`lower` changes it, weights untouched.

    Weights that lie beside ``source`` must lie beside ``path``, too.  Where nothing has to change,
    nothing is written; what is no model is left for who loads it to say.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    try:
        model = ir.load(source)
    except DecodeError:
        return ()
    changed = lower(model)
    if changed:
        ir.save(model, path)
    return changed


_Dtypes = dict[str, ir.DataType]
_Plan = tuple[ir.Node, Signature, _Dtypes]
_Choose = Callable[[Signature], _Dtypes | None]


def _change(model: ir.Model, choose: _Choose) -> tuple[str, ...]:
    changed: dict[str, None] = {}
    casts = Casts(model)
    for node, signature, dtypes in list(_plans(model, choose)):
        casts.wrap(node, signature, dtypes)
        for name, before in signature.dtypes:
            if dtypes[name] != before:
                changed[f"{node.op_type}: {_said(before)} in {_said(dtypes[name])}"] = None
    return tuple(changed)


def _plans(model: ir.Model, choose: _Choose) -> Iterator[_Plan]:
    """Yield each node that must change, with the dtypes that its parameters should have."""
    infer_types(model)
    for graph in model.graphs():
        for node in graph:
            if node.op_type in _MEANS_ITS_DTYPE:
                continue
            signature = signature_of(node, model.opset_imports)
            dtypes = None if signature is None else choose(signature)
            if signature is not None and dtypes is not None:
                yield node, signature, dtypes


@functools.cache
def _choose_defined(signature: Signature) -> _Dtypes | None:
    return None if is_defined(signature) else _first(signature, is_defined)


@functools.cache
def _choose_with_kernel(signature: Signature) -> _Dtypes | None:
    if has_kernel(signature):
        return None
    return _first(signature, lambda wider: is_defined(wider) and has_kernel(wider))


def _first(signature: Signature, fits: Callable[[Signature], bool]) -> _Dtypes | None:
    """Return the dtypes that change least and that ``fits`` accepts, or None."""
    names = [name for name, _ in signature.dtypes]
    choices = [(dtype, *_WIDER.get(dtype, ())) for _, dtype in signature.dtypes]
    every = sorted(itertools.product(*map(enumerate, choices)), key=_changes)
    for picked in every[1:]:
        dtypes = dict(zip(names, (dtype for _, dtype in picked), strict=True))
        if fits(signature.with_dtypes(dtypes)):
            return dtypes
    return None


def _changes(picked: tuple[tuple[int, ir.DataType], ...]) -> tuple[int, int]:
    """Return how many parameters change, and how far."""
    return sum(rank > 0 for rank, _ in picked), sum(rank for rank, _ in picked)


def _said(dtype: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())
