"""Which operators ONNX Runtime has a kernel for on the CPU, as it says itself.

The list belongs to the installed build, so that a newer one with more kernels is asked for fewer
casts.  Some kernels are listed and refuse all the same, once they run: see :func:`_refuses`.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections import defaultdict
from importlib.resources import files
from typing import Any

import onnx_ir as ir

from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime.ort_provider import import_onnxruntime, why_unlisted
from stateful_pipeline.stages.lowering.signatures import Signature, dtypes_of, is_function

_Kernel = tuple[tuple[int, int], dict[str, frozenset[ir.DataType]]]
"""The versions of the operator that a kernel is for, and the dtypes that it takes."""

_Row = tuple[str, str, tuple[int, int], dict[str, list[str]]]
"""Domain and name of an operator, and one of its kernels: versions, and dtypes in text."""

_LAST = (1 << 31) - 1
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def has_kernel(signature: Signature) -> bool:
    """Whether ONNX Runtime runs the operator at these dtypes on the CPU, rounding each result.

    An operator without any kernel is replaced by those that define it.  In 16 bits each of these
    rounds, where PyTorch rounds once, so that it counts as having none.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    if _refuses(signature):
        return False
    fitting = [
        constraints
        for (first, last), constraints in _kernels()[signature.domain, signature.operator]
        if first == signature.version or (last < _LAST and first <= signature.version <= last)
    ]
    if not fitting:
        halves = any(dtype in _HALVES for _, dtype in signature.dtypes)
        return is_function(signature) and not halves
    return any(
        all(dtype in constraints.get(name, {dtype}) for name, dtype in signature.dtypes)
        for constraints in fitting
    )


def _refuses(signature: Signature) -> bool:
    """Whether a kernel of ONNX Runtime 1.32 that is listed does not run all the same."""
    dtypes = {dtype for _, dtype in signature.dtypes}
    if signature.operator in ("ScatterND", "ScatterElements") and signature.reduction != "none":
        return not dtypes.isdisjoint({*_HALVES, ir.DataType.BOOL})
    return signature.operator in ("GRU", "LSTM", "RNN") and ir.DataType.DOUBLE in dtypes


@functools.cache
def _kernels() -> dict[tuple[str, str], list[_Kernel]]:
    """Return all kernels of the CPU, by domain and operator.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    found: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for domain, operator, versions, constraints in listed():
        takes = {name: dtypes_of(texts) for name, texts in constraints.items()}
        first, last = versions
        found[domain, operator].append(((first, last), takes))
    return found


def kept_list() -> tuple[str, list[_Row]]:
    """Return a version of ONNX Runtime, and the kernels of the CPU as its package lists them."""
    text = files(__package__).joinpath("kernels.json").read_text(encoding="utf-8")
    kept = json.loads(text)
    return kept["onnxruntime"], kept["kernels"]


def listed() -> list[_Row]:
    """Return the kernels of the CPU as ONNX Runtime lists them.

    Where asking it would crash the process, as with a package for GPUs on a machine without CUDA or
    TensorRT, the list of ``kernels.json`` stands in: a model that needs fewer casts on this build
    gets some more, and one that needs more is refused when it is loaded.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    if why_unlisted(import_onnxruntime()) is not None:
        return kept_list()[1]
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_opkernel_def"):
        raise TargetError(
            "this ONNX Runtime does not list its kernels",
            target="onnxruntime",
            hint="install the package `onnxruntime` from PyPI, 1.24 or newer",
        )
    return [
        (kernel.domain, kernel.op_name, kernel.version_range, kernel.type_constraints)
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
    ]
